// Package hooks holds the hooks in the box. They satisfy the interfaces of
// plugins/hook like any other, and what they need beyond a request comes in
// through their constructors.
//
// The hooks of an allocation run in the order alloc_dir, max_run_duration,
// alloc_health_watcher, group_services, checks_hook; those of a task in the order
// validate, task_dir, logmon, dispatch_payload, stats_hook, task_services.
// The names are those that users of Nomad know from events.
package hooks
