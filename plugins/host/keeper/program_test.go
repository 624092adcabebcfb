package keeper

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/confine"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// undumpableMain is a helper process that is not dumpable: it writes a line, and waits to be killed.
func undumpableMain() int {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	time.Sleep(time.Hour) // the Go runtime ends a program whose only goroutine waits for nothing
	return 0
}

// openHeldProgram returns the descriptor of the program of a process that the keeper holds.
func openHeldProgram(t *testing.T, c *Client, p osprocess.ID) (*os.File, error) {
	t.Helper()
	l, err := c.conns.WaitForConn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	resp, fds, err := l.call(t.Context(), &keeperwire.Request{Op: keeperwire.OpGetProgram, Process: p})
	if err == nil {
		err = resp.Err()
	}
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		t.Fatalf("%d descriptors", len(fds))
	}
	f := os.NewFile(uintptr(fds[0]), "program")
	t.Cleanup(func() { f.Close() })
	return f, nil
}

// expectHeldProgram checks that the keeper holds the program of a process, which is the file at path.
func expectHeldProgram(t *testing.T, c *Client, p osprocess.ID, path string) {
	t.Helper()
	want, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	held, err := openHeldProgram(t, c, p)
	if err != nil {
		t.Errorf("program of process %d: %v", p.PID, err)
		return
	}
	if same, err := osprocess.SameContent(held, want); !same || err != nil {
		t.Errorf("program of process %d is another than %s: %v", p.PID, path, err)
	}
}

// An agent that may not read the programs of processes that are not dumpable compares those that the keeper holds.
func TestSameExecutableWithoutTracing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, whose processes are not dumpable")
	}
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	r, w := newPipe(t)
	p, err := c.Spawn(t.Context(), Command{Name: "helper", Path: "/proc/self/exe", Args: []string{"x", "undumpable"}, Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := io.ReadFull(r, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	other, err := os.Open("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()

	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread is never unlocked, so that it ends with the goroutine
		done <- func() error {
			if err := confine.KeepCapabilities(unix.CAP_DAC_OVERRIDE); err != nil {
				return err
			}
			if _, err := p.SameExecutable(own); !errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("the program of a process that is not dumpable can be read: %v", err)
			}
			if same, err := c.SameExecutable(t.Context(), p, own); !same || err != nil {
				return fmt.Errorf("own program: %v, %v", same, err)
			}
			if same, err := c.SameExecutable(t.Context(), p, other); same || err != nil {
				return fmt.Errorf("another program: %v, %v", same, err)
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	expectHeldProgram(t, c, c.Status().KeeperProcess, "/proc/self/exe")
	if err := p.KillAndWait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := openHeldProgram(t, c, p); !errors.Is(err, ErrFDNotStored) {
		t.Errorf("program of a process that has ended: %v, want %v", err, ErrFDNotStored)
	}
}
