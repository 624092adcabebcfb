//go:build linux

package osprocess

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrNoFreeProcess means that a fork has failed with EAGAIN, because a limit of processes was reached. The error number alone
// does not mean that: reads of non-blocking files also return it.
var ErrNoFreeProcess = errors.New("no free process")

// IsTableFull reports whether an operation failed because this process or the machine has no free descriptors or
// processes. The operation can succeed later, when other tasks have ended.
func IsTableFull(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, ErrNoFreeProcess)
}

// IsResourceExhausted reports whether an operation failed because this process or the
// machine has no free descriptors, processes or memory. After such an error the state of the object is
// unknown: the file may exist, the process may run, the socket may have a listener.
func IsResourceExhausted(err error) bool {
	return IsTableFull(err) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS)
}
