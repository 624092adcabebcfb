package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobcheck"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskview"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// jobReader reads the jobs of a run.
type jobReader struct {
	jobFile     jobfile.Flags
	launcher    *launcher
	environment environmentFlags
	streams     *cli.Streams
}

// readJobs reads the jobs of all files, so that the user sees the errors of each.
func (r *jobReader) readJobs(ctx context.Context, paths []string) ([]*jobfile.File, error) {
	var files []*jobfile.File
	var refusals []error
	for _, path := range paths {
		file, err := r.readJob(ctx, path)
		if err == nil && slices.ContainsFunc(files, func(f *jobfile.File) bool { return scheduler.KeyOf(f.Job) == scheduler.KeyOf(file.Job) }) {
			err = fmt.Errorf("%s: job %q is in another file, too", path, *file.Job.ID)
		}
		if err != nil {
			refusals = append(refusals, err)
			continue
		}
		files = append(files, file)
	}
	if len(refusals) > 0 {
		return nil, joinStartErrors(refusals)
	}
	return files, nil
}

// joinStartErrors returns one error for a run that did not start, without the errors that were printed.
func joinStartErrors(refusals []error) error {
	var unprinted []error
	for _, err := range refusals {
		if exit := new(cli.ExitError); errors.As(err, &exit) {
			err = exit.Err
		}
		unprinted = append(unprinted, err)
	}
	return &cli.ExitError{Code: 2, Err: errors.Join(unprinted...)}
}

// readJob reads a job that runs once and now, with the environment of the flags. Its error is an ExitError
// without a text if the reason was printed.
func (r *jobReader) readJob(ctx context.Context, path string) (*jobfile.File, error) {
	file, err := r.jobFile.Read(r.streams, path, 2)
	if err != nil {
		return nil, err
	}
	answer := file.Check(ctx, admission.Node{}, r.flags())
	if err := file.PrintWarnings(r.streams.Err, model.FormatWarnings(answer.Warnings)); err != nil {
		return nil, err
	}
	if good, err := file.PrintAnswer(r.streams, "", &answer); err != nil || !good {
		return nil, errors.Join(errNotStarted, err)
	}
	if err := errors.Join(r.launcher.launch(file.Job), r.environment.addToTasks(file.Job)); err != nil {
		return nil, err
	}
	if good, err := jobcheck.CheckTasks(file, r.streams, true); err != nil || !good {
		return nil, errors.Join(errNotStarted, err)
	}
	return file, file.PrintIgnoredParts(r.streams, &answer)
}

// flags returns the options of the run for package admission.
func (r *jobReader) flags() admission.Flags {
	return admission.Flags{Caller: admission.Foreground, Now: r.launcher.now, HasVariables: len(r.environment.nomadVars) > 0}
}

// combineJobs returns a job with the groups of all jobs, for the check that they fit on the machine
// together. The groups' names contain the jobs.
func combineJobs(files []*jobfile.File) *jobfile.File {
	combined := *files[0].Job
	combined.TaskGroups = nil
	var ids []string
	for _, f := range files {
		ids = append(ids, *f.Job.ID)
		for _, g := range f.Job.TaskGroups {
			group := *g
			group.Name = new(*f.Job.ID + "." + *g.Name)
			combined.TaskGroups = append(combined.TaskGroups, &group)
		}
	}
	combined.ID = new(strings.Join(ids, ", "))
	return &jobfile.File{Job: &combined, File: &jobspec.File{}}
}

// foregroundJob is one job of a run, with its state in the last snapshot.
type foregroundJob struct {
	path  string
	job   *api.Job // the first version
	rows  taskview.JobRows
	shown map[string]uint64 // last shown ModifyIndex of each allocation, by id

	allocs []*api.Allocation
	evals  []*api.Evaluation

	mu      sync.Mutex
	file    *jobfile.File // the last version
	version uint64        // number of the last version
}

// currentFile returns the last version of the job's file.
func (j *foregroundJob) currentFile() *jobfile.File {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.file
}

// currentVersion returns the number of the last version of the job.
func (j *foregroundJob) currentVersion() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.version
}

// setCurrent sets the last version of the job.
func (j *foregroundJob) setCurrent(file *jobfile.File, version uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.file, j.version = file, version
}

// newForegroundJobs returns the jobs of the files in the same order.
func newForegroundJobs(files []*jobfile.File, paths []string) []*foregroundJob {
	jobs := make([]*foregroundJob, len(files))
	for i, f := range files {
		rows := taskview.JobRows{Position: i, Instances: apiclient.DesiredAllocCount(f.Job)}
		if len(files) > 1 {
			rows.LabelPrefix = *f.Job.ID + "/"
		}
		jobs[i] = &foregroundJob{path: paths[i], job: f.Job, file: f, rows: rows, shown: make(map[string]uint64)}
	}
	return jobs
}

func (j *foregroundJob) read(ws store.WatchSet, state *store.Snapshot) {
	j.allocs = state.AllocationsByJob(ws, *j.job.Namespace, *j.job.ID)
	j.evals = state.EvaluationsByJob(ws, *j.job.Namespace, *j.job.ID)
}

// newAllocs returns the allocations that were not shown yet.
func (j *foregroundJob) newAllocs() []*api.Allocation {
	return slices.DeleteFunc(slices.Clone(j.allocs), func(a *api.Allocation) bool {
		_, known := j.shown[a.ID]
		return known
	})
}

// showUpdates queues the allocations that have changed for the view.
func (j *foregroundJob) showUpdates(v *taskview.View) {
	for _, a := range j.allocs {
		if j.shown[a.ID] != a.ModifyIndex {
			j.shown[a.ID] = a.ModifyIndex
			v.QueueUpdate(a.ID, a.TaskStates)
		}
	}
}

// isOver reports whether all allocations have ended and none will follow.
func (j *foregroundJob) isOver(state *store.Snapshot) bool {
	return !slices.ContainsFunc(j.allocs, func(a *api.Allocation) bool { return !state.AllocationEnded(a.ID) }) &&
		!slices.ContainsFunc(j.evals, func(e *api.Evaluation) bool { return e.Status == api.EvalStatusPending })
}

// blockedError returns an error if an allocation waits for free resources.
func (j *foregroundJob) blockedError(state *store.Snapshot) error {
	for _, e := range j.evals {
		if e.Status == api.EvalStatusBlocked {
			return fmt.Errorf("job %q does not fit on this machine: %s", *j.job.ID, state.Evaluation(nil, e.PreviousEval).StatusDescription)
		}
	}
	return nil
}

// failures returns why the last version of the job, whose allocations have ended, was not successful.
func (j *foregroundJob) failures(stopped bool) []taskreason.Task {
	j.mu.Lock()
	defer j.mu.Unlock()
	var stubs []*api.AllocationListStub
	for _, a := range j.allocs {
		if stub := a.Stub(); stub.JobVersion == j.version {
			stubs = append(stubs, stub)
		}
	}
	return taskreason.FindFailures(j.file.Job, stubs, stopped)
}
