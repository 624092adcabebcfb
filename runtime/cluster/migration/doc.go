// Package migration moves the data of an allocation from one node of a cluster to another.
//
// A Fetcher finds the node of the previous allocation through the servers, and reads the archive that package allocdir
// defines from the HTTP API of that node. Token makes the proof that a node may read it: the servers give it to the node
// of the next allocation, because they have the secrets of all nodes. Package httpapi serves the archives of this node.
package migration
