package run

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/filewatch"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobcheck"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// watchFlags select the files that a run watches.
type watchFlags struct {
	watchJobFiles bool
	watchPathArgs []string
}

func (f *watchFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.watchJobFiles, "watch", false, "restart what changed when a job file changes, or a file that it reads, until Ctrl-C")
	cmd.Flags().StringArrayVar(&f.watchPathArgs, "watch-path", nil, "as -watch, and restart all tasks, or one, when this file or directory changes: `[TASK=]PATH`; may be repeated")
}

// watchesFiles reports whether the run watches files.
func (f *watchFlags) watchesFiles() bool { return f.watchJobFiles || len(f.watchPathArgs) > 0 }

// parseWatchPathArgs returns the paths of -watch-path, each with the name of the task that a change restarts, or "" for
// all tasks.
func (f *watchFlags) parseWatchPathArgs() []watchedPath {
	watched := make([]watchedPath, len(f.watchPathArgs))
	for i, text := range f.watchPathArgs {
		task, path, found := strings.Cut(text, "=")
		if !found {
			task, path = "", text
		}
		watched[i] = watchedPath{path: path, restartedTaskOrAll: task}
	}
	return watched
}

// watchedPath is a file or a directory whose change restarts tasks.
type watchedPath struct {
	path               string
	restartedTaskOrAll string // name of the task that is restarted; empty for all tasks
	// isTemplateSource means that the path is the source of a template. Its change replaces the whole allocation,
	// because a task that is only restarted keeps its rendered templates.
	isTemplateSource bool
}

// checkWatchedPaths rejects watched paths that do not exist, names of tasks that no job has, and a job file that is
// standard input.
func (f *watchFlags) checkWatchedPaths(jobFilePaths []string, files []*jobfile.File) error {
	if f.watchesFiles() && slices.Contains(jobFilePaths, "-") {
		return errors.New("-watch: standard input cannot be read again: write the job into a file")
	}
	for _, w := range f.parseWatchPathArgs() {
		if w.restartedTaskOrAll != "" && !slices.ContainsFunc(files, func(f *jobfile.File) bool { return jobHasTask(f.Job, w.restartedTaskOrAll) }) {
			return fmt.Errorf("-watch-path %s=%s: no job has a task %q", w.restartedTaskOrAll, w.path, w.restartedTaskOrAll)
		}
		if _, err := filepath.EvalSymlinks(w.path); err != nil {
			return fmt.Errorf("-watch-path: %w", err)
		}
	}
	return nil
}

// updateJobsOnFileChanges updates jobs and restarts tasks when their files change, until ctx ends.
func (r *foregroundRun) updateJobsOnFileChanges(ctx context.Context, watcher *filewatch.Watcher, jobs []*foregroundJob) {
	for {
		changed := watcher.WaitForSettledChange(ctx, r.allWatchedPaths(jobs))
		if changed == nil {
			return
		}
		for _, j := range jobs {
			if text := r.applyChangesAndDescribe(ctx, j, changed); text != "" {
				r.taskView.QueueMessage(strings.Join(changed, ", ") + " changed: " + text)
			}
		}
	}
}

