package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/wait"
)

const restartHelp = `Restart the allocations of a job, one after the other or in larger batches.

Without flags the tasks that run are restarted in place. With -all-tasks those
that have ended run again too, in the order of their lifecycle. With -reschedule
each allocation is replaced by a new one, and the next batch waits until the
new ones run.

Exit codes: 0 all was restarted, 1 something was not.`

type restartOptions struct {
	clientFlags      apiclient.Flags
	allTasks         bool
	reschedule       bool
	groups, tasks    []string
	batchSizeText    string
	batchWaitText    string
	onError          string
	noShutdownDelay  bool
	skipConfirmation bool
	verbose          bool
}

func newRestartCommand(s *cli.Streams) *cobra.Command {
	var o restartOptions
	cmd := &cobra.Command{
		Use:   "restart [flags] JOB",
		Short: "Restart the tasks of a job, or replace its allocations",
		Long:  restartHelp,
		Example: `  nomad-lite job restart web
  nomad-lite job restart -group frontend -batch-size 25% -batch-wait 30s web
  nomad-lite job restart -reschedule web`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("Stop == false")),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := o.newBatchRestart(s)
			if err != nil {
				return cli.UsageError(cmd, err)
			}
			return r.restartJob(cmd.Context(), args[0])
		},
	}
	o.clientFlags.Register(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.allTasks, "all-tasks", false, "run also tasks again that have ended")
	flags.BoolVar(&o.reschedule, "reschedule", false, "replace the allocations by new ones")
	flags.StringArrayVar(&o.groups, "group", nil, "only this `group`; may be repeated")
	flags.StringArrayVar(&o.tasks, "task", nil, "only this `task`; may be repeated")
	flags.StringVar(&o.batchSizeText, "batch-size", "1", "so `many` allocations at once, or so many percent of them, such as 25%")
	flags.StringVar(&o.batchWaitText, "batch-wait", "0s", "`time` to wait between two batches, or 'ask' to be asked")
	flags.StringVar(&o.onError, "on-error", "ask", "'ask' or 'fail' when an allocation could not be restarted")
	flags.BoolVar(&o.noShutdownDelay, "no-shutdown-delay", false, "with -reschedule: do not wait for the shutdown_delay of groups and tasks")
	flags.BoolVar(&o.skipConfirmation, "yes", false, "do not ask after errors")
	flags.BoolVar(&o.verbose, "verbose", false, "print whole ids")
	return cmd
}

// batchRestart restarts the allocations of a job in batches.
type batchRestart struct {
	restartOptions
	streams            *cli.Streams
	client             *api.Client
	batchSize          int
	isBatchSizePercent bool
	batchWait          time.Duration
	confirmBatches     bool // the user must confirm each batch after the first

	mu               sync.Mutex // held while a page is printed
	anyRestartFailed bool       // the restart of at least one allocation has failed
}

// newBatchRestart returns the restart that the flags describe, or an error if they are invalid.
func (o restartOptions) newBatchRestart(s *cli.Streams) (*batchRestart, error) {
	r := &batchRestart{restartOptions: o, streams: s}
	size, percent := strings.CutSuffix(o.batchSizeText, "%")
	n, err := strconv.Atoi(size)
	if err != nil || n < 1 || percent && n > 100 {
		return nil, fmt.Errorf("-batch-size %q: use a number from 1 on, or a percentage such as 25%%", o.batchSizeText)
	}
	r.batchSize, r.isBatchSizePercent = n, percent
	if r.confirmBatches = o.batchWaitText == "ask"; !r.confirmBatches {
		if r.batchWait, err = time.ParseDuration(o.batchWaitText); err != nil || r.batchWait < 0 {
			return nil, fmt.Errorf("-batch-wait %q: use a time such as 30s, or ask", o.batchWaitText)
		}
	}
	if !slices.Contains([]string{"ask", "fail"}, o.onError) {
		return nil, fmt.Errorf("-on-error %q: use ask or fail", o.onError)
	}
	if !s.IsInteractive() {
		if r.confirmBatches {
			return nil, errors.New("-batch-wait ask: there is no terminal for an answer")
		}
		r.onError = "fail"
	}
	switch {
	case o.reschedule && (o.allTasks || len(o.tasks) > 0):
		return nil, errors.New("-reschedule replaces whole allocations: leave out -task and -all-tasks")
	case o.allTasks && len(o.tasks) > 0:
		return nil, errors.New("-all-tasks and -task exclude each other")
	case o.noShutdownDelay && !o.reschedule:
		return nil, errors.New("-no-shutdown-delay is for -reschedule: a restart in place has no such delay")
	}
	return r, nil
}

