package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/filewatch"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobcheck"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskview"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/connlimit"
	"github.com/nomad-lite/nomad-lite/runtime/agent/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/variables"
)

// foregroundRun runs jobs on an agent of this process until they end.
type foregroundRun struct {
	agent        *agent.Agent
	jobFiles     []*jobfile.File
	jobFilePaths []string // paths of files, in the same order
	jobReader    jobReader
	taskView     *taskview.View
	streams      *cli.Streams
	signals      <-chan os.Signal

	hooksAllowedToFail []string        // names of the hooks whose failure does not prevent tasks from running
	nomadVars          []*api.Variable // variables for templates
	logger             hclog.Logger
	isWatchingFiles    bool // the run watches files, and ends only when it is stopped
	watchedPaths       []watchedPath
	devPlugin          *devPlugin // nil unless the command is `plugin dev`

	registerMu     sync.Mutex             // held while a new version of a job is registered, and while all jobs are deregistered
	stopReason     atomic.Pointer[string] // why all allocations are being stopped; nil if they are not
	allAllocsEnded chan struct{}          // closed when all allocations of the jobs have ended
	endedJobs      []*foregroundJob       // jobs with results; nil until all of them have ended
}

func (r *foregroundRun) runJobs(ctx context.Context) error {
	if err := r.agent.Supervisor().WaitBrieflyForFirstReports(ctx); err != nil {
		return err
	}
	if err := r.waitNeededPluginsReady(ctx); err != nil {
		return err
	}
	if err := r.checkPluginsUsable(ctx); err != nil {
		return err
	}
	if err := r.checkJobsFitTogether(); err != nil {
		return err
	}
	jobs := newForegroundJobs(r.jobFiles, r.jobFilePaths)
	if !slices.ContainsFunc(jobs, func(j *foregroundJob) bool { return j.placementInView.AllocCount > 0 }) {
		r.endedJobs = jobs
		return nil
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	agentCtx, endAgent := context.WithCancel(ctx)
	defer endAgent()
	wg.Go(func() { r.agent.Run(agentCtx) })
	wg.Go(func() { r.serveTaskAPI(agentCtx) })
	select {
	case <-r.agent.Node().Registered():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// The watcher must exist before the tasks start, because a user can change a file as soon as the tasks' output is
	// shown.
	var watcher *filewatch.Watcher
	if r.isWatchingFiles {
		watcher = filewatch.New(r.allWatchedPaths(jobs), nil)
	}
	if err := r.registerJobs(ctx, jobs); err != nil {
		return err
	}
	if r.isWatchingFiles {
		wg.Go(func() { r.updateJobsOnFileChanges(agentCtx, watcher, jobs) })
	}
	if r.devPlugin != nil {
		wg.Go(func() { r.rebuildAndReplaceOnChanges(agentCtx, jobs) })
	}
	wg.Go(func() { r.stopThenKillOnSignals(ctx) })
	return r.showAllocsUntilEnded(ctx, jobs)
}

// serveTaskAPI serves the HTTP API on the sockets in the tasks' directories, and to no other client.
func (r *foregroundRun) serveTaskAPI(ctx context.Context) {
	if err := httpapi.New(r.agent.APIConfig()).Serve(ctx, connlimit.New(connlimit.Config{Logger: r.logger}).LimitListener(r.agent.TaskAPIListener())); err != nil {
		r.logger.Warn("tasks cannot reach the API", "error", err)
	}
}

// registerJobs registers the jobs with the scheduler. It prepares all namespaces first, because a registered job starts
// at once.
func (r *foregroundRun) registerJobs(ctx context.Context, jobs []*foregroundJob) error {
	for _, j := range jobs {
		if err := r.createNamespaceWithVars(ctx, *j.initialJob.Namespace); err != nil {
			return err
		}
	}
	for _, j := range jobs {
		if err := r.registerJob(ctx, j, j.registeredFile); err != nil {
			return withNotStartedCode(err)
		}
	}
	return nil
}

// registerJob registers a version of a job with the scheduler.
func (r *foregroundRun) registerJob(ctx context.Context, j *foregroundJob, file *jobfile.File) error {
	if _, err := r.agent.Scheduler().RegisterAndEvaluateJob(ctx, withoutDefaultReschedule(file.Job, r.isWatchingFiles), scheduler.RegisterOptions{}); err != nil {
		return err
	}
	stored := r.agent.Store().Snapshot().Job(nil, *j.initialJob.Namespace, *j.initialJob.ID)
	j.setLastRegistered(file, *stored.Version)
	return nil
}

// createNamespaceWithVars creates a namespace, which a new store does not have, and the Nomad variables in it.
func (r *foregroundRun) createNamespaceWithVars(ctx context.Context, name string) error {
	if _, err := r.agent.Store().Update(ctx, func(tx *store.Txn) error {
		tx.PutNamespace(&api.Namespace{Name: name})
		return nil
	}); err != nil {
		return err
	}
	vars := variables.New(r.agent.Store(), hclog.NewNullLogger())
	for _, v := range r.nomadVars {
		copied := *v
		copied.Namespace = name
		if _, err := vars.Put(ctx, &copied, nil); err != nil {
			return fmt.Errorf("-nomad-var %s: %w", v.Path, err)
		}
	}
	return nil
}

// checkJobsFitTogether rejects jobs that do not fit on this machine together, because a foreground run does not wait
// for free resources.
func (r *foregroundRun) checkJobsFitTogether() error {
	checks := r.jobFiles
	if len(r.jobFiles) > 1 {
		checks = append(slices.Clip(checks), combineGroupsOfJobs(r.jobFiles))
	}
	for _, f := range checks {
		if fits, err := jobcheck.CheckFitsEmptyAgentNode(f, r.streams, r.agent, r.agent.IsPortFree); err != nil || !fits {
			return errors.Join(errNotStarted, err)
		}
	}
	return nil
}

// withoutDefaultReschedule returns a copy of a job with changed policies. Unless the file has a reschedule block, a
// failed allocation is not replaced, because Nomad's default attempts would delay the report of the failure. With
// updateAllAtOnce, a new version replaces all allocations at once, instead of one after the other when each is healthy.
func withoutDefaultReschedule(job *api.Job, updateAllAtOnce bool) *api.Job {
	next := *job
	next.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range next.TaskGroups {
		if updateAllAtOnce && g.Update != nil {
			group, update := *g, *g.Update
			update.MaxParallel, update.Canary, update.AutoPromote, update.AutoRevert = new(0), new(0), new(false), new(false)
			group.Update = &update
			next.TaskGroups[i], g = &group, &group
		}
		if p := g.ReschedulePolicy; p == nil || !reflect.DeepEqual(p, api.NewDefaultReschedulePolicy(*job.Type)) {
			continue
		}
		group, never := *g, *g.ReschedulePolicy
		never.Attempts, never.Unlimited = new(0), new(false)
		group.ReschedulePolicy = &never
		next.TaskGroups[i] = &group
	}
	return &next
}

// allocLogDir returns the directory with the output of an allocation's tasks.
func (r *foregroundRun) allocLogDir(allocID string) string {
	dir, err := r.agent.Files().AllocDir(allocID)
	if err != nil {
		return "" // AllocDir fails only for an invalid ID, which a scheduler does not create
	}
	return dir.LogDir()
}

// showAllocsUntilEnded shows the updates of the jobs' allocations until all allocations have ended and none will be
// replaced. It returns an error if the jobs had to be stopped for lack of resources.
func (r *foregroundRun) showAllocsUntilEnded(ctx context.Context, jobs []*foregroundJob) error {
	shown := make(chan struct{}) // closed when the view has shown all updates
	var outputReaders sync.WaitGroup
	var blockedErr error
	idle := false // all jobs have ended, and the run waits for a change of a watched file
	for {
		ws := store.NewWatchSet()
		state := r.agent.Store().Snapshot()
		allEnded := true
		for _, j := range jobs {
			j.readAllocsAndEvals(ws, state)
			for _, task := range r.taskView.AddTasks(j.allocsNotYetShown(), j.placementInView, r.allocLogDir) {
				outputReaders.Go(func() { r.showTaskOutput(ctx, task, shown) })
			}
			j.queueChangedAllocs(r.taskView)
			allEnded = allEnded && j.hasEnded(state)
			if blockedErr == nil {
				blockedErr = j.errorIfUnplaced(state)
			}
		}
		if blockedErr != nil && r.stopReason.Load() == nil {
			// checkJobsFitTogether has found that the jobs fit on the machine, so another process has taken resources
			// since then.
			r.deregisterJobsOrKillAllocs(ctx, "they do not fit on this machine")
			continue
		}
		if allEnded && !idle && r.isWatchingFiles && r.stopReason.Load() == nil {
			r.printResultsAndWaiting(jobs)
		}
		idle = allEnded
		if !allEnded || r.isWatchingFiles && r.stopReason.Load() == nil {
			if err := ws.WatchCtx(ctx); err != nil {
				return context.Cause(ctx)
			}
			continue
		}
		close(r.allAllocsEnded)
		r.writeOutputOrDiscardOnSignal(func() {
			r.taskView.ShowQueuedUpdates()
			close(shown)
			outputReaders.Wait()
		})
		r.endedJobs = jobs
		return blockedErr
	}
}

// printResultsAndWaiting shows the results of the jobs in a run that then waits for a change of a watched file.
func (r *foregroundRun) printResultsAndWaiting(jobs []*foregroundJob) {
	for _, j := range jobs {
		text := taskreason.JobSuccessText(*j.initialJob.ID)
		if err := taskreason.JobError(j.initialJob, j.findFailures(false)); err != nil {
			text = err.Error()
		}
		r.taskView.QueueMessage(text)
	}
	r.taskView.QueueMessage("waiting for changes of files; Ctrl-C ends the run")
}

// showResultsAndJoinFailures shows the results of the jobs, and returns the errors of those that were not successful.
func (r *foregroundRun) showResultsAndJoinFailures() error {
	var errs []error
	for _, j := range r.endedJobs {
		errs = append(errs, r.showResultAndReturnFailure(j))
	}
	return errors.Join(errs...)
}

func (r *foregroundRun) showResultAndReturnFailure(j *foregroundJob) error {
	stopReason := r.stopReason.Load()
	failures := j.findFailures(stopReason != nil)
	reason := taskreason.JobSuccessText(*j.initialJob.ID)
	err := taskreason.JobError(j.initialJob, failures)
	switch {
	case err != nil && stopReason != nil:
		err = fmt.Errorf("%w\njob %q was stopped: %s", err, *j.initialJob.ID, *stopReason)
		reason = err.Error()
	case err != nil:
		reason = err.Error()
	case j.placementInView.AllocCount == 0:
		reason = fmt.Sprintf("job %q has nothing to run: the count of each group is 0", *j.initialJob.ID)
	case stopReason != nil && !(taskreason.IsBatchOrSysbatch(j.initialJob) && len(j.allocs) >= j.placementInView.AllocCount): // a finite job whose allocations all exist has completed in spite of the stop
		reason = fmt.Sprintf("job %q was stopped: %s", *j.initialJob.ID, *stopReason)
	}
	r.taskView.QueueResult(*j.initialJob.ID, failures, reason)
	return err
}

// deregisterJobsOrKillAllocs stops all allocations by deregistering the jobs. If that fails, it force kills the
// allocations.
func (r *foregroundRun) deregisterJobsOrKillAllocs(ctx context.Context, reason string) {
	r.registerMu.Lock()
	defer r.registerMu.Unlock()
	r.stopReason.CompareAndSwap(nil, &reason)
	for _, f := range r.jobFiles {
		if _, err := r.agent.Scheduler().DeregisterJob(ctx, scheduler.JobKeyOf(f.Job), scheduler.DeregisterOptions{}); err != nil {
			r.taskView.QueueMessage("the job cannot be stopped in order: " + err.Error())
			r.agent.Allocs().ForceKillAllAllocs()
			return
		}
	}
}

// outputFlushTimeout is the time after the end of the jobs in which Ctrl-C is ignored, because the user still meant it
// for the jobs. Later Ctrl-C discards the output that is not written yet.
const outputFlushTimeout = time.Second

// writeOutputOrDiscardOnSignal calls writeOutput and waits until it returns. If a terminal or a pager blocks the
// output, a signal discards the output instead.
func (r *foregroundRun) writeOutputOrDiscardOnSignal(writeOutput func()) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		writeOutput()
	}()
	select {
	case <-read:
		return
	case <-time.After(outputFlushTimeout):
	}
	for len(r.signals) > 0 {
		<-r.signals
	}
	r.taskView.QueueMessage("output is blocked; press Ctrl-C again to discard it")
	select {
	case <-read:
	case <-r.signals:
		r.taskView.DiscardFurtherOutput()
	}
}

