package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// The exit status of a process that the mark does not name is known in a cgroup of version 2, although the process has
// left a session leader.
func TestAdoptFindsEndedProcessByItsCgroupV2(t *testing.T) {
	h := cgroupV2Hierarchy(t)
	useCgroupHierarchy(t, h)
	t.Setenv(cgroupMountEnv, h.mountPath)
	k := startKeeper(t)
	s := newStartRequestWithHostCgroup(t)
	p, err := adoptWithDaemon(t, k, s, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := waitExit(t, p); got != exitCodeSeven {
		t.Errorf("exit result %+v, want %+v", got, exitCodeSeven)
	}
	if err := p.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if daemon := parseNumber(t, waitForFile(t, s, "daemon")); !hasProcessEnded(daemon) {
		t.Errorf("Destroy has left process %d of the task", daemon)
	}
	if mark, err := findStartMark(s); mark != nil || err != nil {
		t.Errorf("mark after Destroy, in a cgroup that the host removes: %+v, %v", mark, err)
	}
}

// newStartRequestWithHostCgroup returns the request for a start in a cgroup of version 2 that the host has made.
func newStartRequestWithHostCgroup(t *testing.T) *sdk.StartRequest {
	t.Helper()
	s := newStartRequest(t)
	group := possibleTaskCgroupPaths(s.AllocID, s.Name)[0]
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatal(err)
	}
	s.Resources = &driver.Resources{}
	s.Resources.Linux.CpusetCgroup = group // the mark is found in it wherever version 2 is mounted
	t.Cleanup(func() {
		err := osprocess.Cgroup(group).Kill(context.Background())
		if err := errors.Join(err, osprocess.Cgroup(group).Remove()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// The destroy of an ended start leaves the mark that a later start of its task has on the cgroup.
func TestDestroyKeepsTheMarkOfALaterStart(t *testing.T) {
	useCgroupHierarchy(t, cgroupV2Hierarchy(t))
	t.Setenv("NOMAD_LITE_KEEPER", "/nonexistent") // starts leave a mark only if there is a keeper
	s := newStartRequestWithHostCgroup(t)
	ended := startProcess(t, s, shellCommand("exit 0"))
	waitExit(t, ended)
	later := &sdk.StartRequest{TaskConfig: s.TaskConfig}
	later.ID = filepath.Dir(s.ID) + "/00000001"
	p := startProcess(t, later, shellCommand("sleep 1000"))
	if err := ended.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if mark, err := findStartMark(later); mark == nil || mark.State.PID != p.PID() {
		t.Errorf("mark of the later start: %+v, %v", mark, err)
	}
}

// A start whose plugin process died before the fork is known to have executed nothing, if the keeper has been the parent of the
// plugin process since the mark was written, and no process of the task is left.
func TestAdoptOfAStartWithoutAProcess(t *testing.T) {
	if !hasCgroupsV2() {
		t.Skip("there is no cgroup v2 here")
	}
	const leavesFork = `(until [ -e ended ]; do sleep 0.01; done) & exit 0`
	for _, test := range []struct {
		name, script string
		change       func(*startMarkData)
		otherKeeper  bool
		want         func(error) bool
	}{
		{name: "nothing was forked", script: "exit 0", want: func(err error) bool { return errors.Is(err, sdk.ErrNotExecuted) }},
		{name: "the plugin process had another parent", script: "exit 0", change: func(m *startMarkData) { m.ParentPID = 1 }, want: isStatusUnknown},
		{name: "the cgroup is not that of the process", script: "exit 0", change: func(m *startMarkData) { m.CgroupV2 = "" }, want: isStatusUnknown},
		{name: "the keeper is a later one", script: "exit 0", otherKeeper: true, want: isStatusUnknown},
		{name: "a fork has executed nothing yet", script: leavesFork, want: driver.IsRecoverable},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := startKeeper(t)
			s := newStartRequest(t)
			state := startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand(test.script), WaitForExit: true})
			t.Cleanup(func() {
				if _, err := Sweep(context.Background(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: s.Name}); err != nil {
					t.Error(err)
				}
			})
			waitUntil(t, "the keeper has reaped the process", func() bool {
				_, err := osprocess.LookupID(state.PID)
				return errors.Is(err, os.ErrProcessDone)
			})
			if test.otherKeeper {
				startKeeper(t)
			}
			leaveMark(t, s, func(m *startMarkData) {
				forgetProcess(m)
				m.OldestStartTimeTicks = osprocess.StartTimeNow() + 1 // the mark of a start after that of the process
				if test.otherKeeper {
					m.OldestStartTimeTicks = state.StartTime + 1 // before the start of the other keeper
				}
				if test.change != nil {
					test.change(m)
				}
			})
			if _, err := Adopt(t.Context(), s); !test.want(err) {
				t.Errorf("Adopt returns %v", err)
			}
		})
	}
}

// The plugin process dies while its child waits in execve(2), for the end of a lease on the program. The process is adopted
// after it has executed the program.
func TestAdoptWaitsForExec(t *testing.T) {
	if !hasCgroupsV2() {
		t.Skip("there is no cgroup v2 here")
	}
	k := startKeeper(t)
	s := newStartRequest(t)
	program, err := os.ReadFile("/bin/sleep")
	path := filepath.Join(s.TaskDir(), "sleep")
	if err == nil {
		err = os.WriteFile(path, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	lease, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	if _, err := unix.FcntlInt(lease.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("this file system has no leases: %v", err)
	}
	t.Cleanup(func() {
		if _, err := Sweep(context.Background(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: s.Name}); err != nil {
			t.Error(err)
		}
	})
	plugin, _ := spawnTestPlugin(t, k, testPluginIO{Config: s.TaskConfig, Command: Command{Path: path, Args: []string{"1000"}}})
	waitUntil(t, "the program is to be executed", func() bool {
		held, err := unix.FcntlInt(lease.Fd(), unix.F_GETLEASE, 0)
		return err != nil || held != unix.F_WRLCK
	})
	killTestPlugin(t, plugin)
	if _, err := Adopt(t.Context(), s); !driver.IsRecoverable(err) {
		t.Errorf("before the program was executed, Adopt returns %v", err)
	}
	if _, err := unix.FcntlInt(lease.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	var p *Process
	waitUntil(t, "the process is adopted", func() bool {
		p, err = Adopt(t.Context(), s)
		return !driver.IsRecoverable(err)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID())); got != path {
		t.Errorf("the adopted process executes %q, %v; want %q", got, err, path)
	}
	destroyProcess(t, p)
}

// A process that cannot be forked into its cgroup of version 2 is forked outside of it, and the mark says so.
func TestMarkOfAProcessOutsideItsCgroupV2(t *testing.T) {
	h := hostCgroupHierarchy()
	if h.cgroupVersion != 1 {
		t.Skip("there are no cgroups v1 here")
	}
	t.Setenv("NOMAD_LITE_KEEPER", "/nonexistent") // starts leave a mark only if there is a keeper
	s := newStartRequest(t)
	h.hybridV2Mount = t.TempDir() // not a cgroup
	useCgroupHierarchy(t, h)
	startProcess(t, s, shellCommand("sleep 1000"))
	if mark, err := findStartMark(s); mark == nil || mark.State.PID == 0 || mark.CgroupV2 != "" {
		t.Errorf("mark %+v, %v; want the process and no cgroup", mark, err)
	}
}

func isStatusUnknown(err error) bool {
	return errors.Is(err, ErrExitStatusUnknown) && !errors.Is(err, sdk.ErrNotExecuted) && !driver.IsRecoverable(err)
}
