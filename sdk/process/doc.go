// Package process runs tasks that are operating system processes, for drivers
// like raw_exec. It is for Linux.
//
// A [Process] is a complete sdk.Task: a driver that returns it from Start
// supports signals, stop, exec, statistics, recovery and cleanup without code of
// its own. A [ProcessWithoutExec] is the same without exec, for tasks into which no command
// can be placed, such as virtual machines. The process is a child of the plugin,
// in a session and process group of its own and, if one can be made, in a cgroup
// of its own.
//
// The cgroup limits the task to its resources. If a limit cannot be enforced,
// the task runs without it, and the package emits a task event.
//
// The package isolates nothing: a process sees the machine as the plugin does. A
// [Launcher] can start the process in other namespaces.
// DESIGN.md describes how an exit status is kept when the plugin process exits.
//
// A comment with the words "For hosts only." marks a declaration that authors of plugins do not need. A
// later version can change it: docs/reference/compatibility.md promises the other declarations.
package process
