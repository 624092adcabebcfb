package monitor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// FollowLogsFunc shows the output of a job's tasks until the job has ended.
type FollowLogsFunc func(context.Context, *api.Client, *api.Job, *cli.Streams) error

// WaitFlags let a command that starts a job wait until the job has ended.
type WaitFlags struct {
	UntilEnded bool
	ShowLogs   bool
}

// Register adds the flags to a command.
func (f *WaitFlags) Register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.UntilEnded, "wait", false, "wait until the job has ended; its success is the exit code")
	cmd.Flags().BoolVar(&f.ShowLogs, "logs", false, "with -wait, show what the tasks write")
}

// CheckCombination rejects flags that exclude each other.
func (f *WaitFlags) CheckCombination(detach bool) error {
	switch {
	case f.UntilEnded && detach:
		return errors.New("-wait and -detach exclude each other: leave one out")
	case f.ShowLogs && !f.UntilEnded:
		return errors.New("-logs shows the output until the job ends: add -wait")
	}
	return nil
}

// WaitUntilJobEnded follows an evaluation, and then its job until the job has ended. It returns an error with the
// exit code: 2 if no allocation was placed, 1 if a task did not end successfully. An empty evalID means that
// the job has been evaluated earlier. With -logs it calls printLogs.
func (f *WaitFlags) WaitUntilJobEnded(ctx context.Context, m *Monitor, jobID, evalID string, printLogs FollowLogsFunc) error {
	job, _, err := m.client.Jobs().Info(jobID, apiclient.QueryOptions(ctx, m.namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read job %q", jobID), err)
	}
	w := &jobWaiter{Monitor: m, job: job, lastShownReasonByTask: make(map[string]string)}
	if err := w.watchUntilPlaced(ctx, evalID); err != nil {
		return err
	}
	logsCtx, stopLogs := context.WithCancel(ctx)
	defer stopLogs()
	var logs sync.WaitGroup
	if f.ShowLogs {
		logs.Go(func() {
			if err := printLogs(logsCtx, m.client, job, m.streams); err != nil {
				fmt.Fprintf(m.streams.Err, "warning: the output of job %q is not shown: %v\n", jobID, err)
			}
		})
	}
	allocs, err := w.waitUntilEnded(ctx)
	if err != nil {
		stopLogs()
		logs.Wait()
		return err
	}
	logs.Wait()
	return w.printSuccessOrReturnFailures(ctx, allocs)
}

// jobWaiter waits until one version of a job has ended.
type jobWaiter struct {
	*Monitor
	job                   *api.Job
	statusByAllocID       map[string]string // allocation ID -> last known client status; nil before the first list
	lastShownReasonByTask map[string]string // allocation ID and task name -> reason that was shown last
}

// watchUntilPlaced follows the evaluation and its deployment. A placement failure is an error only if no allocation was
// placed.
func (w *jobWaiter) watchUntilPlaced(ctx context.Context, evalID string) error {
	if evalID == "" {
		return nil
	}
	err := w.WatchEvaluationAndDeployment(ctx, evalID)
	if exit := new(cli.ExitError); !errors.As(err, &exit) || exit.Code != cli.NotPlaced.Number {
		return err
	}
	allocs, _, listErr := w.listAllocsOfVersion(apiclient.QueryOptions(ctx, w.namespace))
	if listErr != nil || len(allocs) > 0 {
		return listErr
	}
	return err
}

// listAllocsOfVersion returns the allocations of the job's version.
func (w *jobWaiter) listAllocsOfVersion(q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
	id := pointer.Value(w.job.ID)
	allocs, meta, err := w.client.Jobs().Allocations(id, false, q)
	if err != nil {
		return nil, nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("list allocations of job %q", id), err)
	}
	version := pointer.Value(w.job.Version)
	return slices.DeleteFunc(allocs, func(a *api.AllocationListStub) bool { return a == nil || a.JobVersion != version }), meta, nil
}

