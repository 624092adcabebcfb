package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskview"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/wait"
)

const logsHelp = `Print the output of the tasks of a job, or of all jobs, with the task in front of
each line. The standard error of tasks goes to standard error. A periodic or
parameterized job shows the output of its child jobs.

Lines are in the order in which they arrived at the agent, to a millisecond. An
agent of Nomad, and earlier versions of nomad-lite, store no times for output: then
the time of the last change of the log file counts instead, and -timestamps prints
no time. With -f a line has the time at which it arrives here.

Of each allocation name the newest allocation is shown, whether it runs or not;
with -all the earlier ones, too. With -f new lines are shown as they are written,
also of later allocations, until the job has ended or you press Ctrl-C.

With -grep the agent searches the whole output of a job, also of earlier allocations, and
prints the lines that a regular expression (RE2) matches.

Exit codes: 0, or 1 when there is no such job or it has no allocations.`

const logsExamples = `  nomad-lite logs                     the stored output of all jobs
  nomad-lite logs -f -since 10m web   of one job, from ten minutes ago, and new output
  nomad-lite logs -f -tail 20 web     the last 20 lines of each task, and new output
  nomad-lite logs -timestamps -task server web
  nomad-lite logs -grep 'status=5..' web   the lines of all allocations that match`

type options struct {
	clientFlags          apiclient.Flags
	follow               bool
	tailLines            int
	sinceText            string
	printTimestamps      bool
	includeEarlierAllocs bool
	task                 string
	group                string
	selectStdout         bool
	selectStderr         bool
	grep                 string
}

// NewCommand returns the command "logs".
func NewCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:     "logs [flags] [JOB]",
		Short:   "Print the output of all tasks of a job, or of all jobs",
		Long:    logsHelp,
		Example: logsExamples,
		Args:    cli.RequireArgCount(0, 1, "the id of a job, or its beginning, or nothing for all jobs"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("tail") && o.tailLines < 0 {
				return cli.UsageError(cmd, errors.New("-tail takes a number that is not negative"))
			}
			if err := o.checkGrep(len(args) > 0); err != nil {
				return cli.UsageError(cmd, err)
			}
			since, err := parseSince(o.sinceText, time.Now())
			if err != nil {
				return cli.UsageError(cmd, err)
			}
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			return printLogs(ctx, o, since, args, s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "continue with new output")
	cmd.Flags().IntVarP(&o.tailLines, "tail", "n", -1, "begin with the last `lines` of each task")
	cli.HideFlagDefaults(cmd, "tail")
	cmd.Flags().StringVar(&o.sinceText, "since", "", "begin with output that arrived after this `time`: a duration before now, such as 10m, or a time such as 2026-05-04T12:00:00Z")
	cmd.Flags().BoolVar(&o.printTimestamps, "timestamps", false, "print the time at which each line arrived")
	cmd.Flags().BoolVar(&o.includeEarlierAllocs, "all", false, "show earlier allocations as well")
	cmd.Flags().StringVar(&o.grep, "grep", "", "show only lines that the regular `expression` matches, of all allocations of the job")
	cmd.Flags().StringVar(&o.task, "task", "", "show this `task` only")
	cmd.Flags().StringVar(&o.group, "group", "", "show this `group` only")
	cmd.Flags().BoolVar(&o.selectStdout, "stdout", false, "show standard output only")
	cmd.Flags().BoolVar(&o.selectStderr, "stderr", false, "show standard error only")
	return cmd
}

// checkGrep returns an error if -grep is combined with what the agent cannot search.
func (o options) checkGrep(hasJob bool) error {
	switch {
	case o.grep == "":
		return nil
	case !hasJob:
		return errors.New("-grep needs the id of a job")
	case o.tailLines >= 0 && (o.follow || o.sinceText != ""):
		return errors.New("-grep with -tail excludes -follow and -since")
	case o.tailLines == 0:
		return errors.New("-grep needs a -tail of at least one line")
	}
	return nil
}

