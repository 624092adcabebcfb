// Package hostnet creates allocations' network namespaces on this machine, connects each to its mode's network, and
// reports which modes the machine supports.
//
// It is the agent's [network.HostNamespaces], and keeps no records. Packages netns, bridge and cni do the work.
package hostnet
