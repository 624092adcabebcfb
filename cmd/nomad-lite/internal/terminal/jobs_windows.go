package terminal

import (
	"errors"
	"syscall"
)

// Signals that terminals and shells of other systems send. Windows sends none of them.
const (
	Resized   = syscall.Signal(0x1c)
	Continued = syscall.Signal(0x12)
)

// Suspend returns an error: Windows does not stop processes.
func Suspend() error { return errors.ErrUnsupported }

func isForegroundOf(int) bool { return true }
