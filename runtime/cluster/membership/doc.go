// Package membership keeps this node registered with the servers of a cluster.
//
// A [Member] registers the record of the node that the store has, sends a heartbeat before the time that the servers
// allow, registers again when the record changes or the servers have lost it, and stores the credentials of the node. Its
// states are the rows of one table, transitions.
//
// Other packages take the token for their calls from a Member. They place no allocation and report none; package replica
// does.
package membership
