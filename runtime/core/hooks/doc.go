// Package hooks decides which hook is called when. It holds the contract between a runner and its
// hooks ([Hook]), the chain in which a runner calls them ([Chain]), and the three hooks that
// implement the runners' own rules: allocation health, max_run_duration and task usage samples.
//
// Package builtinhooks has the hooks that use the machine, package pluginhooks the hooks in plugins.
// Both implement [Hook] and the interfaces of plugins/hook, so runners do not tell them apart.
package hooks
