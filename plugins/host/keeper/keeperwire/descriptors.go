package keeperwire

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// DuplicateFile returns a duplicate of the file's descriptor.
func DuplicateFile(f syscall.Conn) (int, error) {
	raw, err := f.SyscallConn() // f.Fd() would make the open file blocking, also for other processes
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	fd := -1
	var dupErr error
	err = raw.Control(func(n uintptr) { fd, dupErr = DuplicateFD(int(n)) })
	if err = errors.Join(err, dupErr); err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return fd, nil
}

// DuplicateFD returns a duplicate of a descriptor, with close-on-exec.
func DuplicateFD(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
}
