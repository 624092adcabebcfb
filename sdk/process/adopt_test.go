package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/internal/startmark"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
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
	m := startmark.Mark{Forked: mark.State.PID != 0, Data: data}
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

// killMarked kills the process that the mark of a start names, and returns when it has ended.
func killMarked(t *testing.T, s *sdk.StartRequest) {
	t.Helper()
	mark, err := findStartMark(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(-mark.State.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the process has ended", func() bool { return hasProcessEnded(mark.State.PID) })
}

// cgroupMountEnv makes the plugin of startOrphan use the cgroups that are mounted at this path.
const cgroupMountEnv = "PROCESS_TEST_CGROUP_MOUNT"

// leaveDaemonScript is a script that starts a session leader, which outlives it, and exits with code 7 when a file "go"
// exists. Before that, another session leader has ended.
const leaveDaemonScript = `(setsid true &); (setsid sh -c 'echo $$ >daemon; exec sleep 3600' &); until [ -s daemon ]; do sleep 0.01; done; ` + exitOnTriggerFileScript

func forgetProcess(m *startMarkData) { m.State.PID, m.State.StartTime = 0, 0 }

// hasCgroupsV2 reports whether tasks have a cgroup of version 2 on this machine, in which the exit status of an ended process
// is known although its mark does not name it.
func hasCgroupsV2() bool {
	h := hostCgroupHierarchy()
	return h.cgroupVersion == 2 || h.hybridV2Mount != ""
}

func TestAdopt(t *testing.T) {
	for _, test := range []struct {
		name  string
		after func(*testing.T, *sdk.StartRequest) // what happens to the mark and the task before they are adopted
		want  driver.ExitResult
		err   error

		knownWithCgroupV2 bool // the exit status is known with hasCgroupsV2
	}{
		{"the process lives", func(*testing.T, *sdk.StartRequest) {}, exitCodeSeven, nil, false},
		{"the process has exited", func(t *testing.T, s *sdk.StartRequest) {
			mark, _ := findStartMark(s)
			createTriggerFile(t, s)
			waitUntil(t, "the task has ended", func() bool { return hasProcessEnded(mark.State.PID) })
		}, exitCodeSeven, nil, false},
		{"the mark does not name the process, which lives", func(t *testing.T, s *sdk.StartRequest) { leaveMark(t, s, forgetProcess) }, exitCodeSeven, nil, false},
		{"the mark does not name the process, which has exited", func(t *testing.T, s *sdk.StartRequest) {
			mark, _ := findStartMark(s)
			leaveMark(t, s, forgetProcess)
			createTriggerFile(t, s)
			waitUntil(t, "the task has ended", func() bool { return hasProcessEnded(mark.State.PID) })
		}, driver.ExitResult{}, errors.New("exit status unknown"), true},
		{"a stage was not released", func(t *testing.T, s *sdk.StartRequest) {
			leaveMark(t, s, func(m *startMarkData) { forgetProcess(m); m.StageWaitsForMark = true })
		}, driver.ExitResult{}, sdk.ErrNotExecuted, false},
		{"a stage was released, and has ended", func(t *testing.T, s *sdk.StartRequest) {
			mark, _ := findStartMark(s)
			leaveMark(t, s, func(m *startMarkData) { m.StageWaitsForMark = true })
			createTriggerFile(t, s)
			waitUntil(t, "the task has ended", func() bool { return hasProcessEnded(mark.State.PID) })
		}, exitCodeSeven, nil, false},
		{"a stage was released, and was killed", func(t *testing.T, s *sdk.StartRequest) {
			leaveMark(t, s, func(m *startMarkData) { m.StageWaitsForMark = true })
			killMarked(t, s)
		}, driver.ExitResult{ExitCode: 137, Signal: 9}, nil, false},
		{"another start", func(t *testing.T, s *sdk.StartRequest) { s.ID = filepath.Dir(s.ID) + "/ffffffff" }, driver.ExitResult{}, sdk.ErrNotExecuted, false},
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
					if _, err := Sweep(context.Background(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: s.Name}); err != nil {
						t.Error(err)
					}
				})
				want, wantErr := test.want, test.err
				if test.knownWithCgroupV2 && hasCgroupsV2() {
					want, wantErr = exitCodeSeven, nil
				}
				test.after(t, s)
				p, err := Adopt(t.Context(), s)
				switch {
				case wantErr == nil && err != nil, wantErr != nil && err == nil, errors.Is(wantErr, sdk.ErrNotExecuted) != errors.Is(err, sdk.ErrNotExecuted), driver.IsRecoverable(err):
					t.Fatalf("Adopt returns %v, want %v", err, wantErr)
				case err != nil:
					return
				}
				createTriggerFile(t, s)
				if got := waitExit(t, p); got != want {
					t.Errorf("exit result %+v, want %+v", got, want)
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

// adoptWithDaemon starts a task with leaveDaemonScript, and adopts it by a mark that does not name its process. If exited
// is true, the process has exited before, and has left the daemon.
func adoptWithDaemon(t *testing.T, k *keeper.Client, s *sdk.StartRequest, exited bool) (*Process, error) {
	t.Helper()
	state := startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand(leaveDaemonScript)})
	t.Cleanup(func() {
		if _, err := Sweep(context.Background(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: s.Name}); err != nil {
			t.Error(err)
		}
	})
	waitForFile(t, s, "daemon")
	leaveMark(t, s, forgetProcess)
	if exited {
		createTriggerFile(t, s)
		waitUntil(t, "the task has ended", func() bool { return hasProcessEnded(state.PID) })
	}
	return Adopt(t.Context(), s)
}

// A session leader that a task has left running is not adopted as the process of the task.
func TestAdoptTakesNoDaemonForTheTask(t *testing.T) {
	forEachMarkStorage(t, func(t *testing.T) {
		k := startKeeper(t)
		if hostCgroupHierarchy().cgroupVersion == 0 {
			t.Setenv(noCgroupsEnv, "1")
		}
		s := newStartRequest(t)
		p, err := adoptWithDaemon(t, k, s, true)
		if hasCgroupsV2() { // the ended process is adopted, whose exit status is known
			if err != nil {
				t.Fatal(err)
			}
			if got := waitExit(t, p); got != exitCodeSeven {
				t.Errorf("exit result %+v, want %+v", got, exitCodeSeven)
			}
			destroyProcess(t, p)
		} else if err == nil {
			t.Errorf("process %d was adopted, the daemon is %s", p.PID(), waitForFile(t, s, "daemon"))
			destroyProcess(t, p)
		} else if errors.Is(err, sdk.ErrNotExecuted) || driver.IsRecoverable(err) {
			t.Errorf("Adopt returns %v, want an unknown exit status", err)
		}

		s = newStartRequest(t)
		if p, err = adoptWithDaemon(t, k, s, false); err != nil {
			t.Fatalf("adopt a running process that has started session leaders: %v", err)
		}
		createTriggerFile(t, s)
		if got := waitExit(t, p); got != exitCodeSeven {
			t.Errorf("exit result %+v, want %+v", got, exitCodeSeven)
		}
		destroyProcess(t, p)
	})
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
			taskOwners.Lock()
			owner := taskOwners.byTask[osprocess.TaskEnvID{AllocID: s.AllocID, Task: s.Name}]
			taskOwners.Unlock()
			if owner != nil {
				t.Errorf("process %d, which is lost, is the owner of the task", owner.processID.PID)
			}
		}
		if _, err := Sweep(t.Context(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: s.Name}); err != nil {
			t.Error(err)
		}
	})
}

