package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// forEachMarkStorage runs a test with the cgroups of this machine, and without.
func forEachMarkStorage(t *testing.T, test func(*testing.T)) {
	t.Run("with a cgroup", func(t *testing.T) {
		if hostCgroupHierarchy().cgroupVersion == 0 {
			t.Skip(hostCgroupHierarchy().unavailableReason)
		}
		test(t)
	})
	t.Run("without cgroups", func(t *testing.T) {
		useCgroupHierarchy(t, cgroupHierarchy{unavailableReason: "none here"})
		test(t)
	})
}

// noCgroupsEnv makes the plugin of startOrphan, which is another process, start the task without a cgroup.
const noCgroupsEnv = "PROCESS_TEST_NO_CGROUPS"

// leaveMark replaces the mark of a start, as a plugin process leaves it that dies before it writes more.
func leaveMark(t *testing.T, s *sdk.StartRequest, change func(*startMarkData)) {
	t.Helper()
	mark, err := findStartMark(s)
	if err != nil || mark == nil {
		t.Fatalf("mark %+v, %v", mark, err)
	}
	change(mark)
	data, err := hclspec.MarshalState(mark)
	if err != nil {
		t.Fatal(err)
	}
	m := osprocess.StartMark{Forked: mark.State.PID != 0, Data: data}
	if mark.State.Cgroup != "" {
		err = m.WriteToCgroup(mark.State.Cgroup)
	} else {
		var f *os.File
		if f, err = openStartMarkFile(s, os.O_WRONLY|os.O_TRUNC); err == nil {
			err = errors.Join(m.WriteToFile(f), f.Close())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func forgetProcess(m *startMarkData) { m.State.PID, m.State.StartTime = 0, 0 }

func TestAdopt(t *testing.T) {
	for _, test := range []struct {
		name  string
		after func(*testing.T, *sdk.StartRequest) // what happens to the mark and the task before they are adopted
		want  driver.ExitResult
		err   error
	}{
		{"the process lives", func(*testing.T, *sdk.StartRequest) {}, exitCodeSeven, nil},
		{"the process has exited", func(t *testing.T, s *sdk.StartRequest) {
			mark, _ := findStartMark(s)
			createTriggerFile(t, s)
			waitUntil(t, "the task has ended", func() bool { return hasProcessEnded(mark.State.PID) })
		}, exitCodeSeven, nil},
		{"the mark does not name the process, which lives", func(t *testing.T, s *sdk.StartRequest) { leaveMark(t, s, forgetProcess) }, exitCodeSeven, nil},
		{"the mark does not name the process, which has exited", func(t *testing.T, s *sdk.StartRequest) {
			mark, _ := findStartMark(s)
			leaveMark(t, s, forgetProcess)
			createTriggerFile(t, s)
			waitUntil(t, "the task has ended", func() bool { return hasProcessEnded(mark.State.PID) })
		}, driver.ExitResult{}, errors.New("exit status unknown")},
		{"a stage was not released", func(t *testing.T, s *sdk.StartRequest) {
			leaveMark(t, s, func(m *startMarkData) { forgetProcess(m); m.Staged = true })
		}, driver.ExitResult{}, sdk.ErrNotExecuted},
		{"another start", func(t *testing.T, s *sdk.StartRequest) { s.ID = filepath.Dir(s.ID) + "/ffffffff" }, driver.ExitResult{}, sdk.ErrNotExecuted},
	} {
		t.Run(test.name, func(t *testing.T) {
			forEachMarkStorage(t, func(t *testing.T) {
				k := startKeeper(t)
				if hostCgroupHierarchy().cgroupVersion == 0 {
					t.Setenv(noCgroupsEnv, "1")
				}
				s := newStartRequest(t)
				startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand(exitOnTriggerFileScript)})
				t.Cleanup(func() {
					if _, err := Sweep(context.Background(), s.AllocID, s.Name); err != nil {
						t.Error(err)
					}
				})
				test.after(t, s)
				p, err := Adopt(t.Context(), s)
				switch {
				case test.err == nil && err != nil, test.err != nil && err == nil, errors.Is(test.err, sdk.ErrNotExecuted) != errors.Is(err, sdk.ErrNotExecuted), driver.IsRecoverable(err):
					t.Fatalf("Adopt returns %v, want %v", err, test.err)
				case err != nil:
					return
				}
				createTriggerFile(t, s)
				if got := waitExit(t, p); got != test.want {
					t.Errorf("exit result %+v, want %+v", got, test.want)
				}
				if err := p.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
				if mark, err := findStartMark(s); mark != nil || err != nil {
					t.Errorf("mark after Destroy: %+v, %v", mark, err)
				}
			})
		})
	}
}

// An exit status that is unknown stays to be found until the host destroys the start: otherwise a host that dies before
// it has stored the result would start the task again.
func TestAdoptKeepsTheMarkOfALostProcess(t *testing.T) {
	forEachMarkStorage(t, func(t *testing.T) {
		k := startKeeper(t)
		if hostCgroupHierarchy().cgroupVersion == 0 {
			t.Setenv(noCgroupsEnv, "1")
		}
		s := newStartRequest(t)
		state := startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand("exit 3"), WaitForExit: true})
		leaveMark(t, s, func(m *startMarkData) { m.State.PID, m.State.StartTime = state.PID, 1 }) // a process whose exit no process has seen
		for range 2 {
			if _, err := Adopt(t.Context(), s); err == nil || errors.Is(err, sdk.ErrNotExecuted) || driver.IsRecoverable(err) {
				t.Errorf("Adopt returns %v", err)
			}
		}
		if _, err := Sweep(t.Context(), s.AllocID, s.Name); err != nil {
			t.Error(err)
		}
	})
}

