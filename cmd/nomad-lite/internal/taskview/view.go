package taskview

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/ports"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// View shows a running job to a person: the output of the tasks, with the task's label on each
// line, and the state of each task. On a terminal, the states are live lines below the output, one
// for each task. Elsewhere, each change of a state is a new line.
//
// All methods may be called concurrently.
type View struct {
	out, err         outputStream
	isJSON           bool                 // each line of output is a JSON object
	screen           *terminal.LiveScreen // nil if standard error is no terminal
	BrokenPipe       chan struct{}        // closed when a write has failed because the reader has closed the output
	reportBrokenPipe func()               // closes BrokenPipe
	updatesQueued    chan struct{}        // receives a value when an update is queued
	closeRequested   chan struct{}        // closed by Close
	wg               sync.WaitGroup

	discardsOutput atomic.Bool // if set, all further output is discarded

	showUpdatesMu sync.Mutex // held while queued updates are shown
	queueMu       sync.Mutex
	updateQueue   []queuedUpdate // updates not shown yet

	labelWidth atomic.Int64 // width to which labels are padded

	mu    sync.Mutex // guards tasks, standard error and the screen
	tasks []*Task    // in the order of the job; writers hold showUpdatesMu as well
}

// queuedUpdate is the new states of an allocation's tasks, a text for standard error, or a record. It is queued so that
// the caller does not block on a terminal or a pager.
type queuedUpdate struct {
	queuedAt   time.Time
	allocID    string
	taskStates map[string]*api.TaskState
	text       string
	jsonRecord *jsonRecord // result of a job, in a view for programs; else nil
}

// outputStream is standard output or standard error.
type outputStream struct {
	writer          io.Writer
	mu              *sync.Mutex // both streams share mu if they are the same file
	drawsLiveLines  bool        // the stream is the terminal on which the live lines are drawn
	isTerminal      bool
	useColour       bool
	lastWriteFailed bool
}

// Task is a task in the view.
type Task struct {
	Alloc            *api.Allocation
	Name             string
	LogDir           string
	FirstStarted     chan struct{} // closed when the task starts for the first time
	OutputShown      chan struct{} // closed when the whole output of the task was shown
	Label            string        // "server", or "web[1].server" if the job has several instances
	indexOfJobInView int
	lifecycleStage   string // "main", "prestart", …
	formattedPorts   string // "http: 127.0.0.1:8080"; "" if the task has none
	state            string
	statusDetail     string
	ColourEscape     string
	shownEvents      []*api.TaskEvent // all events of the task state that was shown last, oldest first
	lastShownRemedy  string           // remedy of the last reason why the task does not run
}

// maxLabelWidth is the maximum width to which labels are padded.
const maxLabelWidth = 40

// endEventDelay limits how long the event of a task's exit waits for the task's last output, which arrives from another
// process and should be shown first.
const endEventDelay = 10 * time.Millisecond

// TaskColours are the colours by which a person distinguishes tasks. Red is reserved for failures.
var TaskColours = []string{"\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[96m", "\x1b[93m", "\x1b[92m"}

// New returns a view for people, which the caller must close. If liveScreen is nil, the view has no live lines.
func New(s *cli.Streams, liveScreen *terminal.LiveScreen) *View {
	v := newView(liveScreen)
	v.err = v.newOutputStream(s, s.Err, &v.mu)
	v.out = v.newOutputStream(s, s.Out, &v.mu)
	if !terminal.SameFile(s.Out, s.Err) {
		v.out.mu = new(sync.Mutex) // different files have different mutexes, so that a blocked stream does not block the other one
	}
	v.wg.Go(v.showUpdatesUntilClosed)
	return v
}

// newView returns a view that has no output streams yet and whose goroutine does not run yet.
func newView(liveScreen *terminal.LiveScreen) *View {
	brokenPipe := make(chan struct{})
	return &View{
		screen:           liveScreen,
		BrokenPipe:       brokenPipe,
		reportBrokenPipe: sync.OnceFunc(func() { close(brokenPipe) }),
		updatesQueued:    make(chan struct{}, 1),
		closeRequested:   make(chan struct{}),
	}
}

func (v *View) newOutputStream(s *cli.Streams, w io.Writer, mu *sync.Mutex) outputStream {
	return outputStream{
		writer:         w,
		mu:             mu,
		drawsLiveLines: v.screen != nil && terminal.SameFile(w, v.screen.Output),
		isTerminal:     terminal.IsTerminal(w),
		useColour:      s.SupportsColours(w),
	}
}

