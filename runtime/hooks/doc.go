// Package hooks holds the hooks of allocations and tasks that are in the box, and
// what a runner needs of any hook: its place in the list ([Entry]), and how it is
// called ([Call]). Those in plugins are in package hookplugin; both satisfy the
// interfaces of plugins/hook, and a runner cannot tell which it holds.
//
// A hook in the box gets what it needs beyond a request through its constructor. In
// order, those of an allocation are alloc_dir, max_run_duration,
// await_previous_allocations, migrate_disk, alloc_health_watcher, group_services,
// checks_hook and alloc_health_again; those of a task validate, task_dir, cgroup,
// logmon, dispatch_payload, stats_hook and task_services. The names are those that
// users of Nomad know from events, where Nomad has the hook.
package hooks
