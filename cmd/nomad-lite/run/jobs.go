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

// jobReader reads the job files of a run, and applies the run's flags to the jobs.
type jobReader struct {
	jobFileFlags     jobfile.Flags
	runNowRewriter   *runNowRewriter
	environmentFlags environmentFlags
	streams          *cli.Streams
}

// readAndAdaptJobs reads all job files before it returns an error, so that the user sees the errors of each file.
func (r *jobReader) readAndAdaptJobs(ctx context.Context, paths []string) ([]*jobfile.File, error) {
	var files []*jobfile.File
	var refusals []error
	for _, path := range paths {
		file, err := r.readAndAdaptJob(ctx, path)
		if err == nil && slices.ContainsFunc(files, func(f *jobfile.File) bool { return scheduler.JobKeyOf(f.Job) == scheduler.JobKeyOf(file.Job) }) {
			err = fmt.Errorf("%s: job %q is in another file, too", path, *file.Job.ID)
		}
		if err != nil {
			refusals = append(refusals, err)
			continue
		}
		files = append(files, file)
	}
	if len(refusals) > 0 {
		return nil, joinUnprintedStartErrors(refusals)
	}
	return files, nil
}

// joinUnprintedStartErrors returns one error for a run that did not start. It leaves out errors whose reasons were
// printed.
func joinUnprintedStartErrors(refusals []error) error {
	var unprinted []error
	for _, err := range refusals {
		if exit := new(cli.ExitError); errors.As(err, &exit) {
			err = exit.Err
		}
		unprinted = append(unprinted, err)
	}
	return &cli.ExitError{Code: cli.NotStarted.Number, Err: errors.Join(unprinted...)}
}

// readAndAdaptJob reads a job file and changes the job so that it runs once, now, and with the environment of the
// flags. If the reason of an error was printed, the error is an ExitError without a text.
func (r *jobReader) readAndAdaptJob(ctx context.Context, path string) (*jobfile.File, error) {
	file, err := r.jobFileFlags.Read(r.streams, path, cli.NotStarted)
	if err != nil {
		return nil, err
	}
	answer := file.CanonicalizeAndCheckAdmission(ctx, admission.Node{SchedulerConfig: model.NewOversubscribingSchedulerConfig()}, r.admissionFlags())
	if err := file.PrintAPIWarningsWithPositions(r.streams.Err, model.FormatWarnings(answer.Warnings)); err != nil {
		return nil, err
	}
	if good, err := file.PrintAdmissionAnswer(r.streams, "", &answer); err != nil || !good {
		return nil, errors.Join(errNotStarted, err)
	}
	if err := errors.Join(r.runNowRewriter.makeRunnableNow(file.Job), r.environmentFlags.addEnvFilesToTasks(file.Job)); err != nil {
		return nil, err
	}
	if good, err := jobcheck.CheckTemplatesUsersCommands(file, r.streams, true); err != nil || !good {
		return nil, errors.Join(errNotStarted, err)
	}
	return file, file.WarnOfPartsIgnoredByRun(r.streams, &answer)
}

// admissionFlags returns the settings of the run that decide which jobs package admission accepts.
func (r *jobReader) admissionFlags() admission.CheckOptions {
	return admission.CheckOptions{Caller: admission.Foreground, RunsPeriodicJobNow: r.runNowRewriter.runPeriodicNow, HasTemplateVariables: len(r.environmentFlags.nomadVarArgs) > 0}
}

// combineGroupsOfJobs returns a job that has the groups of all files, for a check whether they fit on the machine
// together. The name of each group starts with the ID of its job.
func combineGroupsOfJobs(files []*jobfile.File) *jobfile.File {
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
	return &jobfile.File{Job: &combined, Parsed: &jobspec.ParsedFile{}}
}

