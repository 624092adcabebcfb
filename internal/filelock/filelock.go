// Package filelock locks open files with flock(2). The keeper and the log collector lock files
// of the data directory with it, the agent locks the data directory itself, and the store locks
// the state file.
//
// The package neither opens nor checks the file. The caller does, because the rules differ: which
// file it accepts, and whether another process may replace the file.
package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked means that another open file holds the lock.
const ErrLocked = unix.EWOULDBLOCK

// Lock locks a file until all duplicates of its descriptor are closed. The operation how is
// unix.LOCK_EX or unix.LOCK_SH. Lock blocks until it has the lock; with unix.LOCK_NB it
// returns ErrLocked instead.
func Lock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
