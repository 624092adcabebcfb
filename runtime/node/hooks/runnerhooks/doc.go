// Package runnerhooks holds the contract of the hooks of allocations and tasks with their runners
// ([Hook]), the chain in which a runner calls them ([Chain]), and the builtin hooks. Package
// pluginhooks holds the hooks in plugins. Both kinds implement the contract and the interfaces
// of plugins/hook: neither a chain nor a runner distinguishes them.
//
// A builtin hook gets its dependencies through its constructor. Where Nomad has the hook,
// it has the name that Nomad uses in events.
package runnerhooks
