package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox/stage"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// The start of a task does not depend on the number of mounts on the machine, and no path of the machine is in the namespace from
// which stages start.
func TestEmptyMountNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace needs root")
	}
	root := "/proc/self/root"
	before, err := os.Stat(root)
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := newEmptyMountNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	if after, err := os.Stat(root); err != nil || !os.SameFile(before, after) {
		t.Errorf("the root directory of this process has changed: %v", err)
	}

	var entries []os.DirEntry
	var mounts []byte
	var mkdirErr error
	err = osprocess.RunOnNewThread(func() error {
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS)); err != nil {
			return err
		}
		mkdirErr = os.Mkdir("/other", 0o755)
		tid, read := unix.Gettid(), make(chan error)
		go func() { // a thread of the mount namespace of the machine, which has /proc
			var err error
			mounts, err = os.ReadFile(fmt.Sprintf("/proc/self/task/%d/mountinfo", tid))
			read <- err
		}()
		if err := <-read; err != nil {
			return err
		}
		var err error
		entries, err = os.ReadDir("/")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(mounts), "\n"); n != 1 {
		t.Errorf("%d mounts:\n%s", n, mounts)
	}
	if len(entries) != 1 || "/"+entries[0].Name() != stage.TaskMountPoint {
		t.Errorf("the root directory has %v", entries)
	}
	if !errors.Is(mkdirErr, unix.EROFS) {
		t.Errorf("make a directory: %v, want %v", mkdirErr, unix.EROFS)
	}
}