// showUpdatesUntilClosed shows queued updates until the view is closed, and redraws the live lines when the size of
// the terminal changes or the process continues after a stop.
func (v *View) showUpdatesUntilClosed() {
	changes := make(chan os.Signal, 2)
	if v.screen != nil {
		signal.Notify(changes, terminal.Resized, terminal.Continued)
		defer signal.Stop(changes)
	}
	for {
		select {
		case <-v.updatesQueued:
			v.ShowQueuedUpdates()
		case change := <-changes:
			v.redrawLiveLines(change == terminal.Continued)
		case <-v.closeRequested:
			v.ShowQueuedUpdates()
			return
		}
	}
}

// redrawLiveLines draws the live lines again. processWasStopped means that the process was stopped (Ctrl-Z): then the
// shell has written below the drawn live lines, so that they cannot be erased.
func (v *View) redrawLiveLines(processWasStopped bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if processWasStopped {
		v.screen.KeepDrawnLinesAtNextWrite()
	}
	v.writeToStreamLocked(&v.err, nil)
}

// JobPlacementInView describes where and how a view shows the tasks of one job among several jobs.
type JobPlacementInView struct {
	JobPosition int    // position of the job among the jobs of the view
	LabelPrefix string // precedes the labels of the job's tasks; can be empty
	AllocCount  int    // number of allocations; if there are several, the label of each task names its allocation
}

// AddTasks adds the tasks of a job's allocations to the view, and returns them. logDirOf returns the directory with the
// output of an allocation's tasks. The live lines have the order of the job.
func (v *View) AddTasks(allocs []*api.Allocation, placement JobPlacementInView, logDirOf func(allocID string) string) []*Task {
	v.showUpdatesMu.Lock()
	defer v.showUpdatesMu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	var added []*Task
	for _, alloc := range slices.SortedFunc(slices.Values(allocs), compareAllocsByJobOrder) {
		for _, task := range alloc.GetTaskGroup().Tasks {
			t := &Task{
				Alloc:            alloc,
				Name:             task.Name,
				LogDir:           logDirOf(alloc.ID),
				FirstStarted:     make(chan struct{}),
				OutputShown:      make(chan struct{}),
				Label:            placement.LabelPrefix + task.Name,
				indexOfJobInView: placement.JobPosition,
				lifecycleStage:   "main",
				formattedPorts:   ports.FormatTaskPorts(alloc, task),
				state:            model.TaskPending,
				ColourEscape:     TaskColours[(len(v.tasks)+len(added))%len(TaskColours)],
			}
			if placement.AllocCount > 1 {
				t.Label = placement.LabelPrefix + strings.TrimPrefix(alloc.Name, alloc.JobID+".") + "." + task.Name
			}
			if task.Lifecycle != nil && task.Lifecycle.Hook != "" {
				t.lifecycleStage = task.Lifecycle.Hook
			}
			v.RaiseLabelWidth(utf8.RuneCountInString(t.Label))
			added = append(added, t)
		}
	}
	v.tasks = append(v.tasks, added...)
	slices.SortStableFunc(v.tasks, func(a, b *Task) int {
		return cmp.Or(cmp.Compare(a.indexOfJobInView, b.indexOfJobInView), compareAllocsByJobOrder(a.Alloc, b.Alloc))
	})
	return added
}

// RaiseLabelWidth pads all further labels to a width of at least this number of characters, up to maxLabelWidth.
func (v *View) RaiseLabelWidth(width int) {
	wanted := int64(min(width, maxLabelWidth))
	for before := v.labelWidth.Load(); before < wanted && !v.labelWidth.CompareAndSwap(before, wanted); {
		before = v.labelWidth.Load()
	}
}

// compareAllocsByJobOrder sorts allocations in the order of their job: by group, by number, and an allocation
// before its replacement.
func compareAllocsByJobOrder(a, b *api.Allocation) int {
	groupIndex := func(a *api.Allocation) int {
		return slices.IndexFunc(a.Job.TaskGroups, func(g *api.TaskGroup) bool { return *g.Name == a.TaskGroup })
	}
	return cmp.Or(
		cmp.Compare(groupIndex(a), groupIndex(b)),
		cmp.Compare(len(a.Name), len(b.Name)), // [9] precedes [10]
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.CreateIndex, b.CreateIndex),
	)
}

// QueueTaskStates queues the new task states of an allocation.
func (v *View) QueueTaskStates(allocID string, stateByTask map[string]*api.TaskState) {
	v.enqueue(queuedUpdate{allocID: allocID, taskStates: stateByTask})
}

// QueueMessage queues a message about a job as a whole.
func (v *View) QueueMessage(text string) { v.enqueue(queuedUpdate{text: text + "\n"}) }

// Write queues a text of nomad-lite itself, such as a line of the log.
func (v *View) Write(text []byte) (int, error) {
	v.enqueue(queuedUpdate{text: string(text)})
	return len(text), nil
}

