package datadirectory

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// startTaskProcess starts a process that the test kills at its end.
func startTaskProcess(t *testing.T, attr *syscall.SysProcAttr, env ...string) osprocess.ID {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.Env, cmd.SysProcAttr = env, attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	// The environment is empty for a short time after execve.
	for deadline := time.Now().Add(time.Minute); len(env) > 0; time.Sleep(time.Millisecond) {
		text, err := osprocess.ReadEnv(cmd.Process.Pid)
		if err == nil && len(text) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the process has no environment")
		}
	}
	id, err := osprocess.LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// moveToTaskCgroup moves a process to a task's new cgroup.
func moveToTaskCgroup(t *testing.T, allocID, task string, p osprocess.ID) {
	t.Helper()
	dir := filepath.Join(osprocess.CgroupMount, "freezer/nomad", allocID+"."+task)
	if version, base, _ := osprocess.FindCgroups(osprocess.CgroupMount); version == 2 {
		dir = filepath.Join(base, "nomad.slice/share.slice", allocID+"."+task+".scope")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skipf("no cgroups can be made here: %v", err)
	}
	t.Cleanup(func() {
		_ = p.KillAndWait(t.Context()) // it has ended if the test has passed
		_ = osprocess.Cgroup(dir).Remove()
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(p.PID)), 0); err != nil {
		t.Fatal(err)
	}
}

// putRunningTasks stores a running allocation with a task for each driver, named like the driver.
func putRunningTasks(t *testing.T, dir, allocID string, handles map[string]*driver.Handle) {
	t.Helper()
	group := &api.TaskGroup{Name: new("g"), Count: new(1)}
	for name := range handles {
		group.Tasks = append(group.Tasks, &api.Task{Name: name, Driver: name})
	}
	job := &api.Job{ID: new("j" + allocID), Name: new("j"), Namespace: new("default"), Version: new(uint64(0)), TaskGroups: []*api.TaskGroup{group}}
	model.Canonicalize(job)
	s := openTestStore(t, filepath.Join(dir, store.FileName))
	boot, err := osprocess.BootID()
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.BootIDName, boot)
		tx.PutJobAndVersion(job)
		tx.PutScheduledAllocation(&api.Allocation{ID: allocID, Namespace: "default", JobID: *job.ID, Job: job, TaskGroup: "g", ClientStatus: api.AllocClientStatusRunning})
		for name, handle := range handles {
			tx.PutTask(allocID, name, record.Fields{StartID: "1", Handle: handle}, &api.TaskState{})
		}
		return nil
	})
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
}

// stopAll kills all processes in a data directory, and returns the pids of the killed ones.
func stopAll(t *testing.T, dir string, o StopOptions) (pids []int, remaining *RemainingAfterStop) {
	t.Helper()
	o.KillAllProcesses = true
	o.OnProcessEnd = func(p Process) { pids = append(pids, p.PID) }
	remaining, err := Stop(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return pids, remaining
}

// If a task's environment does not name it, Stop finds its processes by cgroup, and by the recorded main process and its session.
func TestStopKillsTasksWithoutEnvironment(t *testing.T) {
	allocID := uuid.NewString()
	dir, lock := newDirForStop(t, allocID)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	recorded := startTaskProcess(t, &syscall.SysProcAttr{Setsid: true})
	inCgroup := startTaskProcess(t, &syscall.SysProcAttr{Setsid: true})
	moveToTaskCgroup(t, allocID, "process", inCgroup)
	putRunningTasks(t, dir, allocID, map[string]*driver.Handle{"process": {Config: &driver.TaskConfig{}, DriverState: []byte("state")}})
	pids, remaining := stopAll(t, dir, StopOptions{
		IsHostProcessDriver: func(driver string) bool { return driver == "process" },
		DecodeTaskProcess: func(driver string, driverState []byte) (TaskProcess, bool) {
			return TaskProcess{ID: recorded}, driver == "process" && string(driverState) == "state"
		},
	})
	slices.Sort(pids)
	if want := []int{recorded.PID, inCgroup.PID}; !slices.Equal(pids, want) || len(remaining.AllocIDsWithoutProcess) > 0 {
		t.Errorf("killed %v, want %v; remaining %+v", pids, want, remaining)
	}
}

// Only an allocation with a task that is not a process of this machine may still run if no process was found.
func TestStopNamesContainersOnly(t *testing.T) {
	process, container := uuid.NewString(), uuid.NewString()
	dir, lock := newDirForStop(t, process)
	if err := errors.Join(lock.Close(), os.Mkdir(filepath.Join(dir, allocDir, container), 0o711)); err != nil {
		t.Fatal(err)
	}
	putRunningTasks(t, dir, process, map[string]*driver.Handle{"process": nil})
	putRunningTasks(t, dir, container, map[string]*driver.Handle{"container": nil})
	_, remaining := stopAll(t, dir, StopOptions{IsHostProcessDriver: func(driver string) bool { return driver == "process" }})
	if !slices.Equal(remaining.AllocIDsWithoutProcess, []string{container}) {
		t.Errorf("may still run: %q, want %q", remaining.AllocIDsWithoutProcess, container)
	}
}

// Another account can start a process with a task's environment. Stop neither kills nor names it.
func TestStopLeavesForgedProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process as another user")
	}
	allocID := uuid.NewString()
	dir, lock := newDirForStop(t, allocID)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	forged := startTaskProcess(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4321, Gid: 4321}}, "NOMAD_ALLOC_ID="+allocID, "NOMAD_TASK_NAME=web")
	pids, remaining := stopAll(t, dir, StopOptions{})
	if len(pids) > 0 || len(remaining.Processes) > 0 || !forged.Alive() {
		t.Errorf("killed %v, remaining %+v, forged process alive: %t", pids, remaining, forged.Alive())
	}
}

// The number of passes over the machine's processes does not depend on the number of allocations.
func TestStopSearchesOnceForAllTasks(t *testing.T) {
	passes := 0
	t.Cleanup(func() { findTaskProcesses = osprocess.FindTaskProcesses })
	findTaskProcesses = func(s osprocess.TaskSearch) (map[osprocess.TaskEnvID][]osprocess.ID, error) {
		passes++
		return osprocess.FindTaskProcesses(s)
	}
	for _, count := range []int{1, 10} {
		dir, lock := newDirForStop(t, uuid.NewString())
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
		var want []int
		for range count {
			allocID := uuid.NewString()
			if err := os.Mkdir(filepath.Join(dir, allocDir, allocID), 0o711); err != nil {
				t.Fatal(err)
			}
			want = append(want, startTaskProcess(t, nil, "NOMAD_ALLOC_ID="+allocID, "NOMAD_TASK_NAME=web").PID)
		}
		passes = 0
		pids, _ := stopAll(t, dir, StopOptions{})
		slices.Sort(pids)
		slices.Sort(want)
		// One pass finds the tasks, one finds no process, and one looks for what remains.
		if !slices.Equal(pids, want) || passes != 3 {
			t.Errorf("%d tasks: killed %v, want %v; %d passes, want 3", count, pids, want, passes)
		}
	}
}
