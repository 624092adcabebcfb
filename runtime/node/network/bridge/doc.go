// Package bridge connects this machine's network namespaces to a bridge, forwards machine ports to
// them, and lets them reach other networks.
//
// The kernel has the whole state: the bridge, one veth pair for each namespace, with the allocation
// and its addresses in the alias, and an nftables table. The package keeps no records, so several
// agents can share a bridge; they exclude each other with a lock file. Package hostnet decides which
// allocations are connected and retries failed calls.
package bridge
