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

// SuspendProcessGroup sends SIGTSTP to the process group, as a terminal does for Ctrl-Z. It returns at once; the
// process stops until the shell continues it.
func SuspendProcessGroup() error { return os.NewSyscallError("kill", syscall.Kill(0, syscall.SIGTSTP)) }

// isForegroundJobOf reports whether the process belongs to the foreground job of the terminal fd. It returns true if fd is
// no terminal.
func isForegroundJobOf(fd int) bool {
	owner, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err != nil || owner == unix.Getpgrp()
}
