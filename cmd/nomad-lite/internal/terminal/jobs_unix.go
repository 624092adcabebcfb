//go:build unix

package terminal

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signals that a terminal and its shell send.
const (
	Resized   = syscall.SIGWINCH // the size of the terminal has changed
	Continued = syscall.SIGCONT  // the shell continues the process after a stop (Ctrl-Z)
)

// Suspend stops the process group, until the shell continues it. It returns at once.
func Suspend() error { return os.NewSyscallError("kill", syscall.Kill(0, syscall.SIGTSTP)) }

// isForegroundOf reports whether the process may write to the terminal: it is not a background job.
func isForegroundOf(fd int) bool {
	owner, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err != nil || owner == unix.Getpgrp()
}
