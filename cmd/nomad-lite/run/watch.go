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

// watchFlags make a run follow the files of its jobs.
type watchFlags struct {
	watch bool
	paths []string
}

func (f *watchFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.watch, "watch", false, "restart what changed when a job file changes, or a file that it reads, until Ctrl-C")
	cmd.Flags().StringArrayVar(&f.paths, "watch-path", nil, "as -watch, and restart all tasks, or one, when this file or directory changes: `[TASK=]PATH`; may be repeated")
}

// isSet reports whether the run follows files.
func (f *watchFlags) isSet() bool { return f.watch || len(f.paths) > 0 }

// parsePaths returns the watched paths and the task that each restarts, "" for all.
func (f *watchFlags) parsePaths() []watchedPath {
	watched := make([]watchedPath, len(f.paths))
	for i, text := range f.paths {
		task, path, found := strings.Cut(text, "=")
		if !found {
			task, path = "", text
		}
		watched[i] = watchedPath{path: path, task: task}
	}
	return watched
}

// watchedPath is a file or a directory whose change restarts a task.
type watchedPath struct {
	path string
	task string // empty for all tasks
	// isTemplate means that the whole allocation is replaced: a restarted task keeps its rendered templates.
	isTemplate bool
}

// check rejects watched paths that do not exist, tasks that no job has, and standard input.
func (f *watchFlags) check(paths []string, files []*jobfile.File) error {
	if f.isSet() && slices.Contains(paths, "-") {
		return errors.New("-watch: standard input cannot be read again: write the job into a file")
	}
	for _, w := range f.parsePaths() {
		if w.task != "" && !slices.ContainsFunc(files, func(f *jobfile.File) bool { return hasTask(f.Job, w.task) }) {
			return fmt.Errorf("-watch-path %s=%s: no job has a task %q", w.task, w.path, w.task)
		}
		if _, err := filepath.EvalSymlinks(w.path); err != nil {
			return fmt.Errorf("-watch-path: %w", err)
		}
	}
	return nil
}

// watchFiles updates jobs and restarts tasks when their files change, until ctx ends.
func (r *foregroundRun) watchFiles(ctx context.Context, watcher *filewatch.Watcher, jobs []*foregroundJob) {
	for {
		changed := watcher.Wait(ctx, r.allWatchedPaths(jobs))
		if changed == nil {
			return
		}
		for _, j := range jobs {
			if text := r.applyChanges(ctx, j, changed); text != "" {
				r.taskView.PrintMessage(strings.Join(changed, ", ") + " changed: " + text)
			}
		}
	}
}

