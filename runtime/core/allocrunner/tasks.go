package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
)

// taskSet holds the runners for some or all of the allocation's tasks, in job order.
type taskSet []*taskrunner.Runner

func hasRunningProcess(t *taskrunner.Runner) bool {
	_, ok := t.RunningProcess()
	return ok
}

// findByName returns the named task's runner.
func (s taskSet) findByName(name string) (*taskrunner.Runner, bool) {
	for _, t := range s {
		if t.Name() == name {
			return t, true
		}
	}
	return nil, false
}

// namedOrAllRunningTasks returns the named task's runner, or the runners of all running tasks if name is empty. It
// returns ErrTaskNotFound or ErrNotRunning if no such task runs.
func (s taskSet) namedOrAllRunningTasks(name string) (list taskSet, err error) {
	err = ErrTaskNotFound
	for _, t := range s {
		if name != "" && t.Name() != name {
			continue
		}
		err = ErrNotRunning
		if hasRunningProcess(t) {
			list = append(list, t)
		}
	}
	if len(list) > 0 {
		return list, nil
	}
	return nil, err
}

// emitEvent adds an event to each task, each time a new copy.
func (s taskSet) emitEvent(e *api.TaskEvent) {
	for _, t := range s {
		copied := *e
		copied.Details = maps.Clone(e.Details)
		t.EmitEvent(&copied)
	}
}

// forEachParallel calls f concurrently for each task, and returns the joined errors.
func (s taskSet) forEachParallel(f func(*taskrunner.Runner) error) error {
	errs := make([]error, len(s))
	var callsWG sync.WaitGroup
	for i, t := range s {
		callsWG.Go(func() { errs[i] = f(t) })
	}
	callsWG.Wait()
	return errors.Join(errs...)
}

// fetchDriverDescriptions calls FetchDriverDescription for all tasks. It ignores an unavailable driver's error, because
// the task's Run fetches the description again before the start.
func (s taskSet) fetchDriverDescriptions(ctx context.Context) error {
	return s.forEachParallel(func(t *taskrunner.Runner) error {
		if err := t.FetchDriverDescription(ctx, false); err != nil && !taskdriver.IsTemporarilyUnavailable(err) {
			return fmt.Errorf("failed creating runner for task %q: %w", t.Name(), err)
		}
		return nil
	})
}

// allEnded reports whether each task has ended for good and was destroyed by its driver.
func (s taskSet) allEnded() bool {
	return !slices.ContainsFunc(s, func(t *taskrunner.Runner) bool { return !wait.IsClosed(t.Done()) })
}

// killWaves returns the tasks in kill order: the leader, then the other tasks, then the sidecars, which the other tasks
// may need until they have ended. Each element is a wave, which is stopped when the wave before it has ended. Poststop
// tasks are in no wave, because they start when all waves have ended.
func (s taskSet) killWaves() []taskSet {
	order := make([]taskSet, 3)
	for _, t := range s {
		switch task := t.Task(); {
		case task.Stage() == lifecycle.PoststopTask:
		case task.Leader:
			order[0] = append(order[0], t)
		case task.Stage().Sidecar():
			order[2] = append(order[2], t)
		default:
			order[1] = append(order[1], t)
		}
	}
	return order
}

// siblingStates returns evaluateSiblingStop's input for tasks in the given states.
func (s taskSet) siblingStates(states map[string]*api.TaskState) []siblingState {
	views := make([]siblingState, len(s))
	for i, t := range s {
		task, state := t.Task(), states[t.Name()]
		views[i] = siblingState{t.Name(), task.Stage(), task.Leader, lifecycle.StateOf(state.State, state.Failed)}
	}
	return views
}