// What is left of a start that has executed nothing ends before the host starts the task again, and a mark in a file is removed.
func TestAdoptEndsWhatHasExecutedNothing(t *testing.T) {
	forEachMarkStorage(t, func(t *testing.T) {
		k := startKeeper(t)
		if hostCgroupHierarchy().cgroupVersion == 0 {
			t.Setenv(noCgroupsEnv, "1")
		}
		s := newStartRequest(t)
		state := startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand(exitOnTriggerFileScript)})
		t.Cleanup(func() {
			if _, err := Sweep(context.Background(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: s.Name}); err != nil {
				t.Error(err)
			}
		})
		leaveMark(t, s, func(m *startMarkData) { forgetProcess(m); m.StageWaitsForMark = true })
		if _, err := Adopt(t.Context(), s); !errors.Is(err, sdk.ErrNotExecuted) {
			t.Errorf("Adopt returns %v", err)
		}
		if !hasProcessEnded(state.PID) {
			t.Errorf("process %d of the start is left", state.PID)
		}
		if f, err := openStartMarkFile(s, os.O_RDONLY); !errors.Is(err, os.ErrNotExist) {
			f.Close()
			t.Errorf("the file with the mark is left: %v", err)
		}
	})
}

// Adopt rejects a process that is older than the start's mark, whether the process runs or has ended.
func TestProcessesOlderThanTheMark(t *testing.T) {
	k := startKeeper(t)
	s := newStartRequest(t)
	ended := startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand("exit 0"), WaitForExit: true})
	waitUntil(t, "the keeper has reaped the process", func() bool {
		_, err := osprocess.LookupID(ended.PID)
		return errors.Is(err, os.ErrProcessDone)
	})
	p := startProcess(t, s, shellCommand("sleep 1000"))
	for age, want := range map[uint64]bool{0: true, 1: false} {
		leaders, _, err := findSessionLeaders(s, &startMarkData{OldestStartTimeTicks: p.processID.StartTime + age})
		if got := slices.ContainsFunc(leaders, func(l taskProcess) bool { return l.ID == p.processID }); got != want || err != nil {
			t.Errorf("%d ticks before the mark: the process is found: %t, %v", age, got, err)
		}
	}
	for lastPID, want := range map[int]bool{0: true, ended.PID - 1: true, ended.PID: false} {
		leaders, _, err := findEndedSessionLeaders(t.Context(), &startMarkData{OldestStartTimeTicks: ended.StartTime, LastPID: lastPID})
		if got := slices.ContainsFunc(leaders, func(l taskProcess) bool { return l.PID == ended.PID }); got != want || err != nil {
			t.Errorf("in the tick of the mark, after the pid %d: the process %d is found: %t, %v", lastPID, ended.PID, got, err)
		}
	}
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
		if _, err := Sweep(context.Background(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: s.Name}); err != nil {
			t.Error(err)
		}
	})
	denied := errors.New("denied user")
	var adopted *ProcessWithoutExec
	_, err := AdoptTask(t.Context(), s, func(p *ProcessWithoutExec) (*Process, error) {
		adopted = p
		return nil, denied
	})
	if !errors.Is(err, denied) || !driver.IsRecoverable(err) {
		t.Fatalf("AdoptTask returns %v, want a recoverable %v", err, denied)
	}
	if adopted.isTaskOwner() || adopted.pidfd != nil && adopted.pidfd.Signal(unix.SIGKILL) == nil {
		t.Error("the process is not released")
	}
	p, err := AdoptTask(t.Context(), s, func(p *ProcessWithoutExec) (*Process, error) { return &Process{p}, nil })
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

