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

func (p *ProcessWithoutExec) taskEnvID() osprocess.TaskEnvID {
	return osprocess.TaskEnvID{AllocID: p.startRequest.AllocID, Task: p.startRequest.Name}
}

// acquireTaskOwnership makes p the owner of its task, and returns the earlier owner if that
// has exited and was not destroyed. It returns an error if the earlier owner is running. A
// start without an allocation ID or task name, which occurs only in tests of plugin authors,
// has no owner.
func (p *ProcessWithoutExec) acquireTaskOwnership() (earlier *ProcessWithoutExec, err error) {
	if !p.hasAllocAndTaskName() {
		return nil, nil
	}
	taskOwners.Lock()
	defer taskOwners.Unlock()
	earlier = taskOwners.byTask[p.taskEnvID()]
	if earlier != nil && earlier.processID.Alive() {
		return nil, fmt.Errorf("task %q of allocation %s runs already, as process %d", p.startRequest.Name, p.startRequest.AllocID, earlier.processID.PID)
	}
	taskOwners.byTask[p.taskEnvID()] = p
	return earlier, nil
}

func (p *ProcessWithoutExec) hasAllocAndTaskName() bool {
	return p.startRequest.AllocID != "" && p.startRequest.Name != ""
}

func (p *ProcessWithoutExec) isTaskOwner() bool {
	if !p.hasAllocAndTaskName() {
		return true
	}
	taskOwners.Lock()
	defer taskOwners.Unlock()
	return taskOwners.byTask[p.taskEnvID()] == p
}

// releaseTaskOwnership makes restoredOwner the owner of the task again, or leaves the task
// without an owner if restoredOwner is nil. It does nothing if p is not the owner.
func (p *ProcessWithoutExec) releaseTaskOwnership(restoredOwner *ProcessWithoutExec) {
	taskOwners.Lock()
	defer taskOwners.Unlock()
	switch {
	case taskOwners.byTask[p.taskEnvID()] != p:
	case restoredOwner != nil:
		taskOwners.byTask[p.taskEnvID()] = restoredOwner
	default:
		delete(taskOwners.byTask, p.taskEnvID())
	}
}

// killProcessesOfEarlierStart kills the processes that an earlier start of the task has left
// running, for a task without a cgroup: the processes whose environment names the
// task. A search of all processes of the machine takes milliseconds, so one search
// finds the processes of all tasks, and only a task that had running processes in that
// search, or whose earlier process was not destroyed, is searched for again.
func (p *ProcessWithoutExec) killProcessesOfEarlierStart(ctx context.Context, earlier *ProcessWithoutExec) error {
	taskOwners.Lock()
	if taskOwners.tasksWithLeftovers == nil {
		ids, err := osprocess.AllTaskEnvIDs()
		if err != nil {
			taskOwners.Unlock()
			return p.killLeftoverError(err)
		}
		taskOwners.tasksWithLeftovers = ids
	}
	possible := earlier != nil || taskOwners.tasksWithLeftovers[p.taskEnvID()]
	taskOwners.Unlock()
	if !possible {
		return nil
	}
	ended, err := osprocess.EndLeftovers(ctx, p.startRequest.AllocID, p.startRequest.Name)
	if len(ended) > 0 {
		p.logger.Warn("killing what an earlier start has left running", "processes", ended)
	}
	if err != nil {
		return p.killLeftoverError(err)
	}
	taskOwners.Lock()
	defer taskOwners.Unlock()
	delete(taskOwners.tasksWithLeftovers, p.taskEnvID())
	return nil
}

func (p *ProcessWithoutExec) killLeftoverError(err error) error {
	return sdk.Recoverable(fmt.Errorf("end what an earlier start of task %q has left running: %w", p.startRequest.Name, err))
}

// killAllProcesses kills the process and all processes that it has started: its process group and, if p owns
// its task, the processes in the task's cgroup or, without a cgroup, those that have the names of allocation and
// task in their environment.
func (p *ProcessWithoutExec) killAllProcesses(ctx context.Context) error {
	err := p.killProcessGroup()
	switch {
	case !p.isTaskOwner():
	case p.cgroup != nil:
		err = errors.Join(err, p.cgroup.osCgroup().Kill(ctx))
	case p.startRequest.Env["NOMAD_ALLOC_ID"] == p.startRequest.AllocID && p.startRequest.Env["NOMAD_TASK_NAME"] == p.startRequest.Name:
		err = errors.Join(err, osprocess.KillByTaskEnv(ctx, p.startRequest.AllocID, p.startRequest.Name))
	}
	return err
}