// printLinesOnPage prints a page to which add adds lines. It may be called concurrently.
func (r *batchRestart) printLinesOnPage(add func(*output.Page)) {
	p := output.NewPage(r.streams)
	add(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = output.PrintPage(r.streams, p) // a failed write to the output must not interrupt the restart
}

func (r *batchRestart) restartJob(ctx context.Context, jobIDPrefix string) error {
	c, id, namespace, err := r.restartOptions.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	r.client = c
	job, err := readJobVersion(ctx, c, id, namespace, -1)
	if err != nil {
		return err
	}
	if err := r.checkGroupAndTaskNames(job); err != nil {
		return err
	}
	allocs, err := r.listSelectedRunningAllocs(ctx, job)
	if err != nil {
		return err
	}
	if len(allocs) == 0 {
		r.printLinesOnPage(func(p *output.Page) { p.AddLine("No allocations to restart") })
		return nil
	}
	if r.isBatchSizePercent {
		r.batchSize = max(1, len(allocs)*r.batchSize/100)
	}
	r.printLinesOnPage(func(p *output.Page) {
		p.AddTimedHeading("Restarting %s", output.FormatCount(len(allocs), "allocation"))
	})
	if err := r.restartBatches(ctx, job, allocs); err != nil {
		return err
	}
	if r.anyRestartFailed {
		r.printLinesOnPage(func(p *output.Page) { p.AddTimedHeading("Job restart finished with errors") })
		return &cli.ExitError{Code: 1, Err: fmt.Errorf("not all of job %q was restarted\nSee what runs: nomad-lite job status %s", id, id)}
	}
	r.printLinesOnPage(func(p *output.Page) {
		p.AddTimedHeading("Job restart finished")
		p.AddLine("")
		p.AddLine("Job restarted successfully!")
	})
	return nil
}

// checkGroupAndTaskNames rejects groups and tasks that the job does not have.
func (r *batchRestart) checkGroupAndTaskNames(job *api.Job) error {
	var groupNames, taskNames []string
	apiclient.ForEachTask(job, func(group *api.TaskGroup, task *api.Task) {
		groupNames = append(groupNames, pointer.Value(group.Name))
		if r.includesGroup(pointer.Value(group.Name)) {
			taskNames = append(taskNames, task.Name)
		}
	})
	for _, name := range r.groups {
		if !slices.Contains(groupNames, name) {
			return fmt.Errorf("job %q has no group %q, but %s", pointer.Value(job.ID), name, strings.Join(slices.Compact(groupNames), ", "))
		}
	}
	for _, name := range r.tasks {
		if !slices.Contains(taskNames, name) {
			return fmt.Errorf("job %q has no task %q there, but %s", pointer.Value(job.ID), name, strings.Join(taskNames, ", "))
		}
	}
	return nil
}

func (r *batchRestart) includesGroup(group string) bool {
	return len(r.groups) == 0 || slices.Contains(r.groups, group)
}

// listSelectedRunningAllocs returns the running allocations that the flags select.
func (r *batchRestart) listSelectedRunningAllocs(ctx context.Context, job *api.Job) ([]*api.AllocationListStub, error) {
	all, _, err := r.client.Jobs().Allocations(pointer.Value(job.ID), true, apiclient.QueryOptions(ctx, pointer.Value(job.Namespace)))
	if err != nil {
		return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("list allocations of job %q", pointer.Value(job.ID)), err)
	}
	all = slices.DeleteFunc(all, func(a *api.AllocationListStub) bool {
		return a.ClientStatus != api.AllocClientStatusRunning || a.DesiredStatus != api.AllocDesiredStatusRun || !r.includesGroup(a.TaskGroup)
	})
	slices.SortStableFunc(all, func(a, b *api.AllocationListStub) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

func (r *batchRestart) restartBatches(ctx context.Context, job *api.Job, allocs []*api.AllocationListStub) error {
	number := 0
	for batch := range slices.Chunk(allocs, r.batchSize) {
		if number++; number > 1 {
			if err := r.waitOrConfirmNextBatch(ctx); err != nil {
				return err
			}
		}
		if err := r.checkNoActiveDeployment(ctx, job); err != nil {
			return err
		}
		var wg sync.WaitGroup
		errs := make([]error, len(batch))
		for i, a := range batch {
			wg.Go(func() { errs[i] = r.restartOrReplaceAlloc(ctx, job, a) })
		}
		wg.Wait()
		err := errors.Join(errs...)
		if err == nil {
			continue
		}
		r.anyRestartFailed = true
		if r.onError == "fail" && !r.skipConfirmation {
			return err
		}
		r.printLinesOnPage(func(p *output.Page) { p.AddSanitizedLines(err.Error()) })
		if !r.skipConfirmation {
			if err := r.streams.Confirm("Restart the other allocations?", "Restart cancelled"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *batchRestart) waitOrConfirmNextBatch(ctx context.Context) error {
	if r.confirmBatches {
		return r.streams.Confirm("Restart the next batch?", "Restart cancelled")
	}
	if r.batchWait > 0 {
		r.printLinesOnPage(func(p *output.Page) { p.AddTimedHeading("Waiting %s before restarting the next batch", r.batchWait) })
	}
	return wait.Sleep(ctx, r.batchWait)
}

func (r *batchRestart) checkNoActiveDeployment(ctx context.Context, job *api.Job) error {
	all, _, err := r.client.Jobs().Deployments(pointer.Value(job.ID), true, apiclient.QueryOptions(ctx, pointer.Value(job.Namespace)))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("list deployments of job %q", pointer.Value(job.ID)), err)
	}
	for _, d := range all {
		switch d.Status {
		case api.DeploymentStatusSuccessful, api.DeploymentStatusFailed, api.DeploymentStatusCancelled:
		default:
			return fmt.Errorf("job %q has an active deployment (%s)\nWait for its end, or end it: nomad-lite deployment fail %s", pointer.Value(job.ID), d.Status, output.TruncateID(d.ID))
		}
	}
	return nil
}

// restartOrReplaceAlloc restarts the selected tasks of one allocation, or replaces the allocation if -reschedule is
// set.
func (r *batchRestart) restartOrReplaceAlloc(ctx context.Context, job *api.Job, stub *api.AllocationListStub) error {
	alloc := &api.Allocation{ID: stub.ID, Namespace: stub.Namespace, NodeID: stub.NodeID}
	q := apiclient.QueryOptions(ctx, stub.Namespace)
	id := output.ShortIDUnlessVerbose(stub.ID, r.verbose)
	where := fmt.Sprintf("restart allocation %q", id)
	var err error
	switch {
	case r.reschedule:
		r.printLinesOnPage(func(p *output.Page) {
			p.AddTimedDetailLine("Rescheduling allocation %q for group %q", id, stub.TaskGroup)
		})
		return r.replaceAllocAndWait(ctx, job, alloc, stub.TaskGroup)
	case r.allTasks:
		r.printLinesOnPage(func(p *output.Page) {
			p.AddTimedDetailLine("Restarting all tasks in allocation %q for group %q", id, stub.TaskGroup)
		})
		err = r.client.Allocations().RestartAllTasks(alloc, q)
	case len(r.tasks) > 0:
		for _, task := range r.tasks {
			if state := stub.TaskStates[task]; state == nil || state.State != "running" {
				continue // this allocation does not have the task, or the task does not run
			}
			r.printLinesOnPage(func(p *output.Page) {
				p.AddTimedDetailLine("Restarting task %q in allocation %q for group %q", task, id, stub.TaskGroup)
			})
			if e := r.client.Allocations().Restart(alloc, task, q); e != nil {
				err = errors.Join(err, apiclient.WrapErrorWithAdvice(fmt.Sprintf("restart task %q of allocation %q", task, id), e))
			}
		}
		return err
	default:
		r.printLinesOnPage(func(p *output.Page) {
			p.AddTimedDetailLine("Restarting running tasks in allocation %q for group %q", id, stub.TaskGroup)
		})
		err = r.client.Allocations().Restart(alloc, "", q)
	}
	if err != nil {
		return apiclient.WrapErrorWithAdvice(where, err)
	}
	return nil
}

// replaceAllocAndWait stops an allocation and waits until its replacement runs.
func (r *batchRestart) replaceAllocAndWait(ctx context.Context, job *api.Job, alloc *api.Allocation, group string) error {
	id := output.ShortIDUnlessVerbose(alloc.ID, r.verbose)
	q := apiclient.QueryOptions(ctx, alloc.Namespace)
	q.Params = map[string]string{}
	if r.noShutdownDelay {
		q.Params["no_shutdown_delay"] = "true"
	}
	if pointer.Value(job.Type) == api.JobTypeBatch {
		q.Params["reschedule"] = "true" // without this parameter, a stopped allocation of a batch job counts as complete and is not replaced
	}
	stopped, err := r.client.Allocations().Stop(alloc, q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("stop allocation %q", id), err)
	}
	if kind := pointer.Value(job.Type); kind == api.JobTypeSystem || kind == api.JobTypeSysbatch {
		// Without ForceReschedule, the scheduler does not place an allocation of a system job again
		// on the node where the user has stopped it.
		if _, _, err := r.client.Jobs().EvaluateWithOpts(pointer.Value(job.ID), api.EvalOptions{ForceReschedule: true}, apiclient.WriteOptions(ctx, alloc.Namespace)); err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("evaluate job %q", pointer.Value(job.ID)), err)
		}
	}
	next, err := r.pollAllocUntil(ctx, alloc, func(a *api.Allocation) bool { return a.NextAllocation != "" }, stopped.EvalID)
	if err != nil {
		return fmt.Errorf("wait for what follows allocation %q: %w", id, err)
	}
	follower := &api.Allocation{ID: next.NextAllocation, Namespace: alloc.Namespace}
	r.printLinesOnPage(func(p *output.Page) {
		p.AddTimedDetailLine("Allocation %q replaced by %q for group %q", id, output.ShortIDUnlessVerbose(follower.ID, r.verbose), group)
	})
	running, err := r.pollAllocUntil(ctx, follower, func(a *api.Allocation) bool {
		return a.ClientStatus != api.AllocClientStatusPending
	}, "")
	switch {
	case err != nil:
		return fmt.Errorf("wait for allocation %q: %w", output.ShortIDUnlessVerbose(follower.ID, r.verbose), err)
	case running.ClientStatus == api.AllocClientStatusFailed || running.ClientStatus == api.AllocClientStatusLost:
		return fmt.Errorf("allocation %q, which replaces %q, is %s\nSee why: nomad-lite alloc status %s", output.ShortIDUnlessVerbose(follower.ID, r.verbose), id, running.ClientStatus, output.TruncateID(follower.ID))
	}
	r.printLinesOnPage(func(p *output.Page) {
		p.AddTimedDetailLine("Allocation %q is %s", output.ShortIDUnlessVerbose(follower.ID, r.verbose), output.StatusCell(running.ClientStatus))
	})
	return nil
}