// The mark of a plugin process that was in another cgroup is found.
func TestMarkInAnotherCgroup(t *testing.T) {
	if hostCgroupHierarchy().cgroupVersion == 0 {
		t.Skip(hostCgroupHierarchy().unavailableReason)
	}
	t.Setenv("NOMAD_LITE_KEEPER", "/nonexistent") // starts leave a mark only if there is a keeper
	s := newStartRequest(t)
	p := startProcess(t, s, shellCommand("sleep 1000"))
	if _, err := os.Stat(filepath.Join(s.TaskDir(), ".start-00000000")); !errors.Is(err, os.ErrNotExist) {
		t.Skipf("the cgroups of this machine have no attributes: %v", err)
	}
	useCgroupHierarchy(t, cgroupHierarchy{unavailableReason: "none for this plugin process"})
	if mark, err := findStartMark(s); mark == nil || mark.State.PID != p.PID() {
		t.Errorf("mark %+v, %v", mark, err)
	}
}

// Few starts have a mark without a process at one time. A fork that hangs does not prevent others for ever.
func TestMarkWaitsForItsFork(t *testing.T) {
	t.Setenv("NOMAD_LITE_KEEPER", "/nonexistent")
	for range cap(forkSlots) {
		forkSlots <- struct{}{}
	}
	t.Cleanup(func() {
		for range cap(forkSlots) {
			<-forkSlots
		}
	})
	s := newStartRequest(t)
	ctx, cancel := context.WithTimeout(t.Context(), forkSlotTimeout/4)
	defer cancel()
	if p, err := Start(ctx, s, shellCommand("sleep 1000")); err == nil {
		t.Error("the start has not waited for a fork slot")
		destroyProcess(t, p)
	} else if !driver.IsRecoverable(err) {
		t.Errorf("Start returns %v, want a recoverable error", err)
	}
	if mark, err := findStartMark(s); mark != nil || err != nil {
		t.Errorf("mark %+v, %v", mark, err)
	}
	startProcess(t, s, shellCommand("sleep 1000"))
}

