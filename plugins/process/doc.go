// Package process has the facts about processes of the operating system: the identity of a
// process ([ID]), whether it runs, its exit status, its pidfd, the boot in which it runs
// ([BootID]), and the process at the other end of a socket ([Peer]).
//
// It also finds the processes of a task by the kernel's data about them, kills them, and
// resets their protection from the out-of-memory killer, for a caller that has no handle of
// the task: a driver before it starts a task again, and an agent whose driver is unavailable.
// It looks up the user that a task names.
//
// The package owns no process and keeps no state except the boot id. It imports no other
// package of this module.
package process