// parseSince parses the value of -since. An empty value means the zero time.
func parseSince(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if before, err := time.ParseDuration(text); err == nil {
		if before < 0 {
			return time.Time{}, fmt.Errorf("-since %s is in the future: give a duration without the minus sign", text)
		}
		return now.Add(-before), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("-since %q is neither a duration such as 10m nor a time such as %s", text, now.Format(time.RFC3339))
}

// logPrinter prints the output of the tasks that options and scope select.
type logPrinter struct {
	options               options
	since                 time.Time
	client                *api.Client
	scope                 allocScope
	taskView              *taskview.View
	showLines             func(isStderr bool, lines []byte) // replaces the output of taskView; can be nil
	followGoroutines      sync.WaitGroup
	isShownByAllocAndTask map[string]bool          // key: allocation id + task name; true if the output of the task is or was shown
	allocEndedChanByID    map[string]chan struct{} // allocation id -> channel that is closed when the allocation has ended
	jobByNamespaceAndID   map[string]*api.Job      // jobKey -> job, or nil if the job was purged; a child job is represented by its parent
	labelledTaskCount     int
}

// outputStream is one of the two outputs of a task in an allocation.
type outputStream struct {
	alloc                *api.Allocation // only ID, NodeID and Namespace are set
	taskName             string
	streamName           string // "stdout" or "stderr"
	taskInView           *taskview.Task
	allocEnded           <-chan struct{}
	startedAfterCommand  bool           // the task has started after the command, so all of its output is shown, whatever -tail says
	firstUnshownPosition streamPosition // position of the first line that was not shown
}

func printLogs(ctx context.Context, o options, since time.Time, optionalJobArg []string, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	p := newLogPrinter(o, since, c)
	p.scope.namespace = o.clientFlags.ClientConfig().Namespace
	if len(optionalJobArg) > 0 {
		id, namespace, err := apiclient.FindJob(ctx, c, optionalJobArg[0], "")
		if err != nil {
			return err
		}
		job, _, err := c.Jobs().Info(id, apiclient.QueryOptions(ctx, namespace))
		if err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read job %q", id), err)
		}
		if err := checkGroupAndTaskExist(job, o.group, o.task); err != nil {
			return err
		}
		p.limitToJobOrItsChildren(job)
	}
	return p.showSelectedTasks(ctx, s)
}

// FollowJob shows the output of a job's tasks until the job has ended or ctx ends.
func FollowJob(ctx context.Context, c *api.Client, job *api.Job, s *cli.Streams) error {
	p := newLogPrinter(options{follow: true, tailLines: -1}, time.Time{}, c)
	p.limitToJobOrItsChildren(job)
	return p.showSelectedTasks(ctx, s)
}

// FollowTask calls show with the last tailLines lines of a task's output in one allocation, standard output and standard error in
// the order in which the lines arrived at the agent, and then with new lines, until the allocation has ended or ctx ends. It calls
// showMessage with a text why output cannot be read. Calls can be concurrent, and lines are valid until show returns.
func FollowTask(ctx context.Context, c *api.Client, alloc *api.Allocation, task string, tailLines int, show func(isStderr bool, lines []byte), showMessage func(text string)) error {
	p := newLogPrinter(options{follow: true, tailLines: tailLines, task: task}, time.Time{}, c)
	p.scope = allocScope{namespace: alloc.Namespace, jobID: alloc.JobID, allocID: alloc.ID}
	p.showLines = show
	return p.showSelectedTasks(ctx, &cli.Streams{Out: io.Discard, Err: messageWriter(showMessage), NoColour: true})
}

// messageWriter is a writer that calls the function with each text.
type messageWriter func(text string)

func (w messageWriter) Write(p []byte) (int, error) {
	w(strings.TrimSpace(string(p)))
	return len(p), nil
}

func newLogPrinter(o options, since time.Time, c *api.Client) *logPrinter {
	return &logPrinter{options: o, since: since, client: c, isShownByAllocAndTask: map[string]bool{}, allocEndedChanByID: map[string]chan struct{}{}, jobByNamespaceAndID: map[string]*api.Job{}}
}

// limitToJobOrItsChildren limits the output to one job or, if the job is periodic or parameterized, to its children.
func (p *logPrinter) limitToJobOrItsChildren(job *api.Job) {
	id, namespace := pointer.Value(job.ID), pointer.Value(job.Namespace)
	p.scope = allocScope{jobID: id, namespace: namespace, selectsChildJobs: pointer.Value(job.ParentID) == "" && (job.IsPeriodic() || job.IsParameterized())}
	p.jobByNamespaceAndID[jobKey(namespace, id)] = job
}

