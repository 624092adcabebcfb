package process

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// shellLauncher is a Launcher whose stage is a shell script.
type shellLauncher struct {
	script string
	err    error         // result of Launch.WaitForExec
	block  chan struct{} // Launch.WaitForExec blocks until it is closed; nil means that it does not block
	opened atomic.Int32  // launches that are not closed
}

func (l *shellLauncher) PrepareLaunch(p Program) (*Launch, error) {
	l.opened.Add(1)
	return &Launch{
		Path: "/bin/sh",
		Args: append([]string{"sh", "-c", l.script, p.Path}, p.Args...),
		Env:  append(p.Env, "STAGE=1"),
		WaitForExec: func() error {
			if l.block != nil {
				<-l.block
			}
			return l.err
		},
		Close: func() { l.opened.Add(-1) },
	}, nil
}

func (l *shellLauncher) OpenTerminal(*os.File) (master, slave *os.File, err error) {
	return nil, nil, errors.New("no terminal")
}

// becomesProgram is a stage that executes the program, whose path is $0.
const becomesProgram = `exec "$0" "$@"`

func TestLauncherStartsTaskAndCommands(t *testing.T) {
	l := &shellLauncher{script: becomesProgram}
	s := newStartRequest(t)
	c := shellCommand("echo $STAGE >" + s.TaskDir() + "/out; exec sleep 3600")
	c.Path, c.Launcher = "/bin/sh", l
	p := startProcess(t, s, c)
	if got := waitForFile(t, s, "out"); strings.TrimSpace(got) != "1" {
		t.Errorf("the program has got the variable of the stage as %q", got)
	}
	var out bytes.Buffer
	result, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", "echo command $STAGE; exit 4"}, Stdout: &out})
	if err != nil || result.ExitCode != 4 || out.String() != "command 1\n" {
		t.Errorf("a command: %+v, %v, output %q", result, err, out.String())
	}
	if _, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/true"}, TTY: true}); err == nil || !strings.Contains(err.Error(), "no terminal") {
		t.Errorf("a command with a terminal that cannot be opened: %v", err)
	}
	l.err = os.ErrNotExist
	if result, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sleep", "3600"}}); err != nil || result.ExitCode != exitCodeNotFound {
		t.Errorf("a command that the stage does not find: %+v, %v; want the code %d", result, err, exitCodeNotFound)
	}
	if n := l.opened.Load(); n != 0 {
		t.Errorf("%d launches were not closed", n)
	}
}

// After a failure of the stage, its process is killed and reaped, and the task has no cgroup.
func TestFailedLaunchLeavesNothing(t *testing.T) {
	l := &shellLauncher{script: `echo $$ >"$1/pid"; exec sleep 3600`, err: errors.New("no namespaces"), block: make(chan struct{})}
	s := newStartRequest(t)
	go func() {
		waitForFile(t, s, "pid")
		close(l.block)
	}()
	_, err := Start(t.Context(), s, Command{Path: "x", Args: []string{s.TaskDir()}, Launcher: l})
	if err == nil || err.Error() != "no namespaces" {
		t.Errorf("start: %v", err)
	}
	pid := parseNumber(t, waitForFile(t, s, "pid"))
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("the process of the stage remains: %v", err)
	}
	for _, path := range possibleTaskCgroupPaths(s.AllocID, s.Name) {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s remains", path)
		}
	}
	if n := l.opened.Load(); n != 0 {
		t.Errorf("%d launches were not closed", n)
	}
}

// A stage that hangs is killed when the start is cancelled, with its child processes.
func TestCancelledLaunchIsKilled(t *testing.T) {
	l := &shellLauncher{script: `sleep 3600 & echo $! >"$1/pid"; wait`, err: errors.New("killed"), block: make(chan struct{})}
	s := newStartRequest(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		pid := parseNumber(t, waitForFile(t, s, "pid"))
		cancel()
		waitUntil(t, "the child process is dead", func() bool { return hasProcessEnded(pid) })
		close(l.block)
	}()
	began := time.Now()
	_, err := Start(ctx, s, Command{Path: "x", Args: []string{s.TaskDir()}, Launcher: l})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("start: %v", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the start was cancelled after %v", took)
	}
}
