// Package process runs tasks that are operating system processes, for drivers
// like raw_exec. It is for Linux.
//
// A [Process] is a complete sdk.Task: a driver that returns it from Start can
// signal, stop, exec, measure, recover and clean up without a line of its own.
// The process is a child of the plugin, in a session and process group of its
// own and, where one can be made, in a cgroup of its own.
//
// The cgroup limits the task to its resources. Where it cannot, the task runs
// without the limit and has an event that says so.
//
// The package isolates nothing: a process sees the machine as the plugin does.
// How an exit status survives the plugin is told in DESIGN.md.
package process
