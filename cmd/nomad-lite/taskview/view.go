package taskview

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/terminal"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// View shows a running job to a person: the output of the tasks, with the task's label on
// each line, and the state of each task. On a terminal the state is one live line per task
// below the output; elsewhere each change is a line of its own.
//
// All methods may be called concurrently.
type View struct {
	out, err         outputStream
	screen           *terminal.Screen // nil unless err is a terminal
	BrokenPipe       chan struct{}    // closed by reportBrokenPipe
	reportBrokenPipe func()           // called when the reader of the output has closed it
	updatesQueued    chan struct{}    // receives a value when there is news
	closing          chan struct{}    // closed by close
	wg               sync.WaitGroup

	outputClosed atomic.Bool // remaining output is discarded

	showMu  sync.Mutex // held while news is shown
	queueMu sync.Mutex
	queue   []queuedUpdate // updates not shown yet

	mu         sync.Mutex // guards the following fields, standard error and the screen
	tasks      []*Task    // tasks in the order of the job; written with showMu held as well
	LabelWidth int        // width of the widest label
}

// queuedUpdate is an update of an allocation, or a text for standard error. The sender does not
// wait for a terminal or a pager that blocks the output.
type queuedUpdate struct {
	time    time.Time
	allocID string
	tasks   map[string]*api.TaskState
	text    string
}

// outputStream is standard output or standard error.
type outputStream struct {
	w              io.Writer
	mu             *sync.Mutex // shared by both outputs if they are the same file
	onScreen       bool        // the output goes to the terminal with the live lines
	supportsCursor bool
	useColour      bool
	writeFailed    bool
}

// Task is the view's state of one task.
type Task struct {
	Alloc          *api.Allocation
	Name           string
	LogDir         string
	Started        chan struct{} // closed by the first start
	OutputDone     chan struct{} // closed after the last output of the task
	Label          string        // label of the task: "server", or "web[1].server"
	lifecycleStage string        // "main", "prestart", …
	state          string
	detail         string
	Colour         string
	lastShown      *api.TaskEvent // last event that was shown
}

// MaxLabelWidth is the maximum width to which shorter labels are padded.
const MaxLabelWidth = 40

// eventDelay is the delay of the end event of a task that can start again. The task's
// earlier output arrives from another process, and is easier to read before the event.
const eventDelay = 10 * time.Millisecond

// The colours distinguish tasks; red is reserved for failures.
var TaskColours = []string{"\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[96m", "\x1b[93m", "\x1b[92m"}

// New returns a view, which the caller must close. Without a screen it has no live
// lines.
func New(s *cli.Streams, live *terminal.Screen) *View {
	brokenPipe := make(chan struct{})
	v := &View{
		screen:           live,
		BrokenPipe:       brokenPipe,
		reportBrokenPipe: sync.OnceFunc(func() { close(brokenPipe) }),
		updatesQueued:    make(chan struct{}, 1),
		closing:          make(chan struct{}),
	}
	v.err = v.newOutputStream(s, s.Err, &v.mu)
	v.out = v.newOutputStream(s, s.Out, &v.mu)
	if !terminal.SameFile(s.Out, s.Err) {
		v.out.mu = new(sync.Mutex) // a blocked output does not block the other one
	}
	v.wg.Go(v.run)
	return v
}

func (v *View) newOutputStream(s *cli.Streams, w io.Writer, mu *sync.Mutex) outputStream {
	return outputStream{
		w:              w,
		mu:             mu,
		onScreen:       v.screen != nil && terminal.SameFile(w, v.screen.W),
		supportsCursor: terminal.SupportsCursor(w),
		useColour:      s.SupportsColours(w),
	}
}

// run shows news until the view is closed, and redraws the live lines when the terminal
// changes.
func (v *View) run() {
	changes := make(chan os.Signal, 2)
	if v.screen != nil {
		signal.Notify(changes, syscall.SIGWINCH, syscall.SIGCONT)
		defer signal.Stop(changes)
	}
	for {
		select {
		case <-v.updatesQueued:
			v.ShowUpdates()
		case change := <-changes:
			v.redraw(change == syscall.SIGCONT)
		case <-v.closing:
			v.ShowUpdates()
			return
		}
	}
}

// redraw redraws the live lines. After a stop (Ctrl-Z) the shell has written below the old
// lines.
func (v *View) redraw(stopped bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if stopped {
		v.screen.ForgetDrawnLines()
	}
	v.writeLocked(&v.err, nil)
}