func (v *View) enqueue(n queuedUpdate) {
	n.queuedAt = time.Now()
	v.queueMu.Lock()
	v.updateQueue = append(v.updateQueue, n)
	v.queueMu.Unlock()
	wait.Notify(v.updatesQueued)
}

// ShowQueuedUpdates shows the queued updates, and returns when they are written.
func (v *View) ShowQueuedUpdates() {
	v.showUpdatesMu.Lock()
	defer v.showUpdatesMu.Unlock()
	v.queueMu.Lock()
	all := v.updateQueue
	v.updateQueue = nil
	v.queueMu.Unlock()
	for _, n := range all {
		switch {
		case n.jsonRecord != nil:
			v.writeRecord(*n.jsonRecord)
		case n.text != "" && v.isJSON:
			v.writeRecord(jsonRecord{Time: n.queuedAt, Type: recordMessage, Text: strings.TrimSuffix(n.text, "\n")})
		case n.text != "":
			v.writeToStream(&v.err, []byte(n.text))
		}
		for _, t := range v.tasks {
			if state := n.taskStates[t.Name]; t.Alloc.ID == n.allocID && state != nil {
				v.showNewEventsAndState(t, state, n.queuedAt)
			}
		}
	}
}

func (v *View) showNewEventsAndState(t *Task, state *api.TaskState, queuedAt time.Time) {
	newEvents := findNewEvents(state.Events, t.shownEvents)
	t.shownEvents = state.Events
	for _, e := range newEvents {
		switch {
		case model.IsEventOfOngoingOperation(e): // only the live lines show progress
			continue
		case e.Type == api.TaskStarted && !wait.IsClosed(t.FirstStarted):
			close(t.FirstStarted)
		case e.Type == api.TaskTerminated:
			select {
			case <-t.OutputShown:
			case <-time.After(time.Until(queuedAt.Add(endEventDelay))):
			}
		}
		if v.isJSON {
			v.writeEventRecord(t, e)
		} else {
			v.printEvent(t, formatEvent(e), isFailureEvent(e))
		}
	}
	detail := ""
	if last := len(state.Events) - 1; last >= 0 {
		detail = formatEvent(state.Events[last])
	}
	why := reason.FromTaskState(state, time.Time{}).WithRemedyForRunCommand()
	if why.Cause != "" && !why.IsBeingSetUp() {
		detail = why.String()
	}
	// The printed events already name the cause, so only a new remedy is printed.
	if why.Remedy != "" && why.Remedy != t.lastShownRemedy {
		v.printEvent(t, why.Remedy, false)
	}
	t.lastShownRemedy = why.Remedy
	v.setTaskStatusAndRedraw(t, state.State, detail)
}

// findNewEvents returns the events that follow the last event that was shown. The task can have dropped some of the
// shown events: the oldest, and the progress of operations. Timestamps alone do not identify an event: with a coarse
// clock several events have the same time, and a clock can be set back.
func findNewEvents(events, shown []*api.TaskEvent) []*api.TaskEvent {
	for i, e := range slices.Backward(events) {
		if slices.ContainsFunc(shown, func(s *api.TaskEvent) bool {
			return e.Time == s.Time && e.Type == s.Type && e.DisplayMessage == s.DisplayMessage
		}) {
			return events[i+1:]
		}
	}
	return events // the task has dropped all events that were shown
}

// formatEvent returns the type and the message of an event.
func formatEvent(e *api.TaskEvent) string {
	if e.DisplayMessage == "" || e.DisplayMessage == e.Type {
		return e.Type
	}
	return e.Type + ": " + strings.TrimSpace(e.DisplayMessage)
}

// isFailureEvent reports whether an event is a failure, which is shown in red.
func isFailureEvent(e *api.TaskEvent) bool {
	switch e.Type {
	case api.TaskTerminated:
		return e.ExitCode != 0 || e.Signal != 0
	case api.TaskNotRestarting, api.TaskDriverFailure, api.TaskFailedValidation, api.TaskSetupFailure, model.TaskHookFailed, api.TaskSiblingFailed:
		return true
	}
	return e.FailsTask
}

// PrintTaskOutput shows lines of a task's output. Only the last line can be incomplete. A task's stderr
// is written to standard error.
func (v *View) PrintTaskOutput(t *Task, isStderr bool, text []byte) {
	if v.isJSON {
		v.writeOutputRecords(t, isStderr, text)
		return
	}
	o := &v.out
	if isStderr {
		o = &v.err
	}
	v.writeToStream(o, v.prefixLines(o, t, "|", text))
}

// printEvent shows an event of a task.
func (v *View) printEvent(t *Task, text string, isFailure bool) {
	colour := terminal.ColourDim
	if isFailure {
		colour = terminal.ColourRed
	}
	var eventLines []byte
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			eventLines = append(append(eventLines, v.err.colourize(colour, line)...), '\n')
		}
	}
	v.writeToStream(&v.err, v.prefixLines(&v.err, t, "*", eventLines))
}

