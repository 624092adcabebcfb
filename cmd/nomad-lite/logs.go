package main

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

type logsOptions struct {
	client clientFlags
	follow bool
	lines  int
	all    bool
	task   string
	group  string
	stdout bool
	stderr bool
}

func newLogsCommand(s *streams) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:     "logs [flags] JOB",
		Short:   "Print what all tasks of a job write",
		Long:    logsHelp,
		Example: logsExamples,
		Args:    oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("tail") && o.lines < 0 {
				return usageError(cmd, errors.New("-tail takes a number that is not negative"))
			}
			ctx, stop := untilInterrupted(cmd.Context())
			defer stop()
			return jobLogs(ctx, o, args[0], s)
		},
		ValidArgsFunction: firstArg(o.client.completeJobs("")),
	}
	o.client.register(cmd)
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on")
	cmd.Flags().IntVarP(&o.lines, "tail", "n", -1, "begin with the last `lines` of each task")
	unset(cmd, "tail")
	cmd.Flags().BoolVar(&o.all, "all", false, "show earlier allocations as well")
	cmd.Flags().StringVar(&o.task, "task", "", "show this `task` only")
	cmd.Flags().StringVar(&o.group, "group", "", "show this `group` only")
	cmd.Flags().BoolVar(&o.stdout, "stdout", false, "show standard output only")
	cmd.Flags().BoolVar(&o.stderr, "stderr", false, "show standard error only")
	return cmd
}

// jobOutput shows the output of one job's tasks.
type jobOutput struct {
	o        logsOptions
	client   *api.Client
	job      *api.Job
	view     *view
	readers  sync.WaitGroup
	begun    map[string]bool          // streams that are read, by allocation and task
	over     map[string]chan struct{} // by allocation; closed when the allocation has ended
	labelled int
}

func jobLogs(ctx context.Context, o logsOptions, name string, s *streams) error {
	c, id, namespace, err := o.client.findJob(ctx, name, "")
	if err != nil {
		return err
	}
	job, _, err := c.Jobs().Info(id, query(ctx, namespace))
	if err != nil {
		return failed(fmt.Sprintf("read job %q", id), err)
	}
	if err := knownTask(job, o.group, o.task); err != nil {
		return err
	}
	j := &jobOutput{o: o, client: c, job: job, view: newView(s, nil), begun: map[string]bool{}, over: map[string]chan struct{}{}}
	j.view.width = labelWidth(job)
	defer j.view.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // this goroutine ends with cancel
		select {
		case <-j.view.unheard:
			cancel()
		case <-ctx.Done():
		}
	}()
	err = j.run(ctx, id, namespace)
	if err != nil {
		cancel()
	}
	j.readers.Wait()
	return err
}

