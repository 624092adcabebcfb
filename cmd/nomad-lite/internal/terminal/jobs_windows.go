package terminal

import "syscall"

// Signals that terminals and shells of other systems send. Windows sends none of them.
const (
	Resized   = syscall.Signal(0x1c)
	Continued = syscall.Signal(0x12)
)

// SuspendProcessGroup does nothing and returns nil, because Windows cannot stop processes.
func SuspendProcessGroup() error { return nil }

func isForegroundJobOf(int) bool { return true }