// waitUntilEnded prints the changes of the allocations until all of them have ended and the job gets no further ones.
func (w *jobWaiter) waitUntilEnded(ctx context.Context) ([]*api.AllocationListStub, error) {
	q := apiclient.QueryOptions(ctx, w.namespace)
	for jobOver := false; ; {
		allocs, meta, err := w.listAllocsOfVersion(q)
		if err != nil {
			return nil, err
		}
		if err := w.printAllocChangesAndReasons(ctx, allocs); err != nil {
			return nil, err
		}
		if jobOver {
			return allocs, nil
		}
		q.WaitTime = 0
		if !slices.ContainsFunc(allocs, hasNonterminalStatus) {
			if jobOver, err = w.jobGetsNoMoreAllocs(ctx); err != nil {
				return nil, err
			}
			q.WaitTime = time.Second // the job can end without a change of its allocations
		}
		if jobOver { // list the allocations again, because one can have started and ended since the last list
			q.WaitIndex = 0
			continue
		}
		if err := MakeNextQueryBlockOrSleep(ctx, q, meta); err != nil {
			return nil, err
		}
	}
}

func hasNonterminalStatus(a *api.AllocationListStub) bool {
	return !apiclient.HasTerminalClientStatus(a)
}

// jobGetsNoMoreAllocs reports whether the job's version gets no further allocations, because the job is dead or has a
// newer version.
func (w *jobWaiter) jobGetsNoMoreAllocs(ctx context.Context) (bool, error) {
	id := pointer.Value(w.job.ID)
	job, _, err := w.client.Jobs().Info(id, apiclient.QueryOptions(ctx, w.namespace))
	switch {
	case apiclient.IsNotFound(err):
		return false, fmt.Errorf("job %q was removed before it had ended", id)
	case err != nil:
		return false, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read job %q", id), err)
	}
	return pointer.Value(job.Status) == model.JobDead || pointer.Value(job.Version) != pointer.Value(w.job.Version), nil
}

// printAllocChangesAndReasons prints the allocations whose status has changed, and why tasks do not run.
func (w *jobWaiter) printAllocChangesAndReasons(ctx context.Context, allocs []*api.AllocationListStub) error {
	p := w.newPage()
	if w.statusByAllocID == nil { // WatchEvaluationAndDeployment has shown these allocations
		w.statusByAllocID = make(map[string]string)
		w.addAllocChanges(w.newPage(), allocs, 0, w.statusByAllocID)
	}
	w.addAllocChanges(p, allocs, 0, w.statusByAllocID)
	// printSuccessOrReturnFailures shows the tasks of failed allocations, unless the allocation is rescheduled.
	tasks := slices.DeleteFunc(taskreason.FindTasksNotRunning(w.job, allocs, time.Time{}), func(t taskreason.TaskWithReason) bool {
		return t.Reason.IsBeingSetUp() || t.Alloc.ClientStatus == api.AllocClientStatusFailed && t.Alloc.FollowupEvalID == ""
	})
	taskreason.AddLastStderrLines(ctx, w.client, tasks)
	for _, t := range tasks {
		key, text := t.Alloc.ID+t.Name, t.Reason.String()
		if w.lastShownReasonByTask[key] != text {
			w.lastShownReasonByTask[key] = text
			p.AddTimedDetailLine("Task %q of allocation %q: %s", t.Name, w.formatID(t.Alloc.ID), text)
		}
	}
	return w.printPageWithLiveText(p, "")
}

func (w *jobWaiter) printSuccessOrReturnFailures(ctx context.Context, allocs []*api.AllocationListStub) error {
	failures := taskreason.FindFailures(w.job, allocs, false)
	taskreason.AddLastStderrLines(ctx, w.client, failures)
	if err := taskreason.JobError(w.job, failures); err != nil {
		return &cli.ExitError{Code: 1, Err: err}
	}
	p := w.newPage()
	p.AddTimedHeading("%s", taskreason.JobSuccessText(pointer.Value(w.job.ID)))
	return w.printPageWithLiveText(p, "")
}
