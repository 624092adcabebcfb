// Package network owns the networks of allocations that do not use the machine's network: network
// namespaces shared by a group's tasks.
//
// A network is recorded before a driver or the host is called, so neither a failure nor the agent's death
// loses a network. The package decides neither which driver creates a namespace, the allocation's hook
// does, nor how a namespace is connected: package hostnet does.
package network