// run starts to read as soon as there is output.
func (j *jobOutput) run(ctx context.Context, id, namespace string) error {
	var first uint64 // allocations created after this index are shown whatever their name
	q := query(ctx, namespace)
	for {
		allocs, meta, err := j.client.Jobs().Allocations(id, false, q)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return failed(fmt.Sprintf("list allocations of job %q", id), err)
		case !j.o.follow && len(allocs) == 0:
			return fmt.Errorf("job %q has no allocations%s", id, j.instead(id))
		}
		shown := allocs
		if !j.o.all {
			shown = newest(allocs)
		}
		if first == 0 {
			first = max(meta.LastIndex, 1)
		}
		ended := true
		slices.SortFunc(allocs, inOrder)
		for _, a := range allocs {
			late := a.CreateIndex > first
			if late || j.over[a.ID] != nil || slices.Contains(shown, a) {
				j.alloc(ctx, a, late)
			}
			ended = ended && j.finished(a)
		}
		if !j.o.follow {
			if len(j.begun) == 0 {
				j.view.note(fmt.Sprintf("none of these tasks of job %q has started yet; -f waits for them", id))
			}
			return nil
		}
		q.WaitIndex, q.WaitTime = meta.LastIndex, 0
		if ended {
			job, _, err := j.client.Jobs().Info(id, query(ctx, namespace))
			if unknown(err) || err == nil && valueOf(job.Status) == "dead" && len(allocs) > 0 {
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

// inOrder sorts allocations by age, oldest first, and allocations of the same age by
// number.
func inOrder(a, b *api.AllocationListStub) int {
	return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(len(a.Name), len(b.Name)), strings.Compare(a.Name, b.Name))
}

// instead returns advice for the output of a job without allocations of its own.
func (j *jobOutput) instead(id string) string {
	if j.job.IsPeriodic() || j.job.IsParameterized() {
		return fmt.Sprintf(": those are its children's\nSee them: nomad-lite job status %s", id)
	}
	return fmt.Sprintf(" yet\nSee why: nomad-lite job status %s", id)
}

// newest returns the newest of the allocations with the same name; a system job has one of
// each name on each node.
func newest(allocs []*api.AllocationListStub) []*api.AllocationListStub {
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

// finished reports whether an allocation has ended, and notifies its readers.
func (j *jobOutput) finished(a *api.AllocationListStub) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
	default:
		return false
	}
	if over := j.over[a.ID]; over != nil && !closed(over) {
		close(over)
	}
	return true
}

// alloc reads the output of the tasks of an allocation that have started.
func (j *jobOutput) alloc(ctx context.Context, a *api.AllocationListStub, late bool) {
	if j.o.group != "" && a.TaskGroup != j.o.group {
		return
	}
	if j.over[a.ID] == nil {
		j.over[a.ID] = make(chan struct{})
	}
	var tasks []string
	for name, state := range a.TaskStates {
		if state != nil && !state.StartedAt.IsZero() && (j.o.task == "" || j.o.task == name) && !j.begun[a.ID+name] {
			tasks = append(tasks, name)
		}
	}
	slices.SortFunc(tasks, func(x, y string) int {
		return cmp.Or(a.TaskStates[x].StartedAt.Compare(a.TaskStates[y].StartedAt), strings.Compare(x, y))
	})
	for _, name := range tasks {
		j.begun[a.ID+name] = true
		t := &taskLine{label: taskLabel(j.job, a, name), colour: taskColours[j.labelled%len(taskColours)]}
		j.labelled++
		for _, stream := range []string{api.FSLogNameStdout, api.FSLogNameStderr} {
			if stream == api.FSLogNameStdout && j.o.stderr && !j.o.stdout || stream == api.FSLogNameStderr && j.o.stdout && !j.o.stderr {
				continue
			}
			r := logRequest{
				alloc: &api.Allocation{ID: a.ID, NodeID: a.NodeID, Namespace: a.Namespace},
				task:  name, stream: stream, follow: j.o.follow, lines: j.o.lines, bytes: -1, over: j.over[a.ID],
			}
			if late {
				r.lines = -1
			}
			if j.o.follow {
				j.readers.Go(func() { j.read(ctx, r, t) })
			} else {
				j.read(ctx, r, t)
			}
		}
	}
}

// read shows one output stream of one task.
func (j *jobOutput) read(ctx context.Context, r logRequest, t *taskLine) {
	var lines lineBuffer
	show := func(text []byte) { j.view.lines(t, r.stream == api.FSLogNameStderr, text) }
	err := r.read(ctx, j.client, func(data []byte) error {
		lines.add(data, show)
		return nil
	})
	lines.flush(show)
	if err != nil && ctx.Err() == nil {
		j.view.note(failed("output of task "+t.label+" is not shown", err).Error())
	}
}

// taskLabel returns the label of a task: "server", or "web[1].server" if the job has
// several allocations.
func taskLabel(job *api.Job, a *api.AllocationListStub, task string) string {
	if instances(job) <= 1 {
		return task
	}
	label := strings.TrimPrefix(a.Name, a.JobID+".") + "." + task
	if valueOf(job.Type) == api.JobTypeSystem || valueOf(job.Type) == api.JobTypeSysbatch {
		label += "@" + cmp.Or(a.NodeName, short(a.NodeID))
	}
	return label
}

// labelWidth returns the maximum width of a job's labels.
func labelWidth(job *api.Job) int {
	widest := 0
	eachTask(job, func(group *api.TaskGroup, task *api.Task) {
		label := task.Name
		if instances(job) > 1 {
			label = fmt.Sprintf("%s[%d].%s", valueOf(group.Name), max(valueOf(group.Count)-1, 0), task.Name)
		}
		widest = max(widest, utf8.RuneCountInString(label))
	})
	return min(widest, widestLabel)
}

// knownTask rejects a group or a task that the job does not have.
func knownTask(job *api.Job, group, task string) error {
	var names []string
	eachTask(job, func(g *api.TaskGroup, t *api.Task) {
		if group == "" || valueOf(g.Name) == group {
			names = append(names, t.Name)
		}
	})
	switch {
	case len(names) > 0 && task == "", slices.Contains(names, task):
		return nil
	case names == nil:
		return fmt.Errorf("job %q has no group %q", valueOf(job.ID), group)
	}
	return fmt.Errorf("job %q has no task %q; it has %s", valueOf(job.ID), task, strings.Join(names, ", "))
}
