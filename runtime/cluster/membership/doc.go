// Package membership keeps this node registered with a cluster's servers.
//
// A [Member] registers the store's record of the node, sends a heartbeat before the time the servers allow, registers again when
// the record changes or the servers have lost it, and stores the node's credentials. Its states are the rows of one table,
// transitions.
//
// Other packages take the token for their calls from a Member. They place no allocation and report none; package replica does.
package membership
