// Package sandbox isolates the tasks of drivers that run programs of the machine: it gives a
// task a root directory, namespaces, a user, capabilities and a filter of system calls.
//
// A [Sandbox] is a process.Launcher: it starts this binary again as the stage of package
// stage, which prepares itself and becomes the task's program. DESIGN.md gives the reasons.
package sandbox
