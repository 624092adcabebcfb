// Package hooks holds the builtin hooks of allocations and tasks, and the parts that a
// runner needs for any hook: its place in the list ([Entry]), and the function that calls
// it ([Call]). Package hookplugin holds the hooks in plugins; both satisfy the interfaces
// of plugins/hook, and runners treat them alike.
//
// A builtin hook gets its dependencies through its constructor. In order, the hooks of an
// allocation are alloc_dir, max_run_duration, await_previous_allocations, migrate_disk,
// alloc_health_watcher, group_services, checks_hook and alloc_health_again; the hooks of a
// task are validate, task_dir, cgroup, logmon, dispatch_payload, stats_hook and
// task_services. Where Nomad has the hook, it has the name that Nomad uses in events.
package hooks
