package scheduler

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// UpdateConfig replaces the stored scheduler configuration by the result of edit, which may be called several times and returns nil
// to keep the stored one. An error of edit is returned unchanged. Blocked evaluations are retried, because their jobs may preempt
// others now; if the change ends a pause, pending ones are processed, too.
func (s *Scheduler) UpdateConfig(ctx context.Context, edit func(stored *api.SchedulerConfiguration) (*api.SchedulerConfiguration, error)) (index uint64, err error) {
	return s.updateAndReconcile(ctx, func(t *schedulerTxn) error {
		stored := t.tx.SchedulerConfig(nil)
		next, err := edit(stored)
		if err != nil || next == nil {
			return err
		}
		t.tx.PutSchedulerConfig(next)
		if stored.PauseEvalBroker && !next.PauseEvalBroker {
			for _, e := range t.tx.Evaluations(nil, "") {
				t.trackPendingAndBlockedEval(e)
			}
		}
		t.mayUnblockEvals = true
		return nil
	})
}

// isPaused reports whether the operator has paused the processing of evaluations.
func isPaused(t *schedulerTxn) bool { return t.tx.SchedulerConfig(nil).PauseEvalBroker }

// queueEval stores a new evaluation, which is processed after the pause. A stored evaluation stays as it is.
func queueEval(t *schedulerTxn, eval *api.Evaluation) {
	if t.tx.Evaluation(nil, eval.ID) != nil {
		return
	}
	t.putAndTrackEval(eval)
	t.reconcileJobAtTxnEnd(JobKey{eval.Namespace, eval.JobID})
}

// hasDueEval reports whether an evaluation of the job is pending and not delayed.
func hasDueEval(t *schedulerTxn, key JobKey) bool {
	for _, e := range t.tx.EvaluationsByJob(nil, key.Namespace, key.ID) {
		if e.Status == api.EvalStatusPending && !e.WaitUntil.After(t.now) {
			return true
		}
	}
	return false
}

// DeleteEvals deletes the evaluations for which matches returns true, and returns their number. Their allocations stay. matches may
// be called several times. Evaluations are deleted only while their processing is paused: otherwise DeleteEvals returns a
// RequestError, as for an error of matches.
func (s *Scheduler) DeleteEvals(ctx context.Context, matches func(*api.Evaluation) (bool, error)) (count int, index uint64, err error) {
	index, err = s.updateAndReconcile(ctx, func(t *schedulerTxn) error {
		count = 0
		if !isPaused(t) {
			return requestErrorf(RequestRefused, "eval broker is enabled; eval broker must be paused to delete evals")
		}
		for _, e := range t.tx.Evaluations(nil, "") {
			ok, err := matches(e)
			if err != nil {
				return requestErrorf(RequestInvalid, "%v", err)
			}
			if !ok {
				continue
			}
			count++
			if model.IsEvalPendingOrBlocked(e) {
				cancelled := *e
				cancelled.Status = api.EvalStatusCancelled
				t.trackPendingAndBlockedEval(&cancelled) // removes the timer
			}
			t.tx.DeleteEvaluation(e.ID)
			t.reconcileJobAtTxnEnd(JobKey{e.Namespace, e.JobID})
		}
		return nil
	})
	return count, index, err
}
