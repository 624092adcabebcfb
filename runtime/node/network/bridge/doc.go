// Package bridge connects network namespaces of this machine to a bridge, forwards ports of the
// machine to them, and lets them reach other networks.
//
// The kernel has the whole state: the bridge, one veth pair for each namespace, whose alias has the
// allocation and its addresses, and an nftables table. The package keeps no records, so several
// agents can share a bridge; they exclude each other with a lock file. Package hostnet decides which
// allocations are connected and repeats what has failed.
package bridge