// showSelectedTasks shows the output of the selected tasks, and returns when it is complete, the output is closed or ctx
// ends.
func (p *logPrinter) showSelectedTasks(ctx context.Context, s *cli.Streams) error {
	p.taskView = taskview.New(s, nil)
	defer p.taskView.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // returns after cancel
		select {
		case <-p.taskView.BrokenPipe:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := p.showSelected(ctx)
	if err != nil {
		cancel()
	}
	p.followGoroutines.Wait()
	return err
}

func (p *logPrinter) showSelected(ctx context.Context) error {
	if p.options.grep != "" {
		return p.printMatchingLines(ctx, p.jobByNamespaceAndID[jobKey(p.scope.namespace, p.scope.jobID)])
	}
	return p.showTasksAsTheyStart(ctx)
}

// showTasksAsTheyStart shows the output of the tasks that have started. With -f it also follows them, and shows the
// output of each further task when the task has started, until the job has ended.
func (p *logPrinter) showTasksAsTheyStart(ctx context.Context) error {
	var initialIndex uint64 // index of the first list of allocations; allocations with a higher CreateIndex are always shown
	q := apiclient.QueryOptions(ctx, p.scope.namespace)
	for {
		allocs, meta, err := p.scope.listAllocs(p.client, q)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return apiclient.WrapErrorWithAdvice("list allocations of "+p.scope.String(), err)
		case !p.options.follow && len(allocs) == 0:
			return p.scope.noAllocsError()
		}
		shown := allocs
		if !p.options.includeEarlierAllocs {
			shown = newestAllocPerName(allocs)
		}
		isFirst := initialIndex == 0
		if isFirst {
			initialIndex = max(meta.LastIndex, 1)
		}
		ended := true
		var added []*outputStream
		slices.SortFunc(allocs, compareByAge)
		for _, a := range allocs {
			late := a.CreateIndex > initialIndex
			if late || p.allocEndedChanByID[a.ID] != nil || slices.Contains(shown, a) {
				added = append(added, p.takeStreamsOfNewlyStartedTasks(ctx, a, late || !isFirst)...)
			}
			ended = ended && p.notifyFollowersIfAllocEnded(a)
		}
		if isFirst {
			p.taskView.RaiseLabelWidth(p.maxLabelWidth(added))
		}
		if err := p.showStoredAndStartFollowing(ctx, added); err != nil {
			return err
		}
		if !p.options.follow {
			if len(p.isShownByAllocAndTask) == 0 {
				p.taskView.QueueMessage(fmt.Sprintf("none of these tasks of %s has started yet; -f waits for them", p.scope))
			}
			return nil
		}
		if ended && p.scope.allocID != "" {
			return nil
		}
		q.WaitIndex, q.WaitTime = meta.LastIndex, 0
		if ended && p.scope.jobID != "" {
			job, _, err := p.client.Jobs().Info(p.scope.jobID, apiclient.QueryOptions(ctx, p.scope.namespace))
			if apiclient.IsNotFound(err) || err == nil && pointer.Value(job.Status) == "dead" && len(allocs) > 0 {
				return nil
			}
			q.WaitTime = time.Second // a job can end without a change of its allocations
		}
		if meta.LastIndex == 0 { // the server does not support blocking queries, so the loop polls
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

// compareByAge orders allocations by age, oldest first, and allocations of the same age by the index in
// their names.
func compareByAge(a, b *api.AllocationListStub) int {
	return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(len(a.Name), len(b.Name)), strings.Compare(a.Name, b.Name))
}

// newestAllocPerName returns the newest allocation of each name. allocs must be sorted, newest first. For a system job it
// returns one of each name per node.
func newestAllocPerName(allocs []*api.AllocationListStub) []*api.AllocationListStub {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(allocs), func(a *api.AllocationListStub) bool {
		key := a.Namespace + " " + a.Name
		if a.JobType == api.JobTypeSystem || a.JobType == api.JobTypeSysbatch {
			key += " " + a.NodeID
		}
		again := seen[key]
		seen[key] = true
		return again
	})
}

// notifyFollowersIfAllocEnded reports whether an allocation has ended. If it has, notifyFollowersIfAllocEnded closes
// its channel in allocEndedChanByID, so that the followers of its output return.
func (p *logPrinter) notifyFollowersIfAllocEnded(a *api.AllocationListStub) (hasEnded bool) {
	if !apiclient.HasTerminalClientStatus(a) {
		return false
	}
	if ended := p.allocEndedChanByID[a.ID]; ended != nil && !wait.IsClosed(ended) {
		close(ended)
	}
	return true
}

// takeStreamsOfNewlyStartedTasks returns the selected streams of those tasks of an allocation that have started since
// the last call, in the order of their start. It stores startedAfterCommand in the streams.
func (p *logPrinter) takeStreamsOfNewlyStartedTasks(ctx context.Context, a *api.AllocationListStub, startedAfterCommand bool) []*outputStream {
	if p.options.group != "" && a.TaskGroup != p.options.group {
		return nil
	}
	if p.allocEndedChanByID[a.ID] == nil {
		p.allocEndedChanByID[a.ID] = make(chan struct{})
	}
	var taskNames []string
	for name, state := range a.TaskStates {
		if state != nil && !state.StartedAt.IsZero() && (p.options.task == "" || p.options.task == name) && !p.isShownByAllocAndTask[a.ID+name] {
			taskNames = append(taskNames, name)
		}
	}
	slices.SortFunc(taskNames, func(x, y string) int {
		return cmp.Or(a.TaskStates[x].StartedAt.Compare(a.TaskStates[y].StartedAt), strings.Compare(x, y))
	})
	var streams []*outputStream
	for _, name := range taskNames {
		p.isShownByAllocAndTask[a.ID+name] = true
		view := &taskview.Task{Label: p.taskLabel(ctx, a, name), ColourEscape: taskview.TaskColours[p.labelledTaskCount%len(taskview.TaskColours)]}
		p.labelledTaskCount++
		for _, stream := range []string{api.FSLogNameStdout, api.FSLogNameStderr} {
			if stream == api.FSLogNameStdout && p.options.selectStderr && !p.options.selectStdout || stream == api.FSLogNameStderr && p.options.selectStdout && !p.options.selectStderr {
				continue
			}
			streams = append(streams, &outputStream{
				alloc:    &api.Allocation{ID: a.ID, NodeID: a.NodeID, Namespace: a.Namespace},
				taskName: name, streamName: stream, taskInView: view, allocEnded: p.allocEndedChanByID[a.ID], startedAfterCommand: startedAfterCommand,
			})
		}
	}
	return streams
}

// taskLabel returns the label of a task: "server", or "web[1].server" if the job has several allocations.
// If the scope has several jobs, the label starts with the id of the job.
func (p *logPrinter) taskLabel(ctx context.Context, a *api.AllocationListStub, taskName string) string {
	job := p.readJobCachedOrNil(ctx, a.Namespace, parentJobIDOrSelf(a.JobID))
	label := taskName
	if job == nil || apiclient.DesiredAllocCount(job) > 1 {
		label = strings.TrimPrefix(a.Name, a.JobID+".") + "." + taskName
		if a.JobType == api.JobTypeSystem || a.JobType == api.JobTypeSysbatch {
			label += "@" + cmp.Or(a.NodeName, output.TruncateID(a.NodeID))
		}
	}
	return p.scope.jobLabelPrefix(a) + label
}

// readJobCachedOrNil returns a job from jobByNamespaceAndID or from the agent, or nil if the job cannot be read, as
// after a purge.
func (p *logPrinter) readJobCachedOrNil(ctx context.Context, namespace, id string) *api.Job {
	key := jobKey(namespace, id)
	if _, known := p.jobByNamespaceAndID[key]; !known {
		job, _, err := p.client.Jobs().Info(id, apiclient.QueryOptions(ctx, namespace))
		if err != nil {
			job = nil
		}
		p.jobByNamespaceAndID[key] = job
	}
	return p.jobByNamespaceAndID[key]
}

// maxLabelWidth returns the maximum width of the labels of these streams and, if one job is selected, of the labels that
// its other tasks will have.
func (p *logPrinter) maxLabelWidth(streams []*outputStream) int {
	widest := 0
	for _, s := range streams {
		widest = max(widest, utf8.RuneCountInString(s.taskInView.Label))
	}
	if job := p.jobByNamespaceAndID[jobKey(p.scope.namespace, p.scope.jobID)]; job != nil && !p.scope.selectsChildJobs {
		apiclient.ForEachTask(job, func(group *api.TaskGroup, task *api.Task) {
			label := task.Name
			if apiclient.DesiredAllocCount(job) > 1 {
				label = fmt.Sprintf("%s[%d].%s", pointer.Value(group.Name), max(pointer.Value(group.Count)-1, 0), task.Name)
			}
			widest = max(widest, utf8.RuneCountInString(label))
		})
	}
	return widest
}

// checkGroupAndTaskExist returns an error if the job does not have the group, or no task with this name in it. Empty
// names are not checked.
func checkGroupAndTaskExist(job *api.Job, group, task string) error {
	var taskNames []string
	apiclient.ForEachTask(job, func(g *api.TaskGroup, t *api.Task) {
		if group == "" || pointer.Value(g.Name) == group {
			taskNames = append(taskNames, t.Name)
		}
	})
	switch {
	case len(taskNames) > 0 && task == "", slices.Contains(taskNames, task):
		return nil
	case taskNames == nil:
		return fmt.Errorf("job %q has no group %q", pointer.Value(job.ID), group)
	}
	return fmt.Errorf("job %q has no task %q; it has %s", pointer.Value(job.ID), task, strings.Join(taskNames, ", "))
}
