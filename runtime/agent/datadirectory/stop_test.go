package datadirectory

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

var errTestInterrupt = errors.New("interrupt signal received")

// newDirForStop returns a data directory with one allocation's directory and a locked lock file.
func newDirForStop(t *testing.T, allocID string) (dir string, lock *os.File) {
	t.Helper()
	dir = t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o700), os.MkdirAll(filepath.Join(dir, allocDir, allocID), 0o711)); err != nil {
		t.Fatal(err)
	}
	lock, err := lockDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, lock
}

// A Stop with an ended context does not leave a task stopped by SIGSTOP.
func TestInterruptedStopContinuesTasks(t *testing.T) {
	const allocID = "2b7c7c0e-1d0c-4f57-8b1b-0a51a2f4a7a1"
	dir, lock := newDirForStop(t, allocID)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	task := exec.Command("/bin/cat")
	task.Env = []string{"NOMAD_ALLOC_ID=" + allocID, "NOMAD_TASK_NAME=web"}
	in, err := task.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := task.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = task.Process.Kill()
		_ = task.Wait()
	})
	echo := func() {
		t.Helper()
		if _, err := io.WriteString(in, "x\n"); err != nil {
			t.Fatal(err)
		}
		stopped := time.AfterFunc(10*time.Second, func() {
			t.Error("the task does not continue")
			_ = task.Process.Kill()
		})
		defer stopped.Stop()
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	echo() // the process has the task's environment when it executes its program

	var ended []int
	options := StopOptions{KillAllProcesses: true, OnProcessEnd: func(p Process) { ended = append(ended, p.PID) }}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errTestInterrupt)
	if _, err := Stop(ctx, dir, options); !errors.Is(err, errTestInterrupt) || len(ended) > 0 {
		t.Errorf("interrupted: %v, ended %v", err, ended)
	}
	echo()
	if _, err := Stop(t.Context(), dir, options); err != nil || !slices.Equal(ended, []int{task.Process.Pid}) {
		t.Errorf("not interrupted: %v, ended %v", err, ended)
	}
}

// After all processes were killed, the allocations' mount is not needed, unless a task can run in a container.
func TestContainersMayRunAfterStop(t *testing.T) {
	const allocID, otherID = "2b7c7c0e-1d0c-4f57-8b1b-0a51a2f4a7a1", "b3f9a3b0-54f4-4a4b-9d5c-0d8f0a0f5a53"
	dir, lock := newDirForStop(t, allocID)
	defer lock.Close()
	s := openTestStore(t, filepath.Join(dir, store.FileName))
	_, err := s.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutScheduledAllocation(&api.Allocation{ID: allocID, Namespace: "default", JobID: "j", ClientStatus: api.AllocClientStatusRunning})
		tx.PutTask(allocID, "process", record.Fields{StartID: "1"}, &api.TaskState{})
		tx.PutTask(allocID, "container", record.Fields{StartID: "2"}, &api.TaskState{})
		tx.PutTask(allocID, "ended", record.Fields{}, &api.TaskState{})
		return nil
	})
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	keeperDir, err := keeper.OpenOrCreateDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer keeperDir.Close()
	check := func(want bool, tasksWithKilledProcess ...string) {
		t.Helper()
		search, err := newProcessSearch(dir, keeperDir, StopOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stopper := &dataDirStopper{processSearch: search, tasksWithKilledProcess: make(map[osprocess.TaskEnvID]bool)}
		for _, task := range tasksWithKilledProcess {
			stopper.tasksWithKilledProcess[osprocess.TaskEnvID{AllocID: allocID, Task: task}] = true
		}
		if got := stopper.containersMayRun(); got != want {
			t.Errorf("containers may run: %t with processes of %v", got, tasksWithKilledProcess)
		}
	}
	check(true, "process")
	check(false, "process", "container")
	if err := os.Mkdir(filepath.Join(dir, allocDir, otherID), 0o711); err != nil { // the allocation is not in the state
		t.Fatal(err)
	}
	check(true, "process", "container")
}

// Killed tasks' cgroups have no process, and nothing else removes them before the next agent starts.
func TestStopRemovesEmptyCgroups(t *testing.T) {
	const task = "web"
	hierarchy, allocID, otherID := cgroup.Open(cgroup.Options{}), uuid.NewString(), uuid.NewString()
	for _, id := range []string{allocID, otherID} {
		_, err := hierarchy.Make(id, task, 0)
		defer hierarchy.KillAndRemove(id, task)
		if cgroups, _ := osprocess.TaskCgroups(id, task); err != nil || len(cgroups) == 0 {
			t.Skipf("no cgroups can be made here: %v", err)
		}
	}
	dir, lock := newDirForStop(t, allocID)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct{ killAll, wantCgroups bool }{{false, true}, {true, false}} {
		options := StopOptions{KillAllProcesses: o.killAll, OnProcessEnd: func(Process) {}}
		if _, err := Stop(t.Context(), dir, options); err != nil {
			t.Fatal(err)
		}
		if cgroups, err := osprocess.TaskCgroups(allocID, task); err != nil || (len(cgroups) > 0) != o.wantCgroups {
			t.Errorf("KillAllProcesses %t: cgroups %v and error %v, want some: %t", o.killAll, cgroups, err, o.wantCgroups)
		}
	}
	if cgroups, err := osprocess.TaskCgroups(otherID, task); err != nil || len(cgroups) == 0 {
		t.Errorf("cgroups %v and error %v, want those of the allocation of another directory", cgroups, err)
	}
}

// The end of its context ends a waiting Stop, and does not kill the agent.
func TestStopIsInterruptedWhileAgentShutsDown(t *testing.T) {
	dir, lock := newDirForStop(t, "b3f9a3b0-54f4-4a4b-9d5c-0d8f0a0f5a53")
	agent := exec.Command("/bin/sh", "-c", "trap '' TERM; echo ready; exec sleep 1000")
	agent.ExtraFiles = []*os.File{lock}
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	id, err := osprocess.LookupID(agent.Process.Pid)
	if err := errors.Join(err, helperdir.WriteLockOwner(lock, id), lock.Close()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { cancel(errTestInterrupt) })
	_, err = Stop(ctx, dir, StopOptions{KillAllProcesses: true, AgentShutdownTimeout: time.Hour, OnProcessEnd: func(p Process) {
		t.Errorf("ended: %+v", p)
	}})
	if !errors.Is(err, errTestInterrupt) || !id.Alive() {
		t.Errorf("error %v, agent alive: %v", err, id.Alive())
	}
}