// setTaskStatusAndRedraw sets the state and the detail of a task, and redraws the live lines if they have changed.
func (v *View) setTaskStatusAndRedraw(t *Task, state, detail string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.state == state && t.statusDetail == detail {
		return
	}
	t.state, t.statusDetail = state, detail
	if v.screen != nil {
		v.writeToStreamLocked(&v.err, nil)
	}
}

// DiscardFurtherOutput discards all further output, for a reader that no longer reads. Afterwards no method of the view
// blocks on output.
func (v *View) DiscardFurtherOutput() { v.discardsOutput.Store(true) }

// Close shows the updates that are still queued, and removes the live lines.
func (v *View) Close() {
	close(v.closeRequested)
	if v.discardsOutput.Load() {
		return
	}
	v.wg.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tasks = nil
	if v.screen != nil {
		v.writeToStreamLocked(&v.err, nil)
	}
}

// prefixLines puts the label of a task and mark before each line. mark distinguishes output from events.
func (v *View) prefixLines(o *outputStream, t *Task, mark string, text []byte) []byte {
	prefix := o.colourize(t.ColourEscape, fmt.Sprintf("%-*s %s ", int(v.labelWidth.Load()), t.Label, mark))
	if o.isTerminal { // before the split into lines, because a carriage return can become a newline
		text = terminal.SanitizeText(text, true)
	}
	b := make([]byte, 0, len(text)+(bytes.Count(text, []byte("\n"))+1)*len(prefix)+1)
	for line := range bytes.Lines(text) {
		b = append(b, prefix...)
		b = append(b, bytes.TrimSuffix(line, []byte("\n"))...)
		b = append(b, '\n')
	}
	return b
}

func (o *outputStream) colourize(colour, text string) string {
	if !o.useColour {
		return text
	}
	return colour + text + terminal.ColourReset
}

func (v *View) writeToStream(o *outputStream, text []byte) {
	if v.discardsOutput.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	v.writeToStreamLocked(o, text)
}

func (v *View) writeToStreamLocked(o *outputStream, text []byte) {
	var err error
	if o.drawsLiveLines {
		err = v.screen.WriteAboveLiveLines(text, v.taskStatusLines)
	} else {
		_, err = o.writer.Write(text)
	}
	if errors.Is(err, syscall.EPIPE) {
		v.reportBrokenPipe()
	} else if err != nil && !o.lastWriteFailed && o == &v.out {
		v.QueueMessage("output is lost: " + err.Error())
	}
	o.lastWriteFailed = err != nil
}

// taskStatusLines returns a live line for each task. It returns a single line for all tasks if more
// than half of the terminal would be live lines.
func (v *View) taskStatusLines(columns, rows int) []string {
	tasks := v.tasksWithoutEndedReplaced()
	if rows < 3 || len(tasks) == 0 {
		return nil
	}
	var statusLines []string
	if len(tasks) > rows/2 {
		states := map[string]int{}
		for _, t := range tasks {
			states[t.state]++
		}
		text := fmt.Sprintf(" %d tasks:", len(tasks))
		for _, state := range []string{model.TaskPending, model.TaskRunning, model.TaskDead} {
			text += fmt.Sprintf("  %d %s", states[state], state)
		}
		return append(statusLines, v.err.colourize(terminal.ColourDim, terminal.TruncateToWidth(text, columns-1)))
	}
	for _, t := range tasks {
		text := fmt.Sprintf(" %-*s  %-9s  %-7s  ", int(v.labelWidth.Load()), t.Label, t.lifecycleStage, t.state)
		if t.formattedPorts != "" && t.state == model.TaskRunning { // for other states the width of the line is needed for the reason
			text += t.formattedPorts + "  "
		}
		text += terminal.FirstLine(t.statusDetail)
		statusLines = append(statusLines, v.err.colourize(t.ColourEscape, terminal.TruncateToWidth(string(terminal.SanitizeText([]byte(text), false)), columns-1)))
	}
	return statusLines
}

// tasksWithoutEndedReplaced returns the tasks, without ended tasks of allocations that were replaced.
func (v *View) tasksWithoutEndedReplaced() []*Task {
	newest := make(map[string]string) // allocation's namespace/name -> ID of the newest allocation
	nameOf := func(a *api.Allocation) string { return a.Namespace + "/" + a.Name }
	for _, t := range v.tasks { // an allocation precedes its replacement
		newest[nameOf(t.Alloc)] = t.Alloc.ID
	}
	return slices.DeleteFunc(slices.Clone(v.tasks), func(t *Task) bool {
		return t.state == model.TaskDead && newest[nameOf(t.Alloc)] != t.Alloc.ID
	})
}
