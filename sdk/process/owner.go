package process

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// taskOwners has the latest process of each task, until it is destroyed. All starts of a
// task have the same cgroup, and the same allocation and task name in their environment:
// cleanup after an earlier start must not kill the process of a later start.
var taskOwners = struct {
	sync.Mutex
	m map[osprocess.TaskEnvID]*Core

	// leftovers are the tasks that had running processes when this plugin
	// process first searched for them. It is nil before the search.
	leftovers map[osprocess.TaskEnvID]bool
}{m: map[osprocess.TaskEnvID]*Core{}}

func (p *Core) taskKey() osprocess.TaskEnvID {
	return osprocess.TaskEnvID{AllocID: p.startRequest.AllocID, Task: p.startRequest.Name}
}

// acquireTaskOwnership makes p the owner of its task, and returns the earlier owner, if it
// has exited without being destroyed. It returns an error if the earlier owner is running. A
// start without an allocation ID or task name, which occurs only in tests of plugin authors,
// has no owner.
func (p *Core) acquireTaskOwnership() (earlier *Core, err error) {
	if !p.hasAllocAndTaskName() {
		return nil, nil
	}
	taskOwners.Lock()
	defer taskOwners.Unlock()
	earlier = taskOwners.m[p.taskKey()]
	if earlier != nil && earlier.id.Alive() {
		return nil, fmt.Errorf("task %q of allocation %s runs already, as process %d", p.startRequest.Name, p.startRequest.AllocID, earlier.id.PID)
	}
	taskOwners.m[p.taskKey()] = p
	return earlier, nil
}

func (p *Core) hasAllocAndTaskName() bool {
	return p.startRequest.AllocID != "" && p.startRequest.Name != ""
}

func (p *Core) isTaskOwner() bool {
	if !p.hasAllocAndTaskName() {
		return true
	}
	taskOwners.Lock()
	defer taskOwners.Unlock()
	return taskOwners.m[p.taskKey()] == p
}

// releaseTaskOwnership makes an earlier process the owner again, or leaves the task
// without an owner if earlier is nil.
func (p *Core) releaseTaskOwnership(earlier *Core) {
	taskOwners.Lock()
	defer taskOwners.Unlock()
	switch {
	case taskOwners.m[p.taskKey()] != p:
	case earlier != nil:
		taskOwners.m[p.taskKey()] = earlier
	default:
		delete(taskOwners.m, p.taskKey())
	}
}

// killProcessesOfEarlierStart kills the processes that an earlier start of the task has left
// running, if there is no cgroup to find them by: the processes whose
// environment names the task. A search of all processes of the machine takes
// milliseconds, so it is done once for all tasks, and again only for a task that
// had running processes in that search or whose last process was not destroyed.
func (p *Core) killProcessesOfEarlierStart(ctx context.Context, earlier *Core) error {
	taskOwners.Lock()
	if taskOwners.leftovers == nil {
		ids, err := osprocess.AllTaskEnvIDs()
		if err != nil {
			taskOwners.Unlock()
			return p.leftoverProcessError(err)
		}
		taskOwners.leftovers = ids
	}
	possible := earlier != nil || taskOwners.leftovers[p.taskKey()]
	taskOwners.Unlock()
	if !possible {
		return nil
	}
	ended, err := osprocess.EndLeftovers(ctx, p.startRequest.AllocID, p.startRequest.Name)
	if len(ended) > 0 {
		p.logger.Warn("killing what an earlier start has left running", "processes", ended)
	}
	if err != nil {
		return p.leftoverProcessError(err)
	}
	taskOwners.Lock()
	defer taskOwners.Unlock()
	delete(taskOwners.leftovers, p.taskKey())
	return nil
}

func (p *Core) leftoverProcessError(err error) error {
	return sdk.Recoverable(fmt.Errorf("end what an earlier start of task %q has left running: %w", p.startRequest.Name, err))
}

// killAllProcesses kills everything that the process has started: its process group, and
// the task's cgroup or, without a cgroup, the processes that have the task's
// names in their environment.
func (p *Core) killAllProcesses(ctx context.Context) error {
	err := p.killProcessGroup()
	switch {
	case !p.isTaskOwner():
	case p.cgroup != nil:
		err = errors.Join(err, p.cgroup.dir().Kill(ctx))
	case p.startRequest.Env["NOMAD_ALLOC_ID"] == p.startRequest.AllocID && p.startRequest.Env["NOMAD_TASK_NAME"] == p.startRequest.Name:
		err = errors.Join(err, osprocess.KillByTaskEnv(ctx, p.startRequest.AllocID, p.startRequest.Name))
	}
	return err
}
