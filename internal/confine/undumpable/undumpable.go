package undumpable

import "syscall"

// The package imports nothing but syscall, and the package syscall imports only parts of the runtime: Go
// initializes it before the other packages of this module, and before those that read arguments, variables or
// files.
func init() {
	if syscall.Geteuid() == 0 {
		// The call cannot fail, except in a filter of system calls that denies it.
		_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0)
	}
}
