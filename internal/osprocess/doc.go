// Package osprocess contains facts about processes of the operating system: the identity of a
// process ([ID]), whether it runs, its exit status, its pidfd, the boot in which it runs
// ([BootID]), and the process at the other end of a socket ([PeerCredentials]).
//
// It also finds the processes of tasks in the kernel's data ([FindTaskProcesses]), kills them, and resets their
// protection from the out-of-memory killer. That is for callers without a handle of the
// task: a driver before it starts a task again, and an agent whose driver is unavailable.
//
// The package owns no process and keeps no state except the boot id and the searches in
// progress, which concurrent callers share.
//
// The keeper imports it before most packages of the program are initialized: it imports neither net, os/exec nor path/filepath.
package osprocess
