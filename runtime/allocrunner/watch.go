package allocrunner

import (
	"context"
	"slices"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// changed requests a reconcile after a change of a task or of the allocation. It does
// not block, and may be called from any goroutine.
func (r *Runner) changed() {
	select {
	case r.tick <- struct{}{}:
	default: // a reconcile is requested already
	}
}

// watch calls reconcile after each change and applies new versions of the allocation
// until all tasks have ended. The hooks of an update run in a goroutine of their own so
// that they do not delay reconcile.
//
// watch does not reconcile before the tasks of an earlier agent are restored: the
// lifecycle would wait for running tasks to be pending.
func (r *Runner) watch(ctx context.Context, restored <-chan struct{}) {
	var applying sync.WaitGroup
	defer applying.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	updated := r.updates.ready
	var applied, tick, followed chan struct{}
	var checks <-chan struct{}
	follow := func() {
		if followed != nil || len(r.restartDependents()) == 0 {
			return
		}
		done := make(chan struct{})
		followed = done
		applying.Go(func() {
			defer close(done)
			r.restartFollowers(ctx)
		})
	}
	r.changed()
	for {
		select {
		case <-restored:
			restored, tick = nil, r.tick
		case <-tick:
			ended := r.ended() // read before reconcile, so that the last reconcile includes the final states
			checks = r.reconcile()
			if ended {
				return
			}
			follow()
		case <-checks:
			checks = nil // set again by the next reconcile
			r.changed()
		case <-followed:
			followed = nil
			follow() // more tasks may have to restart by now
		case <-updated:
			done := make(chan struct{})
			updated, applied = nil, done // one update at a time
			applying.Go(func() {
				defer close(done)
				r.applyUpdate(ctx)
			})
		case <-applied:
			updated, applied = r.updates.ready, nil
		}
	}
}

func (r *Runner) ended() bool {
	return !slices.ContainsFunc(r.tasks, func(t *taskrunner.Runner) bool { return !isClosed(t.Done()) })
}

// reconcile applies the consequences of the current task states: it stops tasks, opens
// gates, and reports the status of the allocation. It does not wait for a task.
func (r *Runner) reconcile() (checks <-chan struct{}) {
	status, reruns := r.status()
	tasks := r.observe(status)
	states := make(map[string]lifecycle.State, len(tasks))
	for _, t := range tasks {
		states[t.name] = t.state
	}
	why, finished := evaluateTasks(tasks)
	if why != nil {
		r.stop(stopReason{why: why})
	}
	if finished {
		for _, t := range r.tasks {
			if t.Task().Stage() != lifecycle.PoststopTask {
				t.Kill(nil) // the task is dead and must not wait for a rerun
			}
		}
	}
	// A stop opens no gate, or tasks that the stop has not reached yet would start.
	if !r.isStopping() || finished {
		r.lifecycle.Observe(states)
		if r.group != nil {
			var facts map[string]lifecycle.Fact
			facts, checks = r.facts(status)
			r.failUnreachable(facts)
		}
	}
	r.rerun(reruns)
	r.config.Report(status)

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.waiters {
		close(w)
	}
	r.waiters = nil
	return checks
}

func (r *Runner) observe(status Update) []taskView {
	tasks := make([]taskView, len(r.tasks))
	for i, t := range r.tasks {
		task, state := t.Task(), status.TaskStates[t.Name()]
		tasks[i] = taskView{t.Name(), task.Stage(), task.Leader, lifecycle.StateOf(state.State, state.Failed)}
	}
	return tasks
}

// reconciled returns a channel that is closed by the next reconcile.
func (r *Runner) reconciled() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := make(chan struct{})
	r.waiters = append(r.waiters, w)
	return w
}

func (r *Runner) task(name string) (*taskrunner.Runner, bool) {
	for _, t := range r.tasks {
		if t.Name() == name {
			return t, true
		}
	}
	return nil, false
}
