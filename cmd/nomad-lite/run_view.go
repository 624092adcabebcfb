package main

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

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// view shows a running job to a person: the output of the tasks, with the task's label on
// each line, and the state of each task. On a terminal the state is one live line per task
// below the output; elsewhere each change is a line of its own.
//
// All methods may be called concurrently.
type view struct {
	out, err output
	live     *screen       // nil unless err is a terminal
	unheard  chan struct{} // closed by unhear: the reader of the output has closed it
	unhear   func()
	wake     chan struct{} // receives a value when there is news
	end      chan struct{} // closed by close
	showing  sync.WaitGroup

	outputClosed atomic.Bool // remaining output is discarded

	showMu sync.Mutex // held while news is shown
	newsMu sync.Mutex
	news   []updates // updates not shown yet

	mu    sync.Mutex  // guards the following fields, standard error and the screen
	tasks []*taskLine // tasks in the order of the job; written with showMu held as well
	width int         // width of the widest label
}

// updates is an update of an allocation, or a text for standard error. The sender does not
// wait for a terminal or a pager that blocks the output.
type updates struct {
	come    time.Time
	allocID string
	tasks   map[string]*api.TaskState
	text    string
}

// output is standard output or standard error.
type output struct {
	w        io.Writer
	mu       *sync.Mutex // shared by both outputs if they are the same file
	live     bool        // the output goes to the terminal with the live lines
	terminal bool
	colour   bool
	failed   bool
}

// taskLine is the view's state of one task.
type taskLine struct {
	alloc   *api.Allocation
	name    string
	logDir  string
	started chan struct{} // closed by the first start
	silent  chan struct{} // closed after the last output of the task
	label   string        // label of the task: "server", or "web[1].server"
	stage   string        // "main", "prestart", …
	state   string
	detail  string
	colour  string
	seen    *api.TaskEvent // last event that was shown
}

// widestLabel is the maximum width to which shorter labels are padded.
const widestLabel = 40

// lastWords is the delay of the end event of a task that can start again. The task's
// earlier output arrives from another process, and is easier to read before the event.
const lastWords = 10 * time.Millisecond

// The colours distinguish tasks; red is reserved for failures.
var taskColours = []string{"\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[96m", "\x1b[93m", "\x1b[92m"}

const (
	colourDim   = "\x1b[2m"
	colourRed   = "\x1b[31m"
	colourReset = "\x1b[0m"
)

// newView returns a view, which the caller must close. Without a screen it has no live
// lines.
func newView(s *streams, live *screen) *view {
	unheard := make(chan struct{})
	v := &view{
		live:    live,
		unheard: unheard,
		unhear:  sync.OnceFunc(func() { close(unheard) }),
		wake:    make(chan struct{}, 1),
		end:     make(chan struct{}),
	}
	v.err = v.output(s, s.err, &v.mu)
	v.out = v.output(s, s.out, &v.mu)
	if !sameFile(s.out, s.err) {
		v.out.mu = new(sync.Mutex) // a blocked output does not block the other one
	}
	v.showing.Go(v.run)
	return v
}

func (v *view) output(s *streams, w io.Writer, mu *sync.Mutex) output {
	return output{
		w:        w,
		mu:       mu,
		live:     v.live != nil && sameFile(w, v.live.w),
		terminal: isScreen(w),
		colour:   s.colours(w),
	}
}

// run shows news until the view is closed, and redraws the live lines when the terminal
// changes.
func (v *view) run() {
	changes := make(chan os.Signal, 2)
	if v.live != nil {
		signal.Notify(changes, syscall.SIGWINCH, syscall.SIGCONT)
		defer signal.Stop(changes)
	}
	for {
		select {
		case <-v.wake:
			v.showNews()
		case change := <-changes:
			v.refresh(change == syscall.SIGCONT)
		case <-v.end:
			v.showNews()
			return
		}
	}
}

// refresh redraws the live lines. After a stop (Ctrl-Z) the shell has written below the old
// lines.
func (v *view) refresh(stopped bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if stopped {
		v.live.forget()
	}
	v.writeLocked(&v.err, nil)
}

// show adds tasks to the view, with the directories of their output. For a job with several
// instances each line names its instance. It returns the tasks.
func (v *view) show(allocs []*api.Allocation, instances int, logDir func(allocID string) string) []*taskLine {
	v.showMu.Lock()
	defer v.showMu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	before := len(v.tasks)
	for _, alloc := range allocs {
		for _, task := range alloc.GetTaskGroup().Tasks {
			t := &taskLine{
				alloc:   alloc,
				name:    task.Name,
				logDir:  logDir(alloc.ID),
				started: make(chan struct{}),
				silent:  make(chan struct{}),
				label:   task.Name,
				stage:   "main",
				state:   model.TaskPending,
				colour:  taskColours[len(v.tasks)%len(taskColours)],
			}
			if instances > 1 {
				t.label = strings.TrimPrefix(alloc.Name, alloc.JobID+".") + "." + task.Name
			}
			if task.Lifecycle != nil && task.Lifecycle.Hook != "" {
				t.stage = task.Lifecycle.Hook
			}
			v.width = max(v.width, min(utf8.RuneCountInString(t.label), widestLabel))
			v.tasks = append(v.tasks, t)
		}
	}
	return v.tasks[before:len(v.tasks):len(v.tasks)]
}

// update queues an update of an allocation.
func (v *view) update(allocID string, tasks map[string]*api.TaskState) {
	v.add(updates{allocID: allocID, tasks: tasks})
}

