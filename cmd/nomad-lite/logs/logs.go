package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/streaming"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/taskview"
)

const logsHelp = `Print what the tasks of a job write, with the task in front of each line. What
they write to standard error goes to standard error.

Of each allocation name the newest allocation is shown, whether it runs or not;
with -all those that came before it, too. With -f new lines are shown as they are
written, also those of allocations that come later, until the job has ended or
you press Ctrl-C.

Exit codes: 0, or 1 when there is no such job or it has no allocations.`

const logsExamples = `  nomad-lite logs web                 what was written so far
  nomad-lite logs -f web              and what will be
  nomad-lite logs -f -tail 20 web     beginning with the last 20 lines of each task
  nomad-lite logs -task server web    of one task`

type options struct {
	client apiclient.Flags
	follow bool
	lines  int
	all    bool
	task   string
	group  string
	stdout bool
	stderr bool
}

// NewCommand returns the command "logs".
func NewCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:     "logs [flags] JOB",
		Short:   "Print what all tasks of a job write",
		Long:    logsHelp,
		Example: logsExamples,
		Args:    apiclient.OneJobArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("tail") && o.lines < 0 {
				return cli.UsageError(cmd, errors.New("-tail takes a number that is not negative"))
			}
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			return printJobLogs(ctx, o, args[0], s)
		},
		ValidArgsFunction: cli.CompleteFirstArg(o.client.CompleteJobs("")),
	}
	o.client.Register(cmd)
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on")
	cmd.Flags().IntVarP(&o.lines, "tail", "n", -1, "begin with the last `lines` of each task")
	cli.HideFlagDefaults(cmd, "tail")
	cmd.Flags().BoolVar(&o.all, "all", false, "show earlier allocations as well")
	cmd.Flags().StringVar(&o.task, "task", "", "show this `task` only")
	cmd.Flags().StringVar(&o.group, "group", "", "show this `group` only")
	cmd.Flags().BoolVar(&o.stdout, "stdout", false, "show standard output only")
	cmd.Flags().BoolVar(&o.stderr, "stderr", false, "show standard error only")
	return cmd
}

// jobLogPrinter shows the output of one job's tasks.
type jobLogPrinter struct {
	o              options
	client         *api.Client
	job            *api.Job
	taskView       *taskview.View
	streamReaders  sync.WaitGroup
	startedStreams map[string]bool          // the output streams that are being read, by allocation id and task name
	allocEnded     map[string]chan struct{} // by allocation id; each channel is closed when the allocation has ended
	taskCount      int
}

func printJobLogs(ctx context.Context, o options, name string, s *cli.Streams) error {
	c, id, namespace, err := o.client.FindJob(ctx, name, "")
	if err != nil {
		return err
	}
	job, _, err := c.Jobs().Info(id, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapError(fmt.Sprintf("read job %q", id), err)
	}
	if err := checkTaskExists(job, o.group, o.task); err != nil {
		return err
	}
	return printLogs(ctx, o, c, job, s)
}

// FollowJob shows the output of a job's tasks until the job has ended or ctx ends.
func FollowJob(ctx context.Context, c *api.Client, job *api.Job, s *cli.Streams) error {
	return printLogs(ctx, options{follow: true, lines: -1}, c, job, s)
}

