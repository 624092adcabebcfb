//go:build linux

package osprocess

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestSameExecutable(t *testing.T) {
	t.Parallel()
	self, err := LookupID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	changed := slices.Clone(own)
	changed[len(changed)-1]++
	dir := t.TempDir()
	for _, test := range []struct {
		name    string
		content []byte
		want    bool
	}{
		{"a copy", own, true},
		{"another content of the same size", changed, false},
		{"another size", own[:len(own)-1], false},
	} {
		path := filepath.Join(dir, test.name)
		if err := os.WriteFile(path, test.content, 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := self.SameExecutable(f); got != test.want || err != nil {
			t.Errorf("%s: %v, %v", test.name, got, err)
		}
		if _, err := (ID{PID: self.PID, StartTime: 1}).SameExecutable(f); err != os.ErrProcessDone {
			t.Errorf("a process that is gone: %v", err)
		}
		f.Close()
	}
}

func TestIsEarlierPID(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		a, b int
		want bool
	}{
		{"the next pid", 100, 101, true},
		{"the pid before", 101, 100, false},
		{"the same pid", 100, 100, false},
		{"low pids follow the highest", 32767, 301, true},
		{"the highest pid is before the low ones", 301, 32767, false},
		{"the largest configuration", 4194303, 301, true},
	} {
		if got := IsEarlierPID(test.a, test.b); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestLastPID(t *testing.T) {
	before := LastPID()
	if before == 0 {
		t.Skip("the kernel does not show its last pid")
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if pid := cmd.Process.Pid; !IsEarlierPID(before, pid) || IsEarlierPID(LastPID(), pid) {
		t.Errorf("process %d, last pids %d before and %d after its start", pid, before, LastPID())
	}
}

func TestStartedAt(t *testing.T) {
	before := time.Now()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	after := time.Now()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the process can have exited
		_ = cmd.Wait()         // the status of a killed process is an error
	})
	id, err := LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	const resolution = 20 * time.Millisecond // of two clocks
	if got := id.StartedAt(); got.Before(before.Add(-resolution)) || got.After(after.Add(resolution)) {
		t.Errorf("got %v, want a time between %v and %v", got, before, after)
	}
}

func TestWaitEnd(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	id, err := LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	reason := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, reason)
	defer cancel()
	if err := id.WaitEnd(ctx); !errors.Is(err, reason) {
		t.Errorf("while the process runs: %v", err)
	}
	if err := id.KillAndWait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := id.WaitEnd(ctx); err != nil {
		t.Errorf("of a zombie, with a context that has ended: %v", err)
	}
}
