// Package seccomp compiles the default system call filter of tasks, for x86-64 and arm64.
//
// The filter has the semantics of Docker's default profile: a list of allowed calls, which
// grows with the capabilities of the task. Beyond that profile, no call gives a file a set-user-ID or
// set-group-ID bit, and a task takes no id that is denied to it, unless the operator allows
// both. The filter is compiled in Go, without libseccomp. The package installs nothing; package sandbox does, right before a task's program is executed.
package seccomp
