// Package hooks holds the builtin hooks of allocations and tasks, and the parts that a
// runner needs for any hook: its place in the list ([Entry]), and the function that calls
// it ([Call]). Package hookplugin holds the hooks in plugins. Both implement the interfaces
// of plugins/hook.
//
// A builtin hook gets its dependencies through its constructor. Where Nomad has the hook,
// it has the name that Nomad uses in events.
package hooks
