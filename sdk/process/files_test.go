package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

func openPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestStdin(t *testing.T) {
	r, w := openPipe(t)
	s := newStartRequest(t)
	c := shellCommand("cat >input.new; mv input.new input")
	c.Stdin = r
	p := startProcess(t, s, c)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "one\ntwo\n"); err != nil {
		t.Error(err)
	}
	w.Close()
	if got := waitExit(t, p); got != (driver.ExitResult{}) {
		t.Errorf("exit result %+v", got)
	}
	if got, err := os.ReadFile(filepath.Join(s.TaskDir(), "input")); string(got) != "one\ntwo\n" {
		t.Errorf("the process reads %q, %v", got, err)
	}
}

func TestExtraFiles(t *testing.T) {
	r, w := openPipe(t)
	c := shellCommand("echo hello >&5; exec sleep 3600")
	c.ExtraFiles = []*os.File{nil, nil, w}
	p := startProcess(t, newStartRequest(t), c)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 6)
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "hello\n" {
		t.Errorf("the process writes %q, %v, want hello", line, err)
	}
	waitUntil(t, "the shell, which copies its descriptors, has become sleep", func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID()))
		return err == nil && string(name) == "sleep\n"
	})
	dir := fmt.Sprintf("/proc/%d/fd", p.PID())
	for _, fd := range []string{"3", "4"} {
		// While sleep starts, its loader opens libraries as these descriptors.
		waitUntil(t, "the process does not have descriptor "+fd, func() bool {
			_, err := os.Readlink(filepath.Join(dir, fd))
			return errors.Is(err, os.ErrNotExist)
		})
	}
	inherited, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	own := pipeName(t, r)
	for _, fd := range inherited {
		if target, _ := os.Readlink(filepath.Join(dir, fd.Name())); target == own && fd.Name() != "5" {
			t.Errorf("the process has inherited the plugin's end of the pipe as descriptor %s", fd.Name())
		}
	}
	result, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", "[ ! -e /proc/self/fd/5 ]"}})
	if err != nil || result.ExitCode != 0 {
		t.Errorf("a command in the task has descriptor 5: %+v, %v", result, err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(line); err != io.EOF {
		t.Errorf("read after the exit of the process: %d bytes, %v, want EOF", n, err)
	}
}

// pipeName returns the name of a pipe in /proc, which is the same for both of its ends.
func pipeName(t *testing.T, f *os.File) string {
	t.Helper()
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return name
}
