package allocrunner

import (
	"context"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// reconcileUntilEnded calls reconcile after each change and applies new versions of the allocation until all tasks have
// ended. Update hooks and restart group restarts run in their own goroutines, so that they do not delay reconcile.
// reconcileUntilEnded waits for both.
//
// It does not reconcile before an earlier agent's tasks are restored: before that, running tasks have the state pending.
func (r *Runner) reconcileUntilEnded(ctx context.Context) {
	var backgroundWG sync.WaitGroup
	defer backgroundWG.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	restored, updated := r.tasks.restored, r.state.nextAlloc
	var updateApplied, reconcileRequested, groupRestarted chan struct{}
	var checksChanged <-chan struct{}
	restartGroup := func() {
		if groupRestarted != nil || len(r.tasks.restartCauseByTask()) == 0 {
			return
		}
		done := make(chan struct{})
		groupRestarted = done
		backgroundWG.Go(func() {
			defer close(done)
			r.tasks.restartDependentTasks(ctx, r.config.Limits.RestartAllTasksDownTimeout)
		})
	}
	r.state.requestReconcile()
	for {
		select {
		case <-restored:
			restored, reconcileRequested = nil, r.state.reconcileRequested
		case <-reconcileRequested:
			ended := r.tasks.allEnded() // determined before reconcile, so that the last reconcile includes the final states
			checksChanged = r.tasks.reconcile(r.config.ReportStatus)
			if ended {
				return
			}
			restartGroup()
		case <-checksChanged:
			checksChanged = nil // the next reconcile returns a new channel
			r.state.requestReconcile()
		case <-groupRestarted:
			groupRestarted = nil
			restartGroup() // other tasks may have to restart since the last call
		case alloc := <-updated:
			done := make(chan struct{})
			updated, updateApplied = nil, done // one update at a time
			backgroundWG.Go(func() {
				defer close(done)
				r.tasks.applyVersionUnlessOlder(ctx, alloc, r.config.Limits)
			})
		case <-updateApplied:
			updated, updateApplied = r.state.nextAlloc, nil
		}
	}
}

// reconcile makes the changes required by the current task states: it stops tasks, opens gates, and reports the
// allocation's status. It does not wait for a task. The returned channel is closed when check results change that a gate
// depends on.
func (a *allocTasks) reconcile(reportStatus func(model.AllocReport)) (checksChanged <-chan struct{}) {
	now := a.snapshot()
	status := a.state.newReport(now.taskStates)
	why, finished := evaluateSiblingStop(a.siblingStates(now.taskStates))
	if why != nil {
		a.state.requestStop(stopReason{newReasonEvent: why})
	}
	if finished {
		for _, t := range a.taskSet {
			if t.Task().Stage() != lifecycle.PoststopTask {
				t.Kill(nil) // the task has ended; the kill prevents a rerun
			}
		}
	}
	// During a stop no gate is opened: otherwise tasks not yet killed by the stop would start. Poststop tasks start when
	// all others have ended.
	if !a.state.isStopRequested() || finished {
		a.openGatesAndEndUnstartable(now)
		checksChanged = now.checksChanged
	}
	a.rerunTasks(now.rerunCauseByTask)
	reportStatus(status)
	a.state.wakeReconcileWaiters()
	return checksChanged
}
