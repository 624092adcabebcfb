package bridge

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockDir is the lock file directory. Only root can write to it.
const lockDir = "/run"

// withInterprocessLock calls f with an exclusive lock on the bridge's lock file, which other calls and other
// processes also take.
func (b *Bridge) withInterprocessLock(f func() error) error {
	file, err := os.OpenFile(filepath.Join(lockDir, "nomad-lite-bridge-"+b.config.Name+".lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	defer file.Close() // releases the lock
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if err == nil {
			return f()
		}
		if err != unix.EINTR {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
}
