package process

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
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
