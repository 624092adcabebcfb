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
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/variables"
)

// foregroundRun is the jobs of a run on an open agent of this process.
type foregroundRun struct {
	agent    *agent.Agent
	files    []*jobfile.File
	paths    []string // of the files
	reader   jobReader
	taskView *taskview.View
	streams  *cli.Streams
	signals  <-chan os.Signal

	optionalHooks []string        // names of the hooks whose failure does not prevent tasks from running
	nomadVars     []*api.Variable // variables for templates
	logger        hclog.Logger
	watching      bool // the run follows files, and ends only when it is stopped
	watchedPaths  []watchedPath
	plugin        *pluginUnderWork // nil unless the run is for the author of a plugin

	registerMu  sync.Mutex             // held while a new version of a job is registered, or all jobs are stopped
	stopReason  atomic.Pointer[string] // nil unless all allocations are being stopped
	allocsEnded chan struct{}          // closed when all allocations of the jobs have ended
	endedJobs   []*foregroundJob       // nil unless run has ended with results
}

func (r *foregroundRun) run(ctx context.Context) error {
	if err := r.agent.WaitReady(ctx); err != nil {
		return err
	}
	if err := r.waitPluginsReady(ctx); err != nil {
		return err
	}
	if err := r.checkPlugins(ctx); err != nil {
		return err
	}
	if err := r.checkCapacity(); err != nil {
		return err
	}
	jobs := newForegroundJobs(r.files, r.paths)
	if !slices.ContainsFunc(jobs, func(j *foregroundJob) bool { return j.rows.Instances > 0 }) {
		r.endedJobs = jobs
		return nil
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	agentCtx, endAgent := context.WithCancel(ctx)
	defer endAgent()
	wg.Go(func() { r.agent.Run(agentCtx) })
	wg.Go(func() { r.serveTasks(agentCtx) })
	select {
	case <-r.agent.Node().Registered():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// The watcher exists before the tasks start: a user can change a file as soon as their output is shown.
	var watcher *filewatch.Watcher
	if r.watching {
		watcher = filewatch.New(r.allWatchedPaths(jobs), nil)
	}
	if err := r.registerJobs(ctx, jobs); err != nil {
		return err
	}
	if r.watching {
		wg.Go(func() { r.watchFiles(agentCtx, watcher, jobs) })
	}
	if r.plugin != nil {
		wg.Go(func() { r.followPlugin(agentCtx, jobs) })
	}
	wg.Go(func() { r.handleSignals(ctx) })
	return r.watchAllocs(ctx, jobs)
}

// serveTasks serves the API to the tasks of the run, and to no other client.
func (r *foregroundRun) serveTasks(ctx context.Context) {
	node := r.agent.Node()
	tasks := httpapi.New(httpapi.Config{
		Store: r.agent.Store(), Scheduler: r.agent.Scheduler(), Node: r.agent, NodeID: node.ID(), Region: node.TaskEnvNode().Region,
		Version: fingerprint.NomadVersion, Identities: r.agent.Identities(), Logger: r.logger,
	})
	if err := tasks.Serve(ctx, connlimit.New(connlimit.Config{Logger: r.logger}).Listen(r.agent.TaskAPI())); err != nil {
		r.logger.Warn("tasks cannot reach the API", "error", err)
	}
}

// registerJobs gives the jobs to the scheduler. It prepares their namespaces first, because the jobs start at once.
func (r *foregroundRun) registerJobs(ctx context.Context, jobs []*foregroundJob) error {
	for _, j := range jobs {
		if err := r.prepareNamespace(ctx, *j.job.Namespace); err != nil {
			return err
		}
	}
	for _, j := range jobs {
		if err := r.registerJob(ctx, j, j.file); err != nil {
			return wrapStartError(err)
		}
	}
	return nil
}

// registerJob gives a version of a job to the scheduler.
func (r *foregroundRun) registerJob(ctx context.Context, j *foregroundJob, file *jobfile.File) error {
	if _, err := r.agent.Scheduler().Register(ctx, newForegroundJob(file.Job, r.watching), scheduler.RegisterOptions{}); err != nil {
		return err
	}
	stored := r.agent.Store().Snapshot().Job(nil, *j.job.Namespace, *j.job.ID)
	j.setCurrent(file, *stored.Version)
	return nil
}

// prepareNamespace creates a namespace, because the store is new, and the variables in it.
func (r *foregroundRun) prepareNamespace(ctx context.Context, name string) error {
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

// checkCapacity rejects jobs that do not fit on this machine as a whole, because a foreground
// run does not wait for free resources.
func (r *foregroundRun) checkCapacity() error {
	checks := r.files
	if len(r.files) > 1 {
		checks = append(slices.Clip(checks), combineJobs(r.files))
	}
	for _, f := range checks {
		if fits, err := jobcheck.CheckCapacity(f, r.streams, r.agent, r.agent.IsPortFree); err != nil || !fits {
			return errors.Join(errNotStarted, err)
		}
	}
	return nil
}

// newForegroundJob returns the job as a foreground run executes it: a failed allocation is
// replaced only if the file has a block for that. Nomad's default, one more attempt or
// unlimited attempts, would delay the report of the failure. With allAtOnce, a new version
// replaces all allocations at once, and not one after the other when each is healthy.
func newForegroundJob(job *api.Job, allAtOnce bool) *api.Job {
	next := *job
	next.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range next.TaskGroups {
		if allAtOnce && g.Update != nil {
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

// logDir returns the directory with the output of an allocation's tasks.
func (r *foregroundRun) logDir(allocID string) string {
	dir, err := r.agent.AllocDir(allocID)
	if err != nil {
		return "" // the ids of the scheduler are valid
	}
	return dir.LogDir()
}

// watchAllocs shows the updates of the jobs until all their allocations have ended and none will be
// replaced. It returns an error if the jobs had to be stopped for lack of resources.
func (r *foregroundRun) watchAllocs(ctx context.Context, jobs []*foregroundJob) error {
	shown := make(chan struct{}) // closed when the view has shown all updates
	var outputReaders sync.WaitGroup
	var blockedErr error
	idle := false // all jobs have ended, and the run waits for changes of files
	for {
		ws := store.NewWatchSet()
		state := r.agent.Store().Snapshot()
		over := true
		for _, j := range jobs {
			j.read(ws, state)
			for _, task := range r.taskView.AddTasks(j.newAllocs(), j.rows, r.logDir) {
				outputReaders.Go(func() { r.showTaskOutput(ctx, task, shown) })
			}
			j.showUpdates(r.taskView)
			over = over && j.isOver(state)
			if blockedErr == nil {
				blockedErr = j.blockedError(state)
			}
		}
		if blockedErr != nil && r.stopReason.Load() == nil {
			// The jobs were checked to fit on the machine, so another process has taken resources
			// since then.
			r.stopAllocs(ctx, "they do not fit on this machine")
			continue
		}
		if over && !idle && r.watching && r.stopReason.Load() == nil {
			r.printIdle(jobs)
		}
		idle = over
		if !over || r.watching && r.stopReason.Load() == nil {
			if err := ws.WatchCtx(ctx); err != nil {
				return context.Cause(ctx)
			}
			continue
		}
		close(r.allocsEnded)
		r.waitOutputWritten(func() {
			r.taskView.ShowUpdates()
			close(shown)
			outputReaders.Wait()
		})
		r.endedJobs = jobs
		return blockedErr
	}
}

// printIdle shows why all jobs have ended, in a run that then waits for changes of files.
func (r *foregroundRun) printIdle(jobs []*foregroundJob) {
	for _, j := range jobs {
		text := taskreason.SuccessText(*j.job.ID)
		if err := taskreason.JobError(j.job, j.failures(false)); err != nil {
			text = err.Error()
		}
		r.taskView.PrintMessage(text)
	}
	r.taskView.PrintMessage("waiting for changes of files; Ctrl-C ends the run")
}

// showResults shows why the jobs have ended, and returns the errors of those that were not successful.
func (r *foregroundRun) showResults() error {
	var errs []error
	for _, j := range r.endedJobs {
		errs = append(errs, r.showResult(j))
	}
	return errors.Join(errs...)
}

func (r *foregroundRun) showResult(j *foregroundJob) error {
	stopReason := r.stopReason.Load()
	failures := j.failures(stopReason != nil)
	reason := taskreason.SuccessText(*j.job.ID)
	err := taskreason.JobError(j.job, failures)
	switch {
	case err != nil && stopReason != nil:
		err = fmt.Errorf("%w\njob %q was stopped: %s", err, *j.job.ID, *stopReason)
		reason = err.Error()
	case err != nil:
		reason = err.Error()
	case j.rows.Instances == 0:
		reason = fmt.Sprintf("job %q has nothing to run: the count of each group is 0", *j.job.ID)
	case stopReason != nil && !(taskreason.IsFiniteJob(j.job) && len(j.allocs) >= j.rows.Instances): // otherwise it had completed
		reason = fmt.Sprintf("job %q was stopped: %s", *j.job.ID, *stopReason)
	}
	r.taskView.PrintResult(*j.job.ID, failures, reason)
	return err
}

// stopAllocs requests a stop of all allocations.
func (r *foregroundRun) stopAllocs(ctx context.Context, reason string) {
	r.registerMu.Lock()
	defer r.registerMu.Unlock()
	r.stopReason.CompareAndSwap(nil, &reason)
	for _, f := range r.files {
		if _, err := r.agent.Scheduler().Deregister(ctx, scheduler.KeyOf(f.Job), scheduler.DeregisterOptions{}); err != nil {
			r.taskView.PrintMessage("the job cannot be stopped in order: " + err.Error())
			r.agent.ForceKillAllocs()
			return
		}
	}
}

// outputFlushTimeout is the time after the end of the job in which Ctrl-C still counts as meant for the
// job. Later it discards the output that is not written yet.
const outputFlushTimeout = time.Second

// waitOutputWritten waits until the last output is written, or until a signal discards it, because a
// terminal or a pager can block the output.
func (r *foregroundRun) waitOutputWritten(writeOutput func()) {
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
	r.taskView.PrintMessage("output is blocked; press Ctrl-C again to discard it")
	select {
	case <-read:
	case <-r.signals:
		r.taskView.DiscardOutput()
	}
}

// handleSignals stops the job at the first signal, and force kills it at the second. The third exits
// nomad-lite, if the kill is delayed.
func (r *foregroundRun) handleSignals(ctx context.Context) {
	var reason string
	select {
	case s := <-r.signals:
		reason = unix.SignalName(s.(syscall.Signal))
	case <-r.taskView.BrokenPipe:
		reason = "the reader of its output is gone"
	case <-r.allocsEnded:
		return
	}
	r.taskView.PrintMessage("stopping the job; press Ctrl-C again to kill it")
	r.stopAllocs(ctx, reason)
	var destroyWG sync.WaitGroup
	defer destroyWG.Wait()
	untilEnded, cancel := context.WithCancel(ctx)
	defer cancel()
	destroyWG.Go(func() {
		r.agent.KillUndestroyedAllocs(untilEnded, func() {
			r.taskView.PrintMessage("a driver has not destroyed its ended tasks; the run ends without it")
		})
	})
	select {
	case <-time.After(cli.DuplicateSignalWindow):
	case <-r.allocsEnded:
		return
	}
	for len(r.signals) > 0 {
		<-r.signals
	}
	select {
	case <-r.signals:
	case <-r.allocsEnded:
		return
	}
	signal.Reset(stopSignals...)
	r.taskView.PrintMessage("killing the job")
	r.agent.ForceKillAllocs()
}
