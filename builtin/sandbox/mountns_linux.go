package sandbox

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox/stage"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// emptyNamespace is a mount namespace. Each stage of this process enters a copy of it.
var emptyNamespace sharedNamespace

// sharedNamespace is a mount namespace that is made when it is needed first.
type sharedNamespace struct {
	mu   sync.Mutex
	file *os.File // nil before the first call of open that succeeds; never closed
}

// open returns the namespace, which the caller must not close.
func (n *sharedNamespace) open() (*os.File, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file != nil {
		return n.file, nil
	}
	file, err := newEmptyMountNamespace()
	if err == nil {
		n.file = file
	}
	return file, err
}

// newEmptyMountNamespace returns a mount namespace with one file system, which is read-only and has only the directory
// stage.TaskMountPoint. The caller closes the file.
func newEmptyMountNamespace() (namespace *os.File, err error) {
	err = osprocess.RunOnNewThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		file, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/mnt", unix.Gettid()))
		if err != nil {
			return err
		}
		if err := replaceAllMounts(); err != nil {
			file.Close()
			return err
		}
		namespace = file
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make an empty mount namespace: %w", err)
	}
	return namespace, nil
}

// replaceAllMounts replaces the mounts of the calling thread's mount namespace with an almost empty file system.
func replaceAllMounts() error {
	const dir = "/proc" // any directory that each machine has
	opcount.Count(opcount.Mount)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	opcount.Count(opcount.Mount)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755,size=4k"); err != nil {
		return fmt.Errorf("mount a file system: %w", err)
	}
	if err := unix.Mkdir(dir+stage.TaskMountPoint, 0o755); err != nil {
		return err
	}
	opcount.Count(opcount.Mount)
	if err := unix.MountSetattr(unix.AT_FDCWD, dir, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make the file system read-only: %w", err)
	}
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	opcount.Count(opcount.Mount)
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root directory: %w", err)
	}
	opcount.Count(opcount.Mount)
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the other file systems: %w", err)
	}
	return nil
}
