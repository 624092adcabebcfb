package process

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// owners has the latest process of each task, until it is destroyed. The starts of
// a task share its cgroup and the names in its environment: what cleans up after
// an earlier start must not kill the process of a later one.
var owners = struct {
	sync.Mutex
	m map[process.Mark]*Process

	// leftovers are the tasks of which processes were running when this plugin
	// process first needed to know. It is nil before.
	leftovers map[process.Mark]bool
}{m: map[process.Mark]*Process{}}

func (p *Process) mark() process.Mark {
	return process.Mark{AllocID: p.start.AllocID, Task: p.start.Name}
}

// acquire makes p the owner of its task. It is an error if a process of the task that
// this plugin process has started or recovered is running. earlier is an owner
// whose process has ended and that was not destroyed. A start without names, which
// only a test of an author makes, shares nothing.
func (p *Process) acquire() (earlier *Process, err error) {
	if !p.named() {
		return nil, nil
	}
	owners.Lock()
	defer owners.Unlock()
	earlier = owners.m[p.mark()]
	if earlier != nil && earlier.id.Alive() {
		return nil, fmt.Errorf("task %q of allocation %s runs already, as process %d", p.start.Name, p.start.AllocID, earlier.id.PID)
	}
	owners.m[p.mark()] = p
	return earlier, nil
}

func (p *Process) named() bool { return p.start.AllocID != "" && p.start.Name != "" }

func (p *Process) owns() bool {
	if !p.named() {
		return true
	}
	owners.Lock()
	defer owners.Unlock()
	return owners.m[p.mark()] == p
}

// releaseOwner hands the task back to an earlier owner, or to none if that is nil.
func (p *Process) releaseOwner(earlier *Process) {
	owners.Lock()
	defer owners.Unlock()
	switch {
	case owners.m[p.mark()] != p:
	case earlier != nil:
		owners.m[p.mark()] = earlier
	default:
		delete(owners.m, p.mark())
	}
}

// endEarlier ends what an earlier start of the task has left running, where there
// is no cgroup to find it by: the processes whose environment names the task. To
// look at all processes of the machine takes milliseconds, so it is done once for
// all tasks, and again for a task of which something can be left: it was running
// then, or its last process was not destroyed.
func (p *Process) endEarlier(ctx context.Context, earlier *Process) error {
	owners.Lock()
	if owners.leftovers == nil {
		marks, err := process.AllMarks()
		if err != nil {
			owners.Unlock()
			return p.leftoverError(err)
		}
		owners.leftovers = marks
	}
	possible := earlier != nil || owners.leftovers[p.mark()]
	owners.Unlock()
	if !possible {
		return nil
	}
	ended, err := process.EndLeftovers(ctx, p.start.AllocID, p.start.Name)
	if len(ended) > 0 {
		p.logger.Warn("killing what an earlier start has left running", "processes", ended)
	}
	if err != nil {
		return p.leftoverError(err)
	}
	owners.Lock()
	defer owners.Unlock()
	delete(owners.leftovers, p.mark())
	return nil
}

func (p *Process) leftoverError(err error) error {
	return sdk.Recoverable(fmt.Errorf("end what an earlier start of task %q has left running: %w", p.start.Name, err))
}

// killAll kills what the process has started, wherever it is: its group, and the
// task's cgroup or, where there is none, what has the task's names in its
// environment.
func (p *Process) killAll(ctx context.Context) error {
	err := p.killGroup()
	switch {
	case !p.owns():
	case p.cgroup != nil:
		err = errors.Join(err, p.cgroup.dir().Kill(ctx))
	case p.start.Env["NOMAD_ALLOC_ID"] == p.start.AllocID && p.start.Env["NOMAD_TASK_NAME"] == p.start.Name:
		err = errors.Join(err, process.KillMarked(ctx, p.start.AllocID, p.start.Name))
	}
	return err
}
