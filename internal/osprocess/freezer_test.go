//go:build linux

package osprocess

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const envFreezerHelper = "NOMAD_LITE_TEST_FREEZER"

// A program kills the processes of a cgroup while its own threads enter it. Without Enter, a frozen thread
// stops the collector of the program, which then never thaws the cgroup.
func TestKillDoesNotFreezeItsOwnThreads(t *testing.T) {
	if dir := os.Getenv(envFreezerHelper); dir != "" {
		killWhileThreadsEnter(t, Cgroup(dir))
		return
	}
	const freezer = "/sys/fs/cgroup/freezer"
	var fs unix.Statfs_t
	if err := unix.Statfs(freezer, &fs); err != nil || fs.Type != unix.CGROUP_SUPER_MAGIC || os.Geteuid() != 0 {
		t.Skip("needs root and cgroups v1 with a freezer")
	}
	dir := filepath.Join(freezer, fmt.Sprintf("nomad-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Cgroup(dir).Remove(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	helper := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$")
	helper.Env = append(os.Environ(), envFreezerHelper+"="+dir)
	helper.Cancel = func() error {
		_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0) // a frozen process cannot be killed
		return helper.Process.Kill()
	}
	helper.WaitDelay = time.Second
	if output, err := helper.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func killWhileThreadsEnter(t *testing.T, g Cgroup) {
	var stopped atomic.Bool
	ended := make(chan struct{})
	go func() { // enters the cgroup again and again, as for forks
		defer close(ended)
		for !stopped.Load() {
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread() // not unlocked: the thread exits
				defer g.Enter()()
				_ = os.WriteFile(filepath.Join(string(g), "tasks"), []byte("0"), 0)
				for i, begun := 0, time.Now(); time.Since(begun) < 200*time.Microsecond; i++ {
				}
			}()
			<-done
		}
	}()
	for range 100 {
		victim := exec.Command("sleep", "1000")
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(string(g), "cgroup.procs"), fmt.Append(nil, victim.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
		reaped := make(chan struct{})
		go func() { _ = victim.Wait(); close(reaped) }() // it was killed
		go runtime.GC()
		if err := g.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-reaped
	}
	stopped.Store(true)
	<-ended
}
