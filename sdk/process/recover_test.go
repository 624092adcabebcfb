package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// exitOnTriggerFileScript is a script that exits with code 7 when a file "go" exists.
const exitOnTriggerFileScript = `until [ -e go ]; do sleep 0.01; done; exit 7`

func createTriggerFile(t *testing.T, s *sdk.StartRequest) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.TaskDir(), "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

var exitCodeSeven = driver.ExitResult{ExitCode: 7}

func TestExitStatusSurvivesThePlugin(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		await  bool // the first plugin process waits for the exit, and does not reap the zombie
		before bool // the task exits before it is recovered
		want   driver.ExitResult
	}{
		"the task ends after it is recovered":                   {exitOnTriggerFileScript, false, false, exitCodeSeven},
		"the task ends while no plugin lives":                   {exitOnTriggerFileScript, false, true, exitCodeSeven},
		"the task ended under a plugin that then died":          {"exit 7", true, false, exitCodeSeven},
		"the task was killed under a plugin that then died":     {"kill -9 $$", true, false, driver.ExitResult{ExitCode: 137, Signal: 9}},
		"the task ended well under a plugin that could not say": {"exit 0", true, false, driver.ExitResult{}},
	} {
		t.Run(name, func(t *testing.T) {
			k := startKeeper(t)
			s := newStartRequest(t)
			state := startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand(test.script), WaitForExit: test.await})
			if test.before {
				createTriggerFile(t, s)
				waitUntil(t, "the task has ended", func() bool { return hasProcessEnded(state.PID) })
			}
			p, err := Recover(t.Context(), s, state)
			if err != nil {
				t.Fatal(err)
			}
			defer destroyProcess(t, p)
			if got, want := p.PID(), state.PID; got != want {
				t.Errorf("recovered process %d, want %d", got, want)
			}
			if !test.before && !test.await {
				createTriggerFile(t, s)
			}
			if got := waitExit(t, p); got != test.want {
				t.Errorf("exit result %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestExitStatusWithoutKeeper(t *testing.T) {
	t.Setenv(keeper.EnvSocket, "")
	s := newStartRequest(t)
	state := startOrphan(t, nil, testPluginIO{Config: s.TaskConfig, Command: shellCommand(exitOnTriggerFileScript)})
	p, err := Recover(t.Context(), s, state)
	if err != nil {
		t.Fatal(err)
	}
	defer destroyProcess(t, p)
	createTriggerFile(t, s)
	// Since Linux 6.15 the exit status can be read through a pidfd; on older
	// kernels it is known only if the test sees the zombie in time.
	if got := waitExit(t, p); got != exitCodeSeven && !errors.Is(got.Err, ErrExitStatusUnknown) {
		t.Errorf("exit result %+v, want exit code 7, or that it is unknown", got)
	} else if got != exitCodeSeven {
		t.Logf("the kernel does not tell: %v", got.Err)
	}
}

func TestUnknownExitStatus(t *testing.T) {
	t.Setenv(keeper.EnvSocket, "")
	// The test is the parent of the orphans, because the init process of the machine may reap them late.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
			t.Error(err)
		}
	}()
	reap := func(pid int) {
		t.Helper()
		waitUntil(t, "the process has ended", func() bool { return hasProcessEnded(pid) })
		if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
			t.Errorf("reap process %d: %v", pid, err)
		}
	}
	s := newStartRequest(t)
	state := startOrphan(t, nil, testPluginIO{Config: s.TaskConfig, Command: shellCommand("sleep 3600 & echo $! >child; " + exitOnTriggerFileScript)})
	child := parseNumber(t, waitForFile(t, s, "child"))
	createTriggerFile(t, s)
	reap(state.PID)
	if _, err := Recover(t.Context(), s, state); !errors.Is(err, ErrExitStatusUnknown) {
		t.Errorf("recovered with %v, want %v", err, ErrExitStatusUnknown)
	}
	reap(child) // what it left running is killed
}

