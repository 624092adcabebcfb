// Package migration moves an allocation's data from one cluster node to another.
//
// A Fetcher finds the previous allocation's node through the servers, and reads the archive, in package allocdir's format, from
// that node's HTTP API. Token proves that a node may read it: the servers give it to the next allocation's node, because they
// have all nodes' secrets. Package httpapi serves this node's archives.
package migration