func (r *foregroundRun) allWatchedPaths(jobs []*foregroundJob) []string {
	var paths []string
	for _, j := range jobs {
		paths = append(paths, r.jobReader.pathsReadForJob(j)...)
		for _, w := range j.watchedTemplateSources() {
			paths = append(paths, w.path)
		}
	}
	for _, w := range r.watchedPaths {
		paths = append(paths, w.path)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// pathsReadForJob returns the paths of all files that are read to make a job: variable files, environment files, and
// the job file with the files that it reads.
func (r *jobReader) pathsReadForJob(j *foregroundJob) []string {
	paths := slices.Concat(r.jobFileFlags.VarFiles, r.environmentFlags.envFiles, j.lastRegisteredFile().Parsed.PathsReadByFunctions)
	if j.filePath != "-" {
		paths = append(paths, j.filePath)
	}
	return paths
}

// watchedTemplateSources returns the sources of a job's templates that are files of this machine, and not files in the
// directory of a task.
func (j *foregroundJob) watchedTemplateSources() []watchedPath {
	var sources []watchedPath
	apiclient.ForEachTask(j.lastRegisteredFile().Job, func(_ *api.TaskGroup, t *api.Task) {
		for _, template := range t.Templates {
			if path := pointer.Value(template.SourcePath); filepath.IsAbs(path) && !strings.Contains(path, "${") {
				sources = append(sources, watchedPath{path, t.Name, true})
			}
		}
	})
	return sources
}

// applyChangesAndDescribe updates a job if one of its input files has changed, and otherwise restarts the tasks to
// which the changed paths belong. It returns a description of the effect, or "" if the paths do not concern the job.
func (r *foregroundRun) applyChangesAndDescribe(ctx context.Context, j *foregroundJob, changedPaths []string) string {
	isChanged := func(path string) bool { return slices.Contains(changedPaths, path) }
	if slices.ContainsFunc(r.jobReader.pathsReadForJob(j), isChanged) {
		return r.reregisterAndDescribe(ctx, j)
	}
	causes := slices.DeleteFunc(slices.Concat(r.watchedPaths, j.watchedTemplateSources()), func(w watchedPath) bool {
		return !isChanged(w.path) || w.restartedTaskOrAll != "" && !jobHasTask(j.lastRegisteredFile().Job, w.restartedTaskOrAll)
	})
	if len(causes) == 0 {
		return ""
	}
	return r.restartTasksAndDescribe(ctx, j, causes)
}

func jobHasTask(job *api.Job, name string) bool {
	found := false
	apiclient.ForEachTask(job, func(_ *api.TaskGroup, t *api.Task) { found = found || t.Name == name })
	return found
}

// reregisterAndDescribe reads a job's file again and registers the job with the scheduler, which replaces the
// allocations of the changed groups. A file with errors changes nothing. It returns a description of the effect.
func (r *foregroundRun) reregisterAndDescribe(ctx context.Context, j *foregroundJob) string {
	before := j.lastRegisteredVersion()
	file, err := r.readAndCheckChangedJob(ctx, j)
	if err == nil {
		err = r.registerUnlessStopped(func() error { return r.registerJob(ctx, j, file) })
	}
	switch {
	case errors.Is(err, errStopped):
		return ""
	case err != nil:
		return fmt.Sprintf("job %q stays as it is%s", *j.initialJob.ID, formatReasonUnlessPrinted(err))
	case j.lastRegisteredVersion() == before:
		return fmt.Sprintf("job %q is the same as before", *j.initialJob.ID)
	}
	return fmt.Sprintf("job %q is updated", *j.initialJob.ID)
}

// formatReasonUnlessPrinted returns the text of an error after a colon, or "" if the reason was printed.
func formatReasonUnlessPrinted(err error) string {
	if exit := new(cli.ExitError); errors.As(err, &exit) {
		err = exit.Err
	}
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// readAndCheckChangedJob reads the file of a job again, and checks that this run can execute the job. It prints errors
// and warnings to the view.
func (r *foregroundRun) readAndCheckChangedJob(ctx context.Context, j *foregroundJob) (*jobfile.File, error) {
	reader := r.jobReader
	reader.streams = &cli.Streams{Out: r.taskView, Err: r.taskView, NoColour: true}
	file, err := reader.readAndAdaptJob(ctx, j.filePath)
	if err != nil {
		return nil, err
	}
	return file, r.checkChangedJob(ctx, j, file, reader.streams)
}

// checkChangedJob rejects a new version of a job that this run cannot execute.
func (r *foregroundRun) checkChangedJob(ctx context.Context, j *foregroundJob, file *jobfile.File, s *cli.Streams) error {
	if scheduler.JobKeyOf(file.Job) != scheduler.JobKeyOf(j.initialJob) {
		return fmt.Errorf("the file has job %q of namespace %q now: start another run", *file.Job.ID, *file.Job.Namespace)
	}
	started := append(driverNamesOfJobs(r.jobFiles), hookNamesOfJobs(r.jobFiles)...)
	for _, name := range append(file.DriverNames(), jobcheck.HookNamesNeededByJob(file)...) {
		if !slices.Contains(started, name) {
			return fmt.Errorf("plugin %q was not started with this run: start another run", name)
		}
	}
	if _, err := r.checkAdmissionWithPlugins(ctx, file, s); err != nil {
		return err
	}
	// All ports count as free, because the present allocations of this run can use them.
	if fits, err := jobcheck.CheckFitsEmptyAgentNode(file, s, r.agent, func(scheduler.HostPort) bool { return true }); err != nil || !fits {
		return errors.Join(errNotStarted, err)
	}
	return nil
}

// restartTasksAndDescribe restarts the tasks of changed paths. If no allocation of the job runs, it runs the job again.
func (r *foregroundRun) restartTasksAndDescribe(ctx context.Context, j *foregroundJob, causes []watchedPath) string {
	state := r.agent.Store().Snapshot()
	running := false
	var errs []error
	for _, a := range state.AllocationsByJob(nil, *j.initialJob.Namespace, *j.initialJob.ID) {
		if !state.AllocationEnded(a.ID) {
			running = true
			errs = append(errs, r.restartTasksOrReplaceAlloc(ctx, a, causes))
		}
	}
	if !running {
		errs = append(errs, r.rereadAndRerunJob(ctx, j))
	}
	switch err := errors.Join(errs...); {
	case errors.Is(err, errStopped):
		return ""
	case err != nil:
		return fmt.Sprintf("job %q is not restarted%s", *j.initialJob.ID, formatReasonUnlessPrinted(err))
	}
	if tasks := restartedTaskNames(causes); !slices.Contains(tasks, "") {
		return fmt.Sprintf("task %s of job %q is restarted", strings.Join(tasks, ", "), *j.initialJob.ID)
	}
	return fmt.Sprintf("job %q is restarted", *j.initialJob.ID)
}

// restartedTaskNames returns the sorted names of the tasks of changed paths. An empty name means all tasks.
func restartedTaskNames(causes []watchedPath) []string {
	names := make([]string, len(causes))
	for i, w := range causes {
		names[i] = w.restartedTaskOrAll
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// restartTasksOrReplaceAlloc restarts the tasks of changed paths in one allocation. If a path is the source of a
// template, it replaces the allocation.
func (r *foregroundRun) restartTasksOrReplaceAlloc(ctx context.Context, a *api.Allocation, causes []watchedPath) error {
	causes = slices.DeleteFunc(slices.Clone(causes), func(w watchedPath) bool {
		return w.restartedTaskOrAll != "" && a.TaskStates[w.restartedTaskOrAll] == nil
	})
	if slices.ContainsFunc(causes, func(w watchedPath) bool { return w.isTemplateSource }) {
		return r.registerUnlessStopped(func() error {
			_, err := r.agent.Scheduler().StopAndReplaceAlloc(ctx, a.ID, scheduler.StopOptions{Reschedule: taskreason.IsBatchOrSysbatch(a.Job)})
			return err
		})
	}
	runner := r.agent.Allocs().AllocRunner(a.ID)
	if runner == nil {
		return nil
	}
	tasks := restartedTaskNames(causes)
	if slices.Contains(tasks, "") {
		tasks = []string{""}
	}
	var errs []error
	for _, task := range tasks {
		errs = append(errs, runner.RestartAsyncWithReason(ctx, task, "a watched file has changed", false))
	}
	return errors.Join(errs...)
}

// rereadAndRerunJob runs a job again whose allocations have ended. It deregisters the job first, because the scheduler
// replaces ended allocations only for a new version, and the registration of a stopped job creates one.
func (r *foregroundRun) rereadAndRerunJob(ctx context.Context, j *foregroundJob) error {
	file, err := r.readAndCheckChangedJob(ctx, j)
	if err != nil {
		return err
	}
	return r.registerUnlessStopped(func() error {
		if _, err := r.agent.Scheduler().DeregisterJob(ctx, scheduler.JobKeyOf(j.initialJob), scheduler.DeregisterOptions{}); err != nil {
			return err
		}
		return r.registerJob(ctx, j, file)
	})
}

// errStopped is the error of an update that came after the jobs were requested to stop.
var errStopped = errors.New("the jobs are being stopped")

// registerUnlessStopped calls register, which starts allocations, unless the jobs are being stopped. It returns
// errStopped if they are.
func (r *foregroundRun) registerUnlessStopped(register func() error) error {
	r.registerMu.Lock()
	defer r.registerMu.Unlock()
	if r.stopReason.Load() != nil {
		return errStopped
	}
	return register()
}