func printLogs(ctx context.Context, o options, c *api.Client, job *api.Job, s *cli.Streams) error {
	j := &jobLogPrinter{o: o, client: c, job: job, taskView: taskview.New(s, nil), startedStreams: map[string]bool{}, allocEnded: map[string]chan struct{}{}}
	j.taskView.LabelWidth = labelWidth(job)
	defer j.taskView.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // cancel ends this goroutine
		select {
		case <-j.taskView.BrokenPipe:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := j.run(ctx, apiclient.Deref(job.ID), apiclient.Deref(job.Namespace))
	if err != nil {
		cancel()
	}
	j.streamReaders.Wait()
	return err
}

// run reads the output of each task as soon as the task has started; with -f it does so until the
// job has ended.
func (j *jobLogPrinter) run(ctx context.Context, id, namespace string) error {
	var initialIndex uint64 // index of the first list of allocations; all allocations that are created later are shown
	q := apiclient.QueryOptions(ctx, namespace)
	for {
		allocs, meta, err := j.client.Jobs().Allocations(id, false, q)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return apiclient.WrapError(fmt.Sprintf("list allocations of job %q", id), err)
		case !j.o.follow && len(allocs) == 0:
			return fmt.Errorf("job %q has no allocations%s", id, j.emptyOutputAdvice(id))
		}
		shown := allocs
		if !j.o.all {
			shown = newestAllocPerName(allocs)
		}
		if initialIndex == 0 {
			initialIndex = max(meta.LastIndex, 1)
		}
		ended := true
		slices.SortFunc(allocs, compareAllocs)
		for _, a := range allocs {
			late := a.CreateIndex > initialIndex
			if late || j.allocEnded[a.ID] != nil || slices.Contains(shown, a) {
				j.readAllocOutput(ctx, a, late)
			}
			ended = ended && j.notifyIfAllocEnded(a)
		}
		if !j.o.follow {
			if len(j.startedStreams) == 0 {
				j.taskView.PrintMessage(fmt.Sprintf("none of these tasks of job %q has started yet; -f waits for them", id))
			}
			return nil
		}
		q.WaitIndex, q.WaitTime = meta.LastIndex, 0
		if ended {
			job, _, err := j.client.Jobs().Info(id, apiclient.QueryOptions(ctx, namespace))
			if apiclient.IsNotFound(err) || err == nil && apiclient.Deref(job.Status) == "dead" && len(allocs) > 0 {
				return nil
			}
			q.WaitTime = time.Second // a job can end without a change of its allocations
		}
		if meta.LastIndex == 0 { // this server does not support blocking queries
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

// compareAllocs sorts allocations by age, oldest first, and allocations of the same age by
// number.
func compareAllocs(a, b *api.AllocationListStub) int {
	return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(len(a.Name), len(b.Name)), strings.Compare(a.Name, b.Name))
}

// emptyOutputAdvice returns advice for the output of a job without allocations of its own.
func (j *jobLogPrinter) emptyOutputAdvice(id string) string {
	if j.job.IsPeriodic() || j.job.IsParameterized() {
		return fmt.Sprintf(": those are its children's\nSee them: nomad-lite job status %s", id)
	}
	return fmt.Sprintf(" yet\nSee why: nomad-lite job status %s", id)
}

// newestAllocPerName returns the newest of the allocations with the same name; a system job has one of
// each name on each node.
func newestAllocPerName(allocs []*api.AllocationListStub) []*api.AllocationListStub {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(allocs), func(a *api.AllocationListStub) bool {
		key := a.Name
		if a.JobType == api.JobTypeSystem || a.JobType == api.JobTypeSysbatch {
			key += " " + a.NodeID
		}
		again := seen[key]
		seen[key] = true
		return again
	})
}

// notifyIfAllocEnded reports whether an allocation has ended, and notifies its readers.
func (j *jobLogPrinter) notifyIfAllocEnded(a *api.AllocationListStub) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
	default:
		return false
	}
	if ended := j.allocEnded[a.ID]; ended != nil && !streaming.IsChannelClosed(ended) {
		close(ended)
	}
	return true
}

