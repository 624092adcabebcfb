//go:build linux

package osprocess

import (
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
