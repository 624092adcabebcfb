package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/term"

	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// view shows a running job to a person: what the tasks write, with the task in
// front of each line, and where each task is in its life. On a terminal the
// latter is one live line per task below the output; elsewhere each change is a
// line of its own.
//
// All methods may be called concurrently.
type view struct {
	out, err io.Writer
	terminal *os.File // nil unless err is a terminal
	colour   bool

	unheard chan struct{} // closed when whoever read the output has gone

	mu    sync.Mutex
	tasks []*taskLine // in the order of the job
	width int         // of the widest label
	drawn int         // live lines on the screen
}

// taskLine is what the view knows of one task.
type taskLine struct {
	alloc   *api.Allocation
	name    string
	logDir  string
	started chan struct{} // closed by the first start
	label   string        // how the person calls the task: "server", or "web[1].server"
	stage   string        // "main", "prestart", …
	state   string
	detail  string
	colour  string
	seen    *api.TaskEvent // the last one that was shown
}

// The colours tell tasks apart; red is kept for failures.
var taskColours = []string{"\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[96m", "\x1b[93m", "\x1b[92m"}

const (
	colourDim   = "\x1b[2m"
	colourRed   = "\x1b[31m"
	colourReset = "\x1b[0m"
)

func newView(s *streams) *view {
	v := &view{out: s.out, err: s.err, unheard: make(chan struct{})}
	if file, ok := s.err.(*os.File); ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb" {
		v.terminal = file
		v.colour = os.Getenv("NO_COLOR") == ""
	}
	return v
}

// show gives the view the tasks to show, and where their output will be. It is
// called once, before the other methods that know of tasks.
func (v *view) show(allocs []*api.Allocation, logDir func(allocID string) string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, alloc := range allocs {
		for _, task := range alloc.GetTaskGroup().Tasks {
			t := &taskLine{
				alloc:   alloc,
				name:    task.Name,
				logDir:  logDir(alloc.ID),
				started: make(chan struct{}),
				label:   task.Name,
				stage:   "main",
				state:   model.TaskPending,
			}
			if len(allocs) > 1 {
				t.label = strings.TrimPrefix(alloc.Name, alloc.JobID+".") + "." + task.Name
			}
			if task.Lifecycle != nil && task.Lifecycle.Hook != "" {
				t.stage = task.Lifecycle.Hook
			}
			t.colour = taskColours[len(v.tasks)%len(taskColours)]
			v.width = max(v.width, len(t.label))
			v.tasks = append(v.tasks, t)
		}
	}
}

// update shows what has become of an allocation.
func (v *view) update(alloc *api.Allocation, update allocrunner.Update) {
	for _, t := range v.tasks {
		state := update.TaskStates[t.name]
		if t.alloc.ID != alloc.ID || state == nil {
			continue
		}
		detail := ""
		for _, e := range unseen(state.Events, t.seen) {
			t.seen = e
			if e.Type == api.TaskStarted && !closed(t.started) {
				close(t.started)
			}
			v.event(t, eventText(e), isBad(e))
		}
		if t.seen != nil {
			detail = eventText(t.seen)
		}
		v.status(t, state.State, detail)
	}
}

// unseen are the events after the last one that was seen. Their times would not
// tell: a coarse clock gives one to several, and any clock may be set back.
func unseen(events []*api.TaskEvent, last *api.TaskEvent) []*api.TaskEvent {
	for i := len(events) - 1; last != nil && i >= 0; i-- {
		if e := events[i]; e.Time == last.Time && e.Type == last.Type && e.DisplayMessage == last.DisplayMessage {
			return events[i+1:]
		}
	}
	return events // all that was seen has gone from the ring meanwhile
}

// eventText is an event in one line.
func eventText(e *api.TaskEvent) string {
	if e.DisplayMessage == "" || e.DisplayMessage == e.Type {
		return e.Type
	}
	return e.Type + ": " + strings.TrimSpace(e.DisplayMessage)
}

// isBad reports whether an event is one that a person should look at.
func isBad(e *api.TaskEvent) bool {
	switch e.Type {
	case api.TaskTerminated:
		return e.ExitCode != 0 || e.Signal != 0
	case api.TaskNotRestarting, api.TaskDriverFailure, api.TaskFailedValidation, api.TaskSetupFailure, model.TaskHookFailed, api.TaskSiblingFailed:
		return true
	}
	return e.FailsTask
}

// Write shows what nomad-lite says about itself.
func (v *view) Write(text []byte) (int, error) {
	v.above(v.err, text)
	return len(text), nil
}

// line shows one line of a task's output; a task's stderr goes to stderr.
func (v *view) line(t *taskLine, stderr bool, text []byte) {
	w := v.out
	if stderr {
		w = v.err
	}
	var b bytes.Buffer
	b.WriteString(v.prefix(t, "|"))
	b.Write(bytes.TrimSuffix(text, []byte("\n")))
	b.WriteByte('\n')
	v.above(w, b.Bytes())
}

// event shows a step in the life of a task.
func (v *view) event(t *taskLine, text string, bad bool) {
	colour := colourDim
	if bad {
		colour = colourRed
	}
	v.above(v.err, []byte(v.prefix(t, "*")+v.paint(colour, text)+"\n"))
}

// status sets the live line of a task.
func (v *view) status(t *taskLine, state, detail string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.state == state && t.detail == detail {
		return
	}
	t.state, t.detail = state, detail
	v.eraseLocked()
	v.drawLocked()
}

// note says something about the job as a whole.
func (v *view) note(text string) {
	v.above(v.err, []byte(text+"\n"))
}

// close removes the live lines.
func (v *view) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.eraseLocked()
	v.terminal = nil
}

func (v *view) prefix(t *taskLine, mark string) string {
	return v.paint(t.colour, fmt.Sprintf("%-*s %s ", v.width, t.label, mark))
}

func (v *view) paint(colour, text string) string {
	if !v.colour {
		return text
	}
	return colour + text + colourReset
}

func (v *view) above(w io.Writer, text []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.eraseLocked()
	if _, err := w.Write(text); errors.Is(err, syscall.EPIPE) && !closed(v.unheard) {
		close(v.unheard)
	}
	v.drawLocked()
}

func (v *view) eraseLocked() {
	if v.drawn > 0 {
		fmt.Fprintf(v.terminal, "\x1b[%dA\r\x1b[J", v.drawn)
		v.drawn = 0
	}
}

func (v *view) drawLocked() {
	if v.terminal == nil {
		return
	}
	columns, rows, err := term.GetSize(int(v.terminal.Fd()))
	if err != nil || rows <= len(v.tasks)+1 {
		return // no room for the live lines: the events have said it all
	}
	var b strings.Builder
	for _, t := range v.tasks {
		text := fmt.Sprintf(" %-*s  %-9s  %-8s  %s", v.width, t.label, t.stage, t.state, t.detail)
		if runes := []rune(text); len(runes) >= columns {
			text = string(runes[:columns-1])
		}
		b.WriteString(v.paint(t.colour, text))
		b.WriteByte('\n')
	}
	io.WriteString(v.terminal, b.String())
	v.drawn = len(v.tasks)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