// placementCheckInterval is the interval at which pollAllocUntil checks whether the evaluation has failed to place the
// replacement.
const placementCheckInterval = 10 * time.Second

// pollAllocUntil reads an allocation repeatedly until reached returns true for it. If optionalEvalID is not empty, it
// returns an error when that evaluation could not place all allocations.
func (r *batchRestart) pollAllocUntil(ctx context.Context, alloc *api.Allocation, reached func(*api.Allocation) bool, optionalEvalID string) (*api.Allocation, error) {
	q := apiclient.QueryOptions(ctx, alloc.Namespace)
	q.WaitTime = placementCheckInterval
	for {
		a, meta, err := r.client.Allocations().Info(alloc.ID, q)
		if err != nil {
			return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read allocation %q", alloc.ID), err)
		}
		if reached(a) {
			return a, nil
		}
		if optionalEvalID != "" {
			eval, _, err := r.client.Evaluations().Info(optionalEvalID, apiclient.QueryOptions(ctx, alloc.Namespace))
			if err == nil && (eval.BlockedEval != "" || len(eval.FailedTGAllocs) > 0) {
				return nil, fmt.Errorf("there is no room for it\nSee why: nomad-lite eval status %s", output.TruncateID(optionalEvalID))
			}
		}
		if err := monitor.MakeNextQueryBlockOrSleep(ctx, q, meta); err != nil {
			return nil, err
		}
	}
}
