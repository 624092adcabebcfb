package keeper

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Exhausted reports whether an operation failed because this process or the machine is
// out of descriptors or memory. Such an error says nothing about the object of the
// operation: a file may be there, a process may run, a socket may have a listener.
func Exhausted(err error) bool {
	for _, cause := range []error{errDescriptors, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}