// foregroundJob is one job of a run, with its allocations and evaluations in the last snapshot that was read.
type foregroundJob struct {
	filePath                  string
	initialJob                *api.Job // the version that the run started with
	placementInView           taskview.JobPlacementInView
	shownModifyIndexByAllocID map[string]uint64 // allocation ID -> ModifyIndex of the state that was shown last

	allocs []*api.Allocation
	evals  []*api.Evaluation

	mu                sync.Mutex
	registeredFile    *jobfile.File // the version that was registered last
	registeredVersion uint64        // number of that version
}

// lastRegisteredFile returns the version of the job's file that was registered last.
func (j *foregroundJob) lastRegisteredFile() *jobfile.File {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.registeredFile
}

// lastRegisteredVersion returns the number of the version that was registered last.
func (j *foregroundJob) lastRegisteredVersion() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.registeredVersion
}

// setLastRegistered stores the version that was registered.
func (j *foregroundJob) setLastRegistered(file *jobfile.File, version uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.registeredFile, j.registeredVersion = file, version
}

// newForegroundJobs returns a job for each file, in the same order.
func newForegroundJobs(files []*jobfile.File, paths []string) []*foregroundJob {
	jobs := make([]*foregroundJob, len(files))
	for i, f := range files {
		rows := taskview.JobPlacementInView{JobPosition: i, AllocCount: apiclient.DesiredAllocCount(f.Job)}
		if len(files) > 1 {
			rows.LabelPrefix = *f.Job.ID + "/"
		}
		jobs[i] = &foregroundJob{filePath: paths[i], initialJob: f.Job, registeredFile: f, placementInView: rows, shownModifyIndexByAllocID: make(map[string]uint64)}
	}
	return jobs
}

func (j *foregroundJob) readAllocsAndEvals(ws store.WatchSet, state *store.Snapshot) {
	j.allocs = state.AllocationsByJob(ws, *j.initialJob.Namespace, *j.initialJob.ID)
	j.evals = state.EvaluationsByJob(ws, *j.initialJob.Namespace, *j.initialJob.ID)
}

// allocsNotYetShown returns the allocations that were not shown yet.
func (j *foregroundJob) allocsNotYetShown() []*api.Allocation {
	return slices.DeleteFunc(slices.Clone(j.allocs), func(a *api.Allocation) bool {
		_, known := j.shownModifyIndexByAllocID[a.ID]
		return known
	})
}

// queueChangedAllocs queues the allocations that have changed since the last call, for the view.
func (j *foregroundJob) queueChangedAllocs(v *taskview.View) {
	for _, a := range j.allocs {
		if j.shownModifyIndexByAllocID[a.ID] != a.ModifyIndex {
			j.shownModifyIndexByAllocID[a.ID] = a.ModifyIndex
			v.QueueTaskStates(a.ID, a.TaskStates)
		}
	}
}

// hasEnded reports whether all allocations have ended and no pending evaluation can create another one.
func (j *foregroundJob) hasEnded(state *store.Snapshot) bool {
	return !slices.ContainsFunc(j.allocs, func(a *api.Allocation) bool { return !state.AllocationEnded(a.ID) }) &&
		!slices.ContainsFunc(j.evals, func(e *api.Evaluation) bool { return e.Status == api.EvalStatusPending })
}

// errorIfUnplaced returns an error if an allocation waits for free resources.
func (j *foregroundJob) errorIfUnplaced(state *store.Snapshot) error {
	for _, e := range j.evals {
		if e.Status == api.EvalStatusBlocked {
			return fmt.Errorf("job %q does not fit on this machine: %s", *j.initialJob.ID, state.Evaluation(nil, e.PreviousEval).StatusDescription)
		}
	}
	return nil
}

// findFailures returns why the registered version of the job, whose allocations have ended, was not successful.
func (j *foregroundJob) findFailures(stoppedByUser bool) []taskreason.TaskWithReason {
	j.mu.Lock()
	defer j.mu.Unlock()
	var stubs []*api.AllocationListStub
	for _, a := range j.allocs {
		if stub := a.Stub(); stub.JobVersion == j.registeredVersion {
			stubs = append(stubs, stub)
		}
	}
	return taskreason.FindFailures(j.registeredFile.Job, stubs, stoppedByUser)
}