// markReadingLauncher is a shellLauncher whose stages wait for their mark. It records the mark before the fork, and at the release.
type markReadingLauncher struct {
	shellLauncher
	start             *sdk.StartRequest
	prepared, forked  *startMarkData
	stageIgnoresMarks bool
}

func (l *markReadingLauncher) PrepareLaunch(p Program) (*Launch, error) {
	l.prepared, _ = findStartMark(l.start)
	launch, err := l.shellLauncher.PrepareLaunch(p)
	if !l.stageIgnoresMarks {
		launch.ReleaseStage = func() { l.forked, _ = findStartMark(l.start) }
	}
	return launch, err
}

// The mark of a start with a stage says at each time whether the program can have been executed.
func TestMarkOfAStage(t *testing.T) {
	forEachMarkStorage(t, func(t *testing.T) {
		t.Setenv("NOMAD_LITE_KEEPER", "/nonexistent")
		s := newStartRequest(t)
		l := &markReadingLauncher{shellLauncher: shellLauncher{script: becomesProgram}, start: s}
		p := startProcess(t, s, Command{Path: "/bin/sleep", Args: []string{"1000"}, Launcher: l})
		for name, m := range map[string]struct {
			mark *startMarkData
			pid  int
		}{"before the fork": {l.prepared, 0}, "at the release": {l.forked, p.PID()}} {
			if m.mark == nil || m.mark.State.PID != m.pid || !m.mark.StageWaitsForMark {
				t.Errorf("mark %s: %+v", name, m.mark)
			}
			if m.mark != nil && (m.mark.OldestStartTimeTicks == 0 || m.mark.LastPID == 0 || m.mark.ParentPID != os.Getppid()) {
				t.Errorf("mark %s: %+v, does not limit which process is that of the start", name, m.mark)
			}
		}

		other := newStartRequest(t)
		l = &markReadingLauncher{shellLauncher: shellLauncher{script: becomesProgram}, start: other, stageIgnoresMarks: true}
		startProcess(t, other, Command{Path: "/bin/sleep", Args: []string{"1000"}, Launcher: l})
		if mark, err := findStartMark(other); mark == nil || mark.StageWaitsForMark {
			t.Errorf("mark of a stage that does not wait for it: %+v, %v", mark, err)
		}
	})
}