// AddTasks adds tasks to the view, with the directories of their output. For a job with several
// instances each line names its instance. It returns the tasks.
func (v *View) AddTasks(allocs []*api.Allocation, instances int, logDir func(allocID string) string) []*Task {
	v.showMu.Lock()
	defer v.showMu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	before := len(v.tasks)
	for _, alloc := range allocs {
		for _, task := range alloc.GetTaskGroup().Tasks {
			t := &Task{
				Alloc:          alloc,
				Name:           task.Name,
				LogDir:         logDir(alloc.ID),
				Started:        make(chan struct{}),
				OutputDone:     make(chan struct{}),
				Label:          task.Name,
				lifecycleStage: "main",
				state:          model.TaskPending,
				Colour:         TaskColours[len(v.tasks)%len(TaskColours)],
			}
			if instances > 1 {
				t.Label = strings.TrimPrefix(alloc.Name, alloc.JobID+".") + "." + task.Name
			}
			if task.Lifecycle != nil && task.Lifecycle.Hook != "" {
				t.lifecycleStage = task.Lifecycle.Hook
			}
			v.LabelWidth = max(v.LabelWidth, min(utf8.RuneCountInString(t.Label), MaxLabelWidth))
			v.tasks = append(v.tasks, t)
		}
	}
	return v.tasks[before:len(v.tasks):len(v.tasks)]
}

// QueueUpdate queues an update of an allocation.
func (v *View) QueueUpdate(allocID string, tasks map[string]*api.TaskState) {
	v.add(queuedUpdate{allocID: allocID, tasks: tasks})
}

// PrintMessage queues a message about the job as a whole.
func (v *View) PrintMessage(text string) { v.add(queuedUpdate{text: text + "\n"}) }

// Write queues a message of nomad-lite itself.
func (v *View) Write(text []byte) (int, error) {
	v.add(queuedUpdate{text: string(text)})
	return len(text), nil
}

func (v *View) add(n queuedUpdate) {
	n.time = time.Now()
	v.queueMu.Lock()
	v.queue = append(v.queue, n)
	v.queueMu.Unlock()
	select {
	case v.updatesQueued <- struct{}{}:
	default:
	}
}

// ShowUpdates shows the queued updates, and blocks until they are written.
func (v *View) ShowUpdates() {
	v.showMu.Lock()
	defer v.showMu.Unlock()
	v.queueMu.Lock()
	all := v.queue
	v.queue = nil
	v.queueMu.Unlock()
	for _, n := range all {
		if n.text != "" {
			v.write(&v.err, []byte(n.text))
		}
		for _, t := range v.tasks {
			if state := n.tasks[t.Name]; t.Alloc.ID == n.allocID && state != nil {
				v.showState(t, state, n.time)
			}
		}
	}
}

func (v *View) showState(t *Task, state *api.TaskState, come time.Time) {
	for _, e := range newEvents(state.Events, t.lastShown) {
		t.lastShown = e
		switch {
		case e.Type == api.TaskStarted && !t.HasStarted():
			close(t.Started)
		case e.Type == api.TaskTerminated:
			select {
			case <-t.OutputDone:
			case <-time.After(time.Until(come.Add(eventDelay))):
			}
		}
		v.printEvent(t, eventText(e), isFailure(e))
	}
	detail := ""
	if t.lastShown != nil {
		detail = eventText(t.lastShown)
	}
	v.setStatus(t, state.State, detail)
}

// newEvents returns the events after the last event shown. Timestamps are not enough: with a
// coarse clock several events have the same time, and a clock can be set back.
func newEvents(events []*api.TaskEvent, last *api.TaskEvent) []*api.TaskEvent {
	for i := len(events) - 1; last != nil && i >= 0; i-- {
		if e := events[i]; e.Time == last.Time && e.Type == last.Type && e.DisplayMessage == last.DisplayMessage {
			return events[i+1:]
		}
	}
	return events // the ring has dropped all events that were shown
}

// eventText returns an event in one line.
func eventText(e *api.TaskEvent) string {
	if e.DisplayMessage == "" || e.DisplayMessage == e.Type {
		return e.Type
	}
	return e.Type + ": " + strings.TrimSpace(e.DisplayMessage)
}

