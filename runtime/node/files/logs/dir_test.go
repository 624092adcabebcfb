package logs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpenDirTakesNoLinks(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	real := filepath.Join(base, "a1", "alloc", "logs")
	for _, dir := range []string{real, filepath.Join(base, "elsewhere", "logs"), filepath.Join(base, "a2", "alloc")} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"a2/alloc/logs": "../../elsewhere/logs", // made by a task
		"a3":            "a1",                   // the link is above the shared directory, so an operator has made it
	} {
		if err := os.Symlink(target, filepath.Join(base, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(base, "a4"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../elsewhere", filepath.Join(base, "a4", "alloc")); err != nil {
		t.Fatal(err)
	}
	for alloc, ok := range map[string]bool{"a1": true, "a2": false, "a3": true, "a4": false} {
		fd, err := OpenLogDir(filepath.Join(base, alloc, "alloc", "logs"))
		if (err == nil) != ok {
			t.Errorf("open logs of %s: %v, want success %v", alloc, err, ok)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
}

func TestCheckTask(t *testing.T) {
	t.Parallel()
	good := StreamLimits{MaxFiles: 1, MaxFileBytes: 1}
	tests := []struct {
		name string
		task Task
		ok   bool
	}{
		{"all is well", Task{AllocID: "a", Name: "web", StdoutLimits: good, StderrLimits: good}, true},
		{"a name with a slash would leave the directory", Task{AllocID: "a", Name: "../web", StdoutLimits: good, StderrLimits: good}, false},
		{"a name is needed", Task{AllocID: "a", StdoutLimits: good, StderrLimits: good}, false},
		{"no files", Task{AllocID: "a", Name: "web", StdoutLimits: good}, false},
		{"an id with a slash", Task{AllocID: "a/b", Name: "web", StdoutLimits: good, StderrLimits: good}, false},
		{"a name that no file can have", Task{AllocID: "a", Name: strings.Repeat("n", 201), StdoutLimits: good, StderrLimits: good}, false},
	}
	for _, tt := range tests {
		if err := tt.task.validate(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
