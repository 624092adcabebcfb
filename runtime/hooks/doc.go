// Package hooks holds the hooks of allocations and tasks: those in the box, and those
// in plugins as a runner sees them. All satisfy the interfaces of plugins/hook, and a
// runner cannot tell which it holds.
//
// A hook in the box gets what it needs beyond a request through its constructor. In
// order, those of an allocation are alloc_dir, max_run_duration,
// await_previous_allocations, migrate_disk, alloc_health_watcher, group_services,
// checks_hook and alloc_health_again; those of a task validate, task_dir, cgroup,
// logmon, dispatch_payload, stats_hook and task_services. The names are those that
// users of Nomad know from events, where Nomad has the hook.
//
// A hook in a plugin is a [Plugin], made by [Plugins]: attach.go says which there are
// for an allocation or a task, rule.go what the operator says about them, plugin.go
// how one is called, and debts.go what becomes of a call that must not be lost.
package hooks