// isFailure reports whether an event needs attention.
func isFailure(e *api.TaskEvent) bool {
	switch e.Type {
	case api.TaskTerminated:
		return e.ExitCode != 0 || e.Signal != 0
	case api.TaskNotRestarting, api.TaskDriverFailure, api.TaskFailedValidation, api.TaskSetupFailure, model.TaskHookFailed, api.TaskSiblingFailed:
		return true
	}
	return e.FailsTask
}

// PrintLines shows whole lines of a task's output; only the last can be unterminated. A task's
// stderr goes to stderr.
func (v *View) PrintLines(t *Task, stderr bool, text []byte) {
	o := &v.out
	if stderr {
		o = &v.err
	}
	v.write(o, v.prefixLines(o, t, "|", text))
}

// printEvent shows a step in the life of a task.
func (v *View) printEvent(t *Task, text string, bad bool) {
	colour := terminal.ColourDim
	if bad {
		colour = terminal.ColourRed
	}
	var lines []byte
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			lines = append(append(lines, v.err.paint(colour, line)...), '\n')
		}
	}
	v.write(&v.err, v.prefixLines(&v.err, t, "*", lines))
}

// setStatus sets the live line of a task.
func (v *View) setStatus(t *Task, state, detail string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.state == state && t.detail == detail {
		return
	}
	t.state, t.detail = state, detail
	if v.screen != nil {
		v.writeLocked(&v.err, nil)
	}
}

// DiscardOutput discards all output, because its reader blocks it. After that no method of the
// view blocks on output.
func (v *View) DiscardOutput() { v.outputClosed.Store(true) }

// Close shows the last news and removes the live lines.
func (v *View) Close() {
	close(v.closing)
	if v.outputClosed.Load() {
		return
	}
	v.wg.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tasks = nil
	if v.screen != nil {
		v.writeLocked(&v.err, nil)
	}
}

// prefixLines adds the label of a task to each line.
func (v *View) prefixLines(o *outputStream, t *Task, mark string, text []byte) []byte {
	prefix := o.paint(t.Colour, fmt.Sprintf("%-*s %s ", v.LabelWidth, t.Label, mark))
	if o.supportsCursor {
		text = terminal.Printable(text, true)
	}
	b := make([]byte, 0, len(text)+(bytes.Count(text, []byte("\n"))+1)*len(prefix)+1)
	for line := range bytes.Lines(text) {
		b = append(b, prefix...)
		b = append(b, bytes.TrimSuffix(line, []byte("\n"))...)
		b = append(b, '\n')
	}
	return b
}

func (o *outputStream) paint(colour, text string) string {
	if !o.useColour {
		return text
	}
	return colour + text + terminal.ColourReset
}

func (v *View) write(o *outputStream, text []byte) {
	if v.outputClosed.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	v.writeLocked(o, text)
}

func (v *View) writeLocked(o *outputStream, text []byte) {
	var err error
	if o.onScreen {
		err = v.screen.Show(text, v.taskStatusLines)
	} else {
		_, err = o.w.Write(text)
	}
	if errors.Is(err, syscall.EPIPE) {
		v.reportBrokenPipe()
	} else if err != nil && !o.writeFailed && o == &v.out {
		v.PrintMessage("output is lost: " + err.Error())
	}
	o.writeFailed = err != nil
}

// taskStatusLines returns one line for each task, or one for all tasks if that would leave less
// than half of the terminal to the output.
func (v *View) taskStatusLines(columns, rows int) []string {
	if rows < 3 || len(v.tasks) == 0 {
		return nil
	}
	var lines []string
	if len(v.tasks) > rows/2 {
		states := map[string]int{}
		for _, t := range v.tasks {
			states[t.state]++
		}
		text := fmt.Sprintf(" %d tasks:", len(v.tasks))
		for _, state := range []string{model.TaskPending, model.TaskRunning, model.TaskDead} {
			text += fmt.Sprintf("  %d %s", states[state], state)
		}
		return append(lines, v.err.paint(terminal.ColourDim, terminal.TruncateToWidth(text, columns-1)))
	}
	for _, t := range v.tasks {
		text := fmt.Sprintf(" %-*s  %-9s  %-7s  %s", v.LabelWidth, t.Label, t.lifecycleStage, t.state, terminal.FirstLine(t.detail))
		lines = append(lines, v.err.paint(t.Colour, terminal.TruncateToWidth(string(terminal.Printable([]byte(text), false)), columns-1)))
	}
	return lines
}

// HasStarted reports whether the task has started at least once.
func (t *Task) HasStarted() bool {
	select {
	case <-t.Started:
		return true
	default:
		return false
	}
}