// Under Nomad, which has no keeper, no mark is left.
func TestNoMarkWithoutKeeper(t *testing.T) {
	t.Setenv("NOMAD_LITE_KEEPER", "")
	s := newStartRequest(t)
	startProcess(t, s, shellCommand("sleep 1000"))
	if mark, err := findStartMark(s); mark != nil || err != nil {
		t.Errorf("mark %+v, %v", mark, err)
	}
}

// A mark that cannot be read is a mark: the start counts as executed, and the host does not ask for ever.
func TestAdoptWithUnreadableMark(t *testing.T) {
	for name, damage := range map[string]func(*sdk.StartRequest, string) error{
		"unknown prefix": func(_ *sdk.StartRequest, file string) error { return os.WriteFile(file, []byte("x"), 0o600) },
		"cut off": func(_ *sdk.StartRequest, file string) error {
			return os.WriteFile(file, []byte("forked   \x84"), 0o600)
		},
		"no file of a start": func(_ *sdk.StartRequest, file string) error { return os.Symlink("/etc/passwd", file) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStartRequest(t)
				if err := damage(s, filepath.Join(s.TaskDir(), ".start-00000000")); err != nil {
					t.Fatal(err)
				}
				if _, err := Adopt(t.Context(), s); err == nil || errors.Is(err, sdk.ErrNotExecuted) || driver.IsRecoverable(err) {
					t.Errorf("Adopt returns %v, want an unknown exit status", err)
				}
			})
		})
	}
}

// Without descriptors, it is unknown whether there is a mark.
func TestAdoptWithoutDescriptors(t *testing.T) {
	s := newStartRequest(t)
	restore := processtest.LimitDescriptors(t, 0)
	_, err := Adopt(t.Context(), s)
	restore()
	if !driver.IsRecoverable(err) {
		t.Errorf("Adopt returns %v, want a recoverable error", err)
	}
}

// An adopted process that the driver cannot make a task of is neither lost nor kept from a later call.
func TestAdoptTaskKeepsTheProcessAfterAnError(t *testing.T) {
	k := startKeeper(t)
	s := newStartRequest(t)
	startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand(exitOnTriggerFileScript)})
	t.Cleanup(func() {
		if _, err := Sweep(context.Background(), s.AllocID, s.Name); err != nil {
			t.Error(err)
		}
	})
	denied := errors.New("denied user")
	var core *Core
	_, err := AdoptTask(t.Context(), s, func(p *Core) (*Process, error) {
		core = p
		return nil, denied
	})
	if !errors.Is(err, denied) || !driver.IsRecoverable(err) {
		t.Fatalf("AdoptTask returns %v, want a recoverable %v", err, denied)
	}
	if core.isTaskOwner() || core.pidfd != nil && core.pidfd.Signal(unix.SIGKILL) == nil {
		t.Error("the process is not released")
	}
	p, err := AdoptTask(t.Context(), s, func(p *Core) (*Process, error) { return &Process{p}, nil })
	if err != nil {
		t.Fatal(err)
	}
	createTriggerFile(t, s)
	if got := waitExit(t, p); got != exitCodeSeven {
		t.Errorf("exit result %+v, want %+v", got, exitCodeSeven)
	}
	if err := p.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
