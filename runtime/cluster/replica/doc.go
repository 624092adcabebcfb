// Package replica makes the store of this node a replica of the allocations that servers of a cluster have assigned to it.
//
// A [Replica] pulls allocations and stores them as the scheduler of a single machine does, so that the packages that run
// allocations do not depend on where they come from. It stores the states that these packages report, and sends
// stored states to the servers until they have accepted them. After a crash both directions continue from the store.
//
// It does not register the node: package membership does.
package replica
