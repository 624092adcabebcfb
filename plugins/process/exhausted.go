package process

import (
	"errors"

	"golang.org/x/sys/unix"
)

// IsResourceExhausted reports whether an operation failed because this process or the
// machine has no free descriptors or memory. After such an error the state of the object is
// unknown: the file may exist, the process may run, the socket may have a listener.
func IsResourceExhausted(err error) bool {
	for _, cause := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}
