package process

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// taskOwners has the process of the latest start of each task, until that start is destroyed. All starts of a
// task have the same cgroup, and the same allocation and task name in their environment: only the owner kills
// processes by these, so that cleanup after an earlier start does not kill the process of a later start.
var taskOwners = struct {
	sync.Mutex
	byTask map[osprocess.TaskEnvID]*ProcessWithoutExec

	// tasksWithLeftovers are the tasks that had running processes when this plugin
	// process first searched for such processes; nil before the search.
	tasksWithLeftovers map[osprocess.TaskEnvID]bool
}{byTask: map[osprocess.TaskEnvID]*ProcessWithoutExec{}}

func (co *ProcessWithoutExec) taskEnvID() osprocess.TaskEnvID {
	return osprocess.TaskEnvID{AllocID: co.startRequest.AllocID, Task: co.startRequest.Name}
}

// acquireTaskOwnership makes co the owner of its task, and returns the earlier owner if that
// has exited and was not destroyed. It returns an error if the earlier owner is running. A
// start without an allocation ID or task name, which occurs only in tests of plugin authors,
// has no owner.
func (co *ProcessWithoutExec) acquireTaskOwnership() (earlier *ProcessWithoutExec, err error) {
	if !co.hasAllocAndTaskName() {
		return nil, nil
	}
	taskOwners.Lock()
	defer taskOwners.Unlock()
	earlier = taskOwners.byTask[co.taskEnvID()]
	if earlier != nil && earlier.processID.Alive() {
		return nil, fmt.Errorf("task %q of allocation %s runs already, as process %d", co.startRequest.Name, co.startRequest.AllocID, earlier.processID.PID)
	}
	taskOwners.byTask[co.taskEnvID()] = co
	return earlier, nil
}

func (co *ProcessWithoutExec) hasAllocAndTaskName() bool {
	return co.startRequest.AllocID != "" && co.startRequest.Name != ""
}

func (co *ProcessWithoutExec) isTaskOwner() bool {
	if !co.hasAllocAndTaskName() {
		return true
	}
	taskOwners.Lock()
	defer taskOwners.Unlock()
	return taskOwners.byTask[co.taskEnvID()] == co
}

// releaseTaskOwnership makes restoredOwner the owner of the task again, or leaves the task
// without an owner if restoredOwner is nil. It does nothing if co is not the owner.
func (co *ProcessWithoutExec) releaseTaskOwnership(restoredOwner *ProcessWithoutExec) {
	taskOwners.Lock()
	defer taskOwners.Unlock()
	switch {
	case taskOwners.byTask[co.taskEnvID()] != co:
	case restoredOwner != nil:
		taskOwners.byTask[co.taskEnvID()] = restoredOwner
	default:
		delete(taskOwners.byTask, co.taskEnvID())
	}
}

// killProcessesOfEarlierStart kills the processes that an earlier start of the task has left
// running, for a task without a cgroup: the processes whose environment names the
// task. A search of all processes of the machine takes milliseconds, so one search
// finds the processes of all tasks, and only a task that had running processes in that
// search, or whose earlier process was not destroyed, is searched for again.
func (co *ProcessWithoutExec) killProcessesOfEarlierStart(ctx context.Context, earlier *ProcessWithoutExec) error {
	taskOwners.Lock()
	if taskOwners.tasksWithLeftovers == nil {
		ids, err := osprocess.AllTaskEnvIDs()
		if err != nil {
			taskOwners.Unlock()
			return co.killLeftoverError(err)
		}
		taskOwners.tasksWithLeftovers = ids
	}
	possible := earlier != nil || taskOwners.tasksWithLeftovers[co.taskEnvID()]
	taskOwners.Unlock()
	if !possible {
		return nil
	}
	ended, err := osprocess.EndLeftovers(ctx, co.startRequest.AllocID, co.startRequest.Name)
	if len(ended) > 0 {
		co.logger.Warn("killing what an earlier start has left running", "processes", ended)
	}
	if err != nil {
		return co.killLeftoverError(err)
	}
	taskOwners.Lock()
	defer taskOwners.Unlock()
	delete(taskOwners.tasksWithLeftovers, co.taskEnvID())
	return nil
}

func (co *ProcessWithoutExec) killLeftoverError(err error) error {
	return sdk.Recoverable(fmt.Errorf("end what an earlier start of task %q has left running: %w", co.startRequest.Name, err))
}

// killAllProcesses kills the process and all processes that it has started: its process group and, if co owns
// its task, the processes in the task's cgroup or, without a cgroup, those that have the names of allocation and
// task in their environment.
func (co *ProcessWithoutExec) killAllProcesses(ctx context.Context) error {
	err := co.killProcessGroup()
	switch {
	case !co.isTaskOwner():
	case co.cgroup != nil:
		err = errors.Join(err, co.cgroup.osCgroup().Kill(ctx))
	case co.startRequest.Env["NOMAD_ALLOC_ID"] == co.startRequest.AllocID && co.startRequest.Env["NOMAD_TASK_NAME"] == co.startRequest.Name:
		err = errors.Join(err, osprocess.KillByTaskEnv(ctx, co.startRequest.AllocID, co.startRequest.Name))
	}
	return err
}
