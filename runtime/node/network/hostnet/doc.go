// Package hostnet creates the network namespaces of allocations on this machine, connects each to the
// network of its mode, and reports which modes the machine supports.
//
// It is the [network.HostNamespaces] of the agent, and keeps no records. Packages netns, bridge and cni do the work.
package hostnet
