package osprocess

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestFrozenProcessesAreKilled(t *testing.T) {
	group := filepath.Join("/sys/fs/cgroup/freezer", "keeper-test-"+strconv.Itoa(os.Getpid()))
	err := os.Mkdir(group, 0o755)
	if err != nil {
		t.Skip("needs the right to make a cgroup of version 1: ", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	task := exec.Command("sleep", "1000")
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(task.Process.Pid)
	for _, step := range [][2]string{{"cgroup.procs", pid}, {"freezer.state", "FROZEN"}} {
		if err := os.WriteFile(filepath.Join(group, step[0]), []byte(step[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	for state := []byte(nil); string(state) != "FROZEN\n"; { // freezing takes some time
		if state, err = os.ReadFile(filepath.Join(group, "freezer.state")); err != nil {
			t.Fatal(err)
		}
	}
	if err := task.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- task.Wait() }()
	select {
	case <-ended:
		t.Fatal("this kernel kills what is frozen: thaw is not needed")
	case <-time.After(50 * time.Millisecond):
	}
	UnfreezeCgroupV1Of(pid)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the process is still frozen")
	}
}