// readAllocOutput reads the output of those tasks of an allocation that have started.
func (j *jobLogPrinter) readAllocOutput(ctx context.Context, a *api.AllocationListStub, late bool) {
	if j.o.group != "" && a.TaskGroup != j.o.group {
		return
	}
	if j.allocEnded[a.ID] == nil {
		j.allocEnded[a.ID] = make(chan struct{})
	}
	var taskNames []string
	for name, state := range a.TaskStates {
		if state != nil && !state.StartedAt.IsZero() && (j.o.task == "" || j.o.task == name) && !j.startedStreams[a.ID+name] {
			taskNames = append(taskNames, name)
		}
	}
	slices.SortFunc(taskNames, func(x, y string) int {
		return cmp.Or(a.TaskStates[x].StartedAt.Compare(a.TaskStates[y].StartedAt), strings.Compare(x, y))
	})
	for _, name := range taskNames {
		j.startedStreams[a.ID+name] = true
		t := &taskview.Task{Label: taskLabel(j.job, a, name), Colour: taskview.TaskColours[j.taskCount%len(taskview.TaskColours)]}
		j.taskCount++
		for _, stream := range []string{api.FSLogNameStdout, api.FSLogNameStderr} {
			if stream == api.FSLogNameStdout && j.o.stderr && !j.o.stdout || stream == api.FSLogNameStderr && j.o.stdout && !j.o.stderr {
				continue
			}
			r := streaming.LogRequest{
				Alloc: &api.Allocation{ID: a.ID, NodeID: a.NodeID, Namespace: a.Namespace},
				Task:  name, Stream: stream, Follow: j.o.follow, TailLines: j.o.lines, TailBytes: -1, TaskEnded: j.allocEnded[a.ID],
			}
			if late {
				r.TailLines = -1
			}
			if j.o.follow {
				j.streamReaders.Go(func() { j.readStream(ctx, r, t) })
			} else {
				j.readStream(ctx, r, t)
			}
		}
	}
}

// readStream shows one output stream of one task.
func (j *jobLogPrinter) readStream(ctx context.Context, r streaming.LogRequest, t *taskview.Task) {
	var lineBuffer taskview.LineBuffer
	show := func(text []byte) { j.taskView.PrintLines(t, r.Stream == api.FSLogNameStderr, text) }
	err := r.StreamLog(ctx, j.client, func(data []byte) error {
		lineBuffer.Add(data, show)
		return nil
	})
	lineBuffer.Flush(show)
	if err != nil && ctx.Err() == nil {
		j.taskView.PrintMessage(apiclient.WrapError("output of task "+t.Label+" is not shown", err).Error())
	}
}

// taskLabel returns the label of a task: "server", or "web[1].server" if the job has
// several allocations.
func taskLabel(job *api.Job, a *api.AllocationListStub, task string) string {
	if apiclient.DesiredAllocCount(job) <= 1 {
		return task
	}
	label := strings.TrimPrefix(a.Name, a.JobID+".") + "." + task
	if apiclient.Deref(job.Type) == api.JobTypeSystem || apiclient.Deref(job.Type) == api.JobTypeSysbatch {
		label += "@" + cmp.Or(a.NodeName, output.TruncateID(a.NodeID))
	}
	return label
}

// labelWidth returns the maximum width of a job's labels.
func labelWidth(job *api.Job) int {
	widest := 0
	apiclient.ForEachTask(job, func(group *api.TaskGroup, task *api.Task) {
		label := task.Name
		if apiclient.DesiredAllocCount(job) > 1 {
			label = fmt.Sprintf("%s[%d].%s", apiclient.Deref(group.Name), max(apiclient.Deref(group.Count)-1, 0), task.Name)
		}
		widest = max(widest, utf8.RuneCountInString(label))
	})
	return min(widest, taskview.MaxLabelWidth)
}

// checkTaskExists rejects a group or a task that the job does not have.
func checkTaskExists(job *api.Job, group, task string) error {
	var taskNames []string
	apiclient.ForEachTask(job, func(g *api.TaskGroup, t *api.Task) {
		if group == "" || apiclient.Deref(g.Name) == group {
			taskNames = append(taskNames, t.Name)
		}
	})
	switch {
	case len(taskNames) > 0 && task == "", slices.Contains(taskNames, task):
		return nil
	case taskNames == nil:
		return fmt.Errorf("job %q has no group %q", apiclient.Deref(job.ID), group)
	}
	return fmt.Errorf("job %q has no task %q; it has %s", apiclient.Deref(job.ID), task, strings.Join(taskNames, ", "))
}
