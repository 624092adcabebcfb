package allocrunner

import (
	"context"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/job/lifecycle"
)

// reconciler makes the changes that follow from changed task states. Only one goroutine calls its methods.
type reconciler struct {
	tasks           taskSet
	startGates      *startGates
	clientStatus    *clientStatusTracker
	stopSequence    *stopSequence
	taskRestarter   *taskRestarter
	allocUpdater    *allocUpdater
	reconcileSignal *reconcileSignal
	reportStatus    func(StatusUpdate)
}

// reconcileUntilEnded calls reconcile after each change and applies new versions of the allocation until all tasks
// have ended. The hooks of an update and the restart of a restart group run in their own goroutines, so
// that they do not delay reconcile. reconcileUntilEnded waits for both.
//
// reconcileUntilEnded does not reconcile before the tasks of an earlier agent are restored: before that, running
// tasks have the state pending.
func (r *reconciler) reconcileUntilEnded(ctx context.Context, restored <-chan struct{}) {
	var backgroundWG sync.WaitGroup
	defer backgroundWG.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	updated := r.allocUpdater.nextAllocReceived
	var updateApplied, reconcileRequested, groupRestarted chan struct{}
	var checksChanged <-chan struct{}
	restartGroup := func() {
		if groupRestarted != nil || len(r.startGates.restartCauseByTask()) == 0 {
			return
		}
		done := make(chan struct{})
		groupRestarted = done
		backgroundWG.Go(func() {
			defer close(done)
			r.taskRestarter.restartDependentTasks(ctx)
		})
	}
	r.reconcileSignal.requestReconcile()
	for {
		select {
		case <-restored:
			restored, reconcileRequested = nil, r.reconcileSignal.reconcileRequested
		case <-reconcileRequested:
			ended := r.tasks.allEnded() // determined before reconcile, so that the last reconcile includes the final states
			checksChanged = r.reconcile()
			if ended {
				return
			}
			restartGroup()
		case <-checksChanged:
			checksChanged = nil // the next reconcile returns a new channel
			r.reconcileSignal.requestReconcile()
		case <-groupRestarted:
			groupRestarted = nil
			restartGroup() // other tasks may have to restart since the last call
		case <-updated:
			done := make(chan struct{})
			updated, updateApplied = nil, done // one update at a time
			backgroundWG.Go(func() {
				defer close(done)
				r.allocUpdater.applyNextAlloc(ctx)
			})
		case <-updateApplied:
			updated, updateApplied = r.allocUpdater.nextAllocReceived, nil
		}
	}
}

// reconcile makes the changes that follow from the current task states: it stops tasks, opens gates,
// and reports the status of the allocation. It does not wait for a task. The returned channel is closed
// when check results change on which a gate depends.
func (r *reconciler) reconcile() (checksChanged <-chan struct{}) {
	now := r.startGates.snapshotWithPendingReruns()
	status := r.clientStatus.aggregateTaskStates(now.taskStates)
	why, finished := evaluateSiblingStop(r.tasks.siblingStates(now.taskStates))
	if why != nil {
		r.stopSequence.requestStop(stopReason{newReasonEvent: why})
	}
	if finished {
		for _, t := range r.tasks {
			if t.Task().Stage() != lifecycle.PoststopTask {
				t.Kill(nil) // the task has ended; the kill prevents a rerun
			}
		}
	}
	// During a stop no gate is opened, because tasks that the stop has not killed yet would start. Poststop tasks start when
	// all others have ended.
	if !r.stopSequence.isRequested() || finished {
		checksChanged = r.startGates.openReadyGates(now)
	}
	r.startGates.rerunTasks(now.rerunCauseByTask)
	r.reportStatus(status)
	r.reconcileSignal.wakeWaiters()
	return checksChanged
}