// note queues a message about the job as a whole.
func (v *view) note(text string) { v.add(updates{text: text + "\n"}) }

// Write queues a message of nomad-lite itself.
func (v *view) Write(text []byte) (int, error) {
	v.add(updates{text: string(text)})
	return len(text), nil
}

func (v *view) add(n updates) {
	n.come = time.Now()
	v.newsMu.Lock()
	v.news = append(v.news, n)
	v.newsMu.Unlock()
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// showNews shows the queued updates, and blocks until they are written.
func (v *view) showNews() {
	v.showMu.Lock()
	defer v.showMu.Unlock()
	v.newsMu.Lock()
	all := v.news
	v.news = nil
	v.newsMu.Unlock()
	for _, n := range all {
		if n.text != "" {
			v.write(&v.err, []byte(n.text))
		}
		for _, t := range v.tasks {
			if state := n.tasks[t.name]; t.alloc.ID == n.allocID && state != nil {
				v.showState(t, state, n.come)
			}
		}
	}
}

func (v *view) showState(t *taskLine, state *api.TaskState, come time.Time) {
	for _, e := range unseen(state.Events, t.seen) {
		t.seen = e
		switch {
		case e.Type == api.TaskStarted && !closed(t.started):
			close(t.started)
		case e.Type == api.TaskTerminated:
			select {
			case <-t.silent:
			case <-time.After(time.Until(come.Add(lastWords))):
			}
		}
		v.event(t, eventText(e), isBad(e))
	}
	detail := ""
	if t.seen != nil {
		detail = eventText(t.seen)
	}
	v.status(t, state.State, detail)
}

// unseen returns the events after the last event shown. Timestamps are not enough: with a
// coarse clock several events have the same time, and a clock can be set back.
func unseen(events []*api.TaskEvent, last *api.TaskEvent) []*api.TaskEvent {
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

// isBad reports whether an event needs attention.
func isBad(e *api.TaskEvent) bool {
	switch e.Type {
	case api.TaskTerminated:
		return e.ExitCode != 0 || e.Signal != 0
	case api.TaskNotRestarting, api.TaskDriverFailure, api.TaskFailedValidation, api.TaskSetupFailure, model.TaskHookFailed, api.TaskSiblingFailed:
		return true
	}
	return e.FailsTask
}

// lines shows whole lines of a task's output; only the last can be unterminated. A task's
// stderr goes to stderr.
func (v *view) lines(t *taskLine, stderr bool, text []byte) {
	o := &v.out
	if stderr {
		o = &v.err
	}
	v.write(o, v.prefixed(o, t, "|", text))
}

// event shows a step in the life of a task.
func (v *view) event(t *taskLine, text string, bad bool) {
	colour := colourDim
	if bad {
		colour = colourRed
	}
	var lines []byte
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			lines = append(append(lines, v.err.paint(colour, line)...), '\n')
		}
	}
	v.write(&v.err, v.prefixed(&v.err, t, "*", lines))
}

// status sets the live line of a task.
func (v *view) status(t *taskLine, state, detail string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.state == state && t.detail == detail {
		return
	}
	t.state, t.detail = state, detail
	if v.live != nil {
		v.writeLocked(&v.err, nil)
	}
}

// abandon discards all output, because its reader blocks it. After that no method of the
// view blocks on output.
func (v *view) abandon() { v.outputClosed.Store(true) }

// close shows the last news and removes the live lines.
func (v *view) close() {
	close(v.end)
	if v.outputClosed.Load() {
		return
	}
	v.showing.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tasks = nil
	if v.live != nil {
		v.writeLocked(&v.err, nil)
	}
}

// prefixed adds the label of a task to each line.
func (v *view) prefixed(o *output, t *taskLine, mark string, text []byte) []byte {
	prefix := o.paint(t.colour, fmt.Sprintf("%-*s %s ", v.width, t.label, mark))
	if o.terminal {
		text = printable(text, true)
	}
	b := make([]byte, 0, len(text)+(bytes.Count(text, []byte("\n"))+1)*len(prefix)+1)
	for line := range bytes.Lines(text) {
		b = append(b, prefix...)
		b = append(b, bytes.TrimSuffix(line, []byte("\n"))...)
		b = append(b, '\n')
	}
	return b
}

func (o *output) paint(colour, text string) string {
	if !o.colour {
		return text
	}
	return colour + text + colourReset
}

func (v *view) write(o *output, text []byte) {
	if v.outputClosed.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	v.writeLocked(o, text)
}

func (v *view) writeLocked(o *output, text []byte) {
	var err error
	if o.live {
		err = v.live.show(text, v.liveLines)
	} else {
		_, err = o.w.Write(text)
	}
	if errors.Is(err, syscall.EPIPE) {
		v.unhear()
	} else if err != nil && !o.failed && o == &v.out {
		v.note("output is lost: " + err.Error())
	}
	o.failed = err != nil
}

// liveLines returns one line for each task, or one for all tasks if that would leave less
// than half of the terminal to the output.
func (v *view) liveLines(columns, rows int) []string {
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
		return append(lines, v.err.paint(colourDim, cut(text, columns-1)))
	}
	for _, t := range v.tasks {
		text := fmt.Sprintf(" %-*s  %-9s  %-7s  %s", v.width, t.label, t.stage, t.state, firstLine(t.detail))
		lines = append(lines, v.err.paint(t.colour, cut(string(printable([]byte(text), false)), columns-1)))
	}
	return lines
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
