package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

func TestRemoveAllocCgroups(t *testing.T) {
	parent := filepath.Join(mountPoint, "freezer/nomad")
	var fsStat unix.Statfs_t
	if err := unix.Statfs(mountPoint, &fsStat); err == nil && fsStat.Type == unix.CGROUP2_SUPER_MAGIC {
		base := mountPoint
		if os.Geteuid() != 0 {
			own, err := osprocess.OwnCgroup()
			if err != nil {
				t.Fatal(err)
			}
			base += own
		}
		parent = filepath.Join(base, "nomad.slice/share.slice")
	}
	ours, other := uuid.NewString(), uuid.NewString()
	group, stranger := filepath.Join(parent, ours+".task.scope"), filepath.Join(parent, other+".task.scope")
	below := filepath.Join(group, "below/deep")
	for _, dir := range []string{below, stranger} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Skipf("no cgroup can be made here: %v", err)
		}
	}
	task := exec.Command("sleep", "3600")
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- task.Wait() }()
	defer task.Process.Kill()
	if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte(strconv.Itoa(task.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ours), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAllocCgroups(dir); err != nil {
		t.Error(err)
	}
	<-ended
	if _, err := os.Stat(group); err == nil {
		t.Errorf("%s is still there", group)
	}
	if _, err := os.Stat(stranger); err != nil {
		t.Errorf("that of another allocation: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, other), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAllocCgroups(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(stranger); err == nil {
		t.Errorf("%s is still there", stranger)
	}
	if err := RemoveAllocCgroups(filepath.Join(dir, "none")); err != nil {
		t.Errorf("without a directory: %v", err)
	}
}