func (r *foregroundRun) allWatchedPaths(jobs []*foregroundJob) []string {
	var paths []string
	for _, j := range jobs {
		paths = append(paths, r.reader.inputs(j)...)
		for _, w := range j.templateSources() {
			paths = append(paths, w.path)
		}
	}
	for _, w := range r.watchedPaths {
		paths = append(paths, w.path)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// inputs returns the paths of the files from which a job is read.
func (r *jobReader) inputs(j *foregroundJob) []string {
	paths := slices.Concat(r.jobFile.VarFiles, r.environment.envFiles, j.currentFile().File.ReadPaths)
	if j.path != "-" {
		paths = append(paths, j.path)
	}
	return paths
}

// templateSources returns the templates of a job that are files of this machine, and not of the task.
func (j *foregroundJob) templateSources() []watchedPath {
	var sources []watchedPath
	apiclient.ForEachTask(j.currentFile().Job, func(_ *api.TaskGroup, t *api.Task) {
		for _, template := range t.Templates {
			if path := pointer.Value(template.SourcePath); filepath.IsAbs(path) && !strings.Contains(path, "${") {
				sources = append(sources, watchedPath{path, t.Name, true})
			}
		}
	})
	return sources
}

// applyChanges updates a job if one of its inputs has changed, else it restarts the tasks of the changed
// files. It returns the effect, or "" if the files do not concern the job.
func (r *foregroundRun) applyChanges(ctx context.Context, j *foregroundJob, changed []string) string {
	isChanged := func(path string) bool { return slices.Contains(changed, path) }
	if slices.ContainsFunc(r.reader.inputs(j), isChanged) {
		return r.updateJob(ctx, j)
	}
	causes := slices.DeleteFunc(slices.Concat(r.watchedPaths, j.templateSources()), func(w watchedPath) bool {
		return !isChanged(w.path) || w.task != "" && !hasTask(j.currentFile().Job, w.task)
	})
	if len(causes) == 0 {
		return ""
	}
	return r.restartTasks(ctx, j, causes)
}

func hasTask(job *api.Job, name string) bool {
	found := false
	apiclient.ForEachTask(job, func(_ *api.TaskGroup, t *api.Task) { found = found || t.Name == name })
	return found
}

// updateJob gives the present version of a job's file to the scheduler, which replaces the allocations of the
// groups that have changed. A file with errors changes nothing.
func (r *foregroundRun) updateJob(ctx context.Context, j *foregroundJob) string {
	before := j.currentVersion()
	file, err := r.readUpdate(ctx, j)
	if err == nil {
		err = r.unlessStopped(func() error { return r.registerJob(ctx, j, file) })
	}
	switch {
	case errors.Is(err, errStopped):
		return ""
	case err != nil:
		return fmt.Sprintf("job %q stays as it is%s", *j.job.ID, unprintedText(err))
	case j.currentVersion() == before:
		return fmt.Sprintf("job %q is the same as before", *j.job.ID)
	}
	return fmt.Sprintf("job %q is updated", *j.job.ID)
}

// unprintedText returns the text of an error after a colon, or "" if the reason was printed.
func unprintedText(err error) string {
	if exit := new(cli.ExitError); errors.As(err, &exit) {
		err = exit.Err
	}
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// readUpdate reads the file of a job again, and checks that this run can execute the job. It prints errors to the
// view.
func (r *foregroundRun) readUpdate(ctx context.Context, j *foregroundJob) (*jobfile.File, error) {
	reader := r.reader
	reader.streams = &cli.Streams{Out: r.taskView, Err: r.taskView, NoColour: true}
	file, err := reader.readJob(ctx, j.path)
	if err != nil {
		return nil, err
	}
	return file, r.checkUpdate(ctx, j, file, reader.streams)
}

// checkUpdate rejects a new version of a job that this run cannot execute.
func (r *foregroundRun) checkUpdate(ctx context.Context, j *foregroundJob, file *jobfile.File, s *cli.Streams) error {
	if scheduler.KeyOf(file.Job) != scheduler.KeyOf(j.job) {
		return fmt.Errorf("the file has job %q of namespace %q now: start another run", *file.Job.ID, *file.Job.Namespace)
	}
	started := append(driverNames(r.files), hookNames(r.files)...)
	for _, name := range append(file.DriverNames(), jobcheck.HookNames(file)...) {
		if !slices.Contains(started, name) {
			return fmt.Errorf("plugin %q was not started with this run: start another run", name)
		}
	}
	if _, err := r.checkPluginConfigs(ctx, file, s); err != nil {
		return err
	}
	// All ports count as free, because the tasks of this run can use them.
	if fits, err := jobcheck.CheckCapacity(file, s, r.agent, func(scheduler.HostPort) bool { return true }); err != nil || !fits {
		return errors.Join(errNotStarted, err)
	}
	return nil
}

// restartTasks restarts the tasks of changed files. If no allocation of the job runs, the job runs again.
func (r *foregroundRun) restartTasks(ctx context.Context, j *foregroundJob, causes []watchedPath) string {
	state := r.agent.Store().Snapshot()
	running := false
	var errs []error
	for _, a := range state.AllocationsByJob(nil, *j.job.Namespace, *j.job.ID) {
		if !state.AllocationEnded(a.ID) {
			running = true
			errs = append(errs, r.restartTasksOfAlloc(ctx, a, causes))
		}
	}
	if !running {
		errs = append(errs, r.runAgain(ctx, j))
	}
	switch err := errors.Join(errs...); {
	case errors.Is(err, errStopped):
		return ""
	case err != nil:
		return fmt.Sprintf("job %q is not restarted%s", *j.job.ID, unprintedText(err))
	}
	if tasks := taskNames(causes); !slices.Contains(tasks, "") {
		return fmt.Sprintf("task %s of job %q is restarted", strings.Join(tasks, ", "), *j.job.ID)
	}
	return fmt.Sprintf("job %q is restarted", *j.job.ID)
}

// taskNames returns the tasks of changed files, sorted. An empty name means all tasks.
func taskNames(causes []watchedPath) []string {
	names := make([]string, len(causes))
	for i, w := range causes {
		names[i] = w.task
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// restartTasksOfAlloc restarts the tasks of changed files in one allocation, or replaces the allocation if a
// file is a template.
func (r *foregroundRun) restartTasksOfAlloc(ctx context.Context, a *api.Allocation, causes []watchedPath) error {
	causes = slices.DeleteFunc(slices.Clone(causes), func(w watchedPath) bool { return w.task != "" && a.TaskStates[w.task] == nil })
	if slices.ContainsFunc(causes, func(w watchedPath) bool { return w.isTemplate }) {
		return r.unlessStopped(func() error {
			_, err := r.agent.Scheduler().StopAlloc(ctx, a.ID, scheduler.StopOptions{Reschedule: taskreason.IsFiniteJob(a.Job)})
			return err
		})
	}
	runner := r.agent.Alloc(a.ID)
	if runner == nil {
		return nil
	}
	tasks := taskNames(causes)
	if slices.Contains(tasks, "") {
		tasks = []string{""}
	}
	var errs []error
	for _, task := range tasks {
		errs = append(errs, runner.RestartWithReason(task, "a watched file has changed", false))
	}
	return errors.Join(errs...)
}

// runAgain runs a job again whose allocations have ended. The scheduler replaces them only for a new version,
// which the start of a stopped job is.
func (r *foregroundRun) runAgain(ctx context.Context, j *foregroundJob) error {
	file, err := r.readUpdate(ctx, j)
	if err != nil {
		return err
	}
	return r.unlessStopped(func() error {
		if _, err := r.agent.Scheduler().Deregister(ctx, scheduler.KeyOf(j.job), scheduler.DeregisterOptions{}); err != nil {
			return err
		}
		return r.registerJob(ctx, j, file)
	})
}

// errStopped is the error of an update that came after the request to stop the jobs.
var errStopped = errors.New("the jobs are being stopped")

// unlessStopped calls register, which starts allocations, unless the jobs are being stopped.
func (r *foregroundRun) unlessStopped(register func() error) error {
	r.registerMu.Lock()
	defer r.registerMu.Unlock()
	if r.stopReason.Load() != nil {
		return errStopped
	}
	return register()
}
