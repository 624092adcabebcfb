// Package network owns the networks that drivers create for allocations: network namespaces that
// the tasks of a group share.
//
// A network is recorded before its driver is called, so that neither a failure nor the death of
// the agent loses a network. The package creates no network itself,
// and it does not decide which driver creates one: the hook of the allocation does, and calls it.
package network