// stopThenKillOnSignals stops the jobs at the first signal, and force kills them at the second. It resets the signal
// handlers before the kill, so that a third signal exits nomad-lite.
func (r *foregroundRun) stopThenKillOnSignals(ctx context.Context) {
	var reason string
	select {
	case s := <-r.signals:
		reason = unix.SignalName(s.(syscall.Signal))
	case <-r.taskView.BrokenPipe:
		reason = "the reader of its output is gone"
	case <-r.allAllocsEnded:
		return
	}
	r.taskView.QueueMessage("stopping the job; press Ctrl-C again to kill it")
	r.deregisterJobsOrKillAllocs(ctx, reason)
	var destroyWG sync.WaitGroup
	defer destroyWG.Wait()
	untilEnded, cancel := context.WithCancel(ctx)
	defer cancel()
	destroyWG.Go(func() {
		r.agent.Allocs().ForceKillAllocsIfDestroyTimesOut(untilEnded, func() {
			r.taskView.QueueMessage("a driver has not destroyed its ended tasks; the run ends without it")
		})
	})
	select {
	case <-time.After(cli.DuplicateSignalWindow):
	case <-r.allAllocsEnded:
		return
	}
	for len(r.signals) > 0 {
		<-r.signals
	}
	select {
	case <-r.signals:
	case <-r.allAllocsEnded:
		return
	}
	signal.Reset(stopSignals...)
	r.taskView.QueueMessage("killing the job")
	r.agent.Allocs().ForceKillAllAllocs()
}