// A cancelled RecoverTask returns no result, and the next host can call it again.
func TestCancelledRecoverReportsNoExitStatus(t *testing.T) {
	ended := exec.Command("/bin/true")
	if err := ended.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := osprocess.LookupID(ended.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = ended.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	state := State{PID: id.PID, StartTime: id.StartTime, BootID: bootID(t), Dir: "/"}
	if _, err := Recover(ctx, newStartRequest(t), state); !errors.Is(err, context.Canceled) || errors.Is(err, ErrExitStatusUnknown) {
		t.Errorf("Recover = %v, want %v", err, context.Canceled)
	}
}

// A plugin without free descriptors cannot find out whether the process has
// ended, or how: it drops neither the process nor its exit status.
func TestRecoverIsRecoverableAfterFDExhaustion(t *testing.T) {
	for name, ends := range map[string]bool{"the process runs": false, "the process has ended": true} {
		t.Run(name, func(t *testing.T) {
			k := startKeeper(t)
			s := newStartRequest(t)
			state := startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand(exitOnTriggerFileScript)})
			if ends {
				createTriggerFile(t, s)
				waitUntil(t, "the task has ended", func() bool { return hasProcessEnded(state.PID) })
			}
			refused := 0
			for free := range 20 {
				restore := processtest.LimitDescriptors(t, free)
				p, err := Recover(t.Context(), s, state)
				restore()
				if err == nil {
					defer destroyProcess(t, p)
					if !p.isTaskOwner() {
						t.Errorf("%d descriptors: what the process leaves running is not ended with it", free)
					}
					if !ends {
						createTriggerFile(t, s)
					}
					if got := waitExit(t, p); got != exitCodeSeven {
						t.Errorf("%d descriptors: exit result %+v, want %+v", free, got, exitCodeSeven)
					}
					break
				}
				refused++
				if !driver.IsRecoverable(err) || errors.Is(err, ErrExitStatusUnknown) {
					t.Fatalf("%d descriptors: %v, want a recoverable error", free, err)
				}
			}
			if refused == 0 || refused == 20 {
				t.Errorf("%d of 20 attempts failed: the test proves nothing", refused)
			}
		})
	}
}

func TestRecoverRejectsOtherProcesses(t *testing.T) {
	stranger := exec.Command("sleep", "3600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer stranger.Wait()
	defer stranger.Process.Kill()
	id, err := osprocess.LookupID(stranger.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	good := State{PID: id.PID, StartTime: id.StartTime, BootID: bootID(t), Dir: "/"}
	for name, change := range map[string]func(*State){
		"the pid is in use again":         func(s *State) { s.StartTime-- },
		"the machine was started again":   func(s *State) { s.BootID = "another" },
		"the state names no process":      func(s *State) { s.PID = 0 },
		"the state names the first one":   func(s *State) { s.PID = 1 },
		"the state is of a negative pid":  func(s *State) { s.PID = -s.PID },
		"the cgroup of the state is gone": func(s *State) { s.StartTime--; s.Cgroup = "/sys/fs/cgroup/none" },
	} {
		t.Run(name, func(t *testing.T) {
			state := good
			change(&state)
			p, err := Recover(t.Context(), newStartRequest(t), state)
			if err == nil {
				t.Errorf("recovered process %d", p.PID())
			}
			if wantUnknown := state.PID > 1; errors.Is(err, ErrExitStatusUnknown) != wantUnknown {
				t.Errorf("recovered with %v, of an unknown exit status: want %v", err, wantUnknown)
			}
			if !id.Alive() {
				t.Fatal("the stranger was killed")
			}
		})
	}
}

func TestRecoverOwnChild(t *testing.T) {
	s := newStartRequest(t)
	first := startProcess(t, s, shellCommand(exitOnTriggerFileScript))
	second, err := Recover(t.Context(), s, first.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	defer second.pidfd.Close()
	createTriggerFile(t, s)
	if got := waitExit(t, second); got != exitCodeSeven {
		t.Errorf("exit result %+v, want %+v", got, exitCodeSeven)
	}
}

func bootID(t *testing.T) string {
	t.Helper()
	id, err := osprocess.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}
