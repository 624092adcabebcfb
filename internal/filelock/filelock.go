// Package filelock locks open files with flock(2). The keeper and the log collector lock files
// of the data directory with it, the agent locks the data directory itself, and the store locks
// the state file.
//
// The package neither opens nor checks the file. The caller does, because the rules differ: which
// file it accepts, and whether another process may replace the file.
package filelock

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// ErrLocked means that the file is locked through another open of the file, by this or another process.
const ErrLocked = unix.EWOULDBLOCK

// KilledOwnerTimeout is how long to wait for a lock whose owner was killed. A child process that the owner was starting has
// the lock until it executes its program, which takes a loaded machine some time.
const KilledOwnerTimeout = 5 * time.Second

// LockWithin locks a file like [Lock], and returns ErrLocked if another open file holds the lock for the whole timeout, or until
// ctx ends.
func LockWithin(ctx context.Context, f *os.File, how int, timeout time.Duration) error {
	// A blocking flock(2) has no timeout, and cannot be cancelled.
	return wait.WhileError(ctx, ErrLocked, timeout, func() error { return Lock(f, how|unix.LOCK_NB) })
}

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
