// Package replica makes this node's store a replica of the allocations a cluster's servers have assigned to it.
//
// A [Replica] pulls allocations and stores them as a single machine's scheduler does, so the packages that run allocations do not
// depend on where they come from. It stores the states reported by these packages, and sends stored states to the servers until
// they have accepted them. After a crash both directions continue from the store.
//
// It does not register the node: package membership does.
package replica
