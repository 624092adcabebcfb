package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// A process that does not exit although it was killed delays the removal of all cgroups of its task by removeTimeout in
// all, and not by removeTimeout for each.
func TestRemovalOfCgroupsHasOneTimeout(t *testing.T) {
	var paths []string
	for range 3 {
		dir := t.TempDir() // a file system without a kernel that ends the process
		for name, text := range map[string]string{"cgroup.procs": "2000000000\n", "cgroup.kill": ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		paths = append(paths, dir)
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := killAndRemoveCgroups(paths); err == nil {
			t.Error("the cgroups of a running process are removed")
		}
		if d := time.Since(start); d != removeTimeout {
			t.Errorf("the removal has taken %v, want %v", d, removeTimeout)
		}
	})
	for _, dir := range paths {
		if text, err := os.ReadFile(filepath.Join(dir, "cgroup.kill")); err != nil || string(text) != "1" {
			t.Errorf("processes not killed: %q, %v", text, err)
		}
	}
}

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
