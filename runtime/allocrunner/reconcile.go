package allocrunner

import (
	"context"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
)

// reconciler makes the changes that follow from changed task states. Only one goroutine calls it.
type reconciler struct {
	tasks    taskSet
	gates    *gates
	status   *clientStatus
	stop     *stopSequence
	restarts *restarts
	updates  *updates
	changes  *changes
	report   func(Update)
}

// watch calls reconcile after each change and applies new versions of the allocation until all tasks
// have ended. The hooks of an update and the restart of a restart group run in their own goroutines, so
// that they do not delay reconcile. watch waits for both.
//
// watch does not reconcile before the tasks of an earlier agent are restored: before that, running
// tasks have the state pending.
func (r *reconciler) watch(ctx context.Context, restored <-chan struct{}) {
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	updated := r.updates.nextSet
	var applied, changed, restarted chan struct{}
	var checks <-chan struct{}
	restartGroup := func() {
		if restarted != nil || len(r.gates.restartDependents()) == 0 {
			return
		}
		done := make(chan struct{})
		restarted = done
		background.Go(func() {
			defer close(done)
			r.restarts.restartGroup(ctx)
		})
	}
	r.changes.notify()
	for {
		select {
		case <-restored:
			restored, changed = nil, r.changes.requested
		case <-changed:
			ended := r.tasks.ended() // called before reconcile, so that the last reconcile includes the final states
			checks = r.reconcile()
			if ended {
				return
			}
			restartGroup()
		case <-checks:
			checks = nil // set again after the next reconcile
			r.changes.notify()
		case <-restarted:
			restarted = nil
			restartGroup() // meanwhile more tasks may have to restart
		case <-updated:
			done := make(chan struct{})
			updated, applied = nil, done // one update at a time
			background.Go(func() {
				defer close(done)
				r.updates.applyNext(ctx)
			})
		case <-applied:
			updated, applied = r.updates.nextSet, nil
		}
	}
}

// reconcile makes the changes that follow from the current task states: it stops tasks, opens gates,
// and reports the status of the allocation. It does not wait for a task. The returned channel is closed
// when check results change on which a gate depends.
func (r *reconciler) reconcile() (checks <-chan struct{}) {
	now := r.gates.snapshot()
	status := r.status.rollUp(now.states)
	why, finished := evaluateTasks(r.tasks.views(now.states))
	if why != nil {
		r.stop.request(stopReason{why: why})
	}
	if finished {
		for _, t := range r.tasks {
			if t.Task().Stage() != lifecycle.PoststopTask {
				t.Kill(nil) // the task has ended, and the kill prevents that it runs again
			}
		}
	}
	// During a stop no gate is opened. Otherwise tasks that the stop has not reached yet would start.
	if !r.stop.isRequested() || finished {
		checks = r.gates.observe(now)
	}
	r.gates.rerun(now.tasksToRerun)
	r.report(status)
	r.changes.wakeWaiters()
	return checks
}
