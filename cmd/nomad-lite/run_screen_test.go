package main

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// fakeTerminal interprets the text of a screen like a terminal.
type fakeTerminal struct {
	t             *testing.T
	columns, rows int
	lines         []string // all rows, including rows that have scrolled out
	broken        []bool   // whether a row continues in the next one
	y, x          int      // cursor, counted from the first row
	wrap          bool
}

func newFakeTerminal(t *testing.T, columns, rows int) *fakeTerminal {
	return &fakeTerminal{t: t, columns: columns, rows: rows, lines: []string{""}, broken: []bool{false}, wrap: true}
}

func (f *fakeTerminal) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := 1
		switch rest[0] {
		case '\x1b':
			n = sequence(rest)
			f.control(string(rest[:n]))
		case '\n':
			f.down(false)
		case '\r':
			f.x = 0
		default:
			f.put(rest[0])
		}
		rest = rest[n:]
	}
	if !f.wrap {
		f.t.Errorf("the terminal is left in an odd state by %q", p)
	}
	return len(p), nil
}

func (f *fakeTerminal) control(sequence string) {
	switch {
	case sequence == "\x1b[?7l":
		f.wrap = false
	case sequence == "\x1b[?7h":
		f.wrap = true
	case sequence == "\x1b[J":
		f.lines[f.y] = f.lines[f.y][:f.x]
		f.lines, f.broken = f.lines[:f.y+1], f.broken[:f.y+1]
		f.broken[f.y] = false
	case strings.HasSuffix(sequence, "A"):
		var n int
		fmt.Sscanf(sequence, "\x1b[%dA", &n)
		f.y = max(f.y-n, len(f.lines)-f.rows, 0)
	case strings.HasSuffix(sequence, "m"):
	default:
		f.t.Errorf("the terminal got %q", sequence)
	}
}

func (f *fakeTerminal) put(c byte) {
	if f.x == f.columns {
		if !f.wrap {
			return
		}
		f.down(true)
	}
	f.lines[f.y] = f.lines[f.y][:f.x] + string(c)
	f.x++
}

func (f *fakeTerminal) down(broken bool) {
	f.broken[f.y] = broken
	f.y, f.x = f.y+1, 0
	if f.y == len(f.lines) {
		f.lines, f.broken = append(f.lines, ""), append(f.broken, false)
	}
}

// resize wraps and joins lines as most terminals do.
func (f *fakeTerminal) resize(columns, rows int) {
	var whole []string
	joined := ""
	for i, line := range f.lines {
		if joined += line; !f.broken[i] {
			whole, joined = append(whole, joined), ""
		}
	}
	f.columns, f.rows = columns, rows
	f.lines, f.broken = nil, nil
	for _, line := range whole {
		for len(line) > columns {
			f.lines, f.broken = append(f.lines, line[:columns]), append(f.broken, true)
			line = line[columns:]
		}
		f.lines, f.broken = append(f.lines, line), append(f.broken, false)
	}
	f.y, f.x = len(f.lines)-1, len(f.lines[len(f.lines)-1])
}

func (f *fakeTerminal) String() string { return strings.Join(f.lines, "\n") }

// fakeView returns a view on a fake terminal, of a job with these tasks.
func fakeView(t *testing.T, terminal *fakeTerminal, tasks ...string) *view {
	v := &view{
		live: &screen{w: terminal, size: func() (int, int) { return terminal.columns, terminal.rows }},
		wake: make(chan struct{}, 1),
		end:  make(chan struct{}),
	}
	v.out = output{w: terminal, mu: &v.mu, live: true, terminal: true, colour: true}
	v.err = v.out
	group := &api.TaskGroup{Name: new("g")}
	for _, name := range tasks {
		group.Tasks = append(group.Tasks, &api.Task{Name: name})
	}
	job := &api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{group}}
	v.show([]*api.Allocation{{ID: "a", JobID: "j", Name: "j.g[0]", TaskGroup: "g", Job: job}}, 1, func(string) string { return "" })
	v.showing.Go(v.run)
	return v
}

// happen reports events of a task, and returns when they are shown.
func (v *view) happen(task, state string, events ...*api.TaskEvent) {
	for i, e := range events {
		e.Time = int64(i + 1)
	}
	v.update("a", map[string]*api.TaskState{task: {State: state, Events: events}})
	v.showNews()
}

func TestViewOnATerminal(t *testing.T) {
	terminal := newFakeTerminal(t, 60, 24)
	v := fakeView(t, terminal, "build", "server")
	received := &api.TaskEvent{Type: api.TaskReceived, DisplayMessage: "Task received by client"}
	started := &api.TaskEvent{Type: api.TaskStarted, DisplayMessage: "Task started by client"}
	var transcript strings.Builder
	step := func(what string) {
		fmt.Fprintf(&transcript, "== %s\n%s\n", what, terminal)
	}

	v.happen("build", model.TaskPending, received)
	v.happen("server", model.TaskPending, received)
	step("received")
	v.happen("build", model.TaskRunning, received, started)
	v.lines(v.tasks[0], false, []byte("plain\nprogress 1%\rprogress 99%\r\n"))
	v.lines(v.tasks[0], true, []byte("\x1b[31mred\x1b[0m \x1b[2J\x1b[H\x1b]0;title\acleared, and no end"))
	step("output")
	terminal.resize(30, 24)
	v.refresh(false)
	step("narrow")
	terminal.resize(60, 24)
	v.refresh(false)
	step("wide again")
	fmt.Fprint(terminal, "^Z\n[1]+  Stopped\n$ fg\n")
	v.refresh(true)
	step("stopped, and in the foreground again")
	v.happen("build", model.TaskDead, received, started, &api.TaskEvent{Type: api.TaskFailedValidation, DisplayMessage: "2 errors:\n\t* one\n\t* two\n\n"})
	step("an event of several lines")
	terminal.resize(60, 3)
	v.refresh(false)
	step("low")
	v.note("the end")
	v.close()
	step("closed")

	const want = `== received
build  * Received: Task received by client
server * Received: Task received by client
 build   main       pending  Received: Task received by cli
 server  main       pending  Received: Task received by cli

== output
build  * Received: Task received by client
server * Received: Task received by client
build  * Started: Task started by client
build  | plain
build  | progress 1%
build  | progress 99%
build  | red cleared, and no end
 build   main       running  Started: Task started by clien
 server  main       pending  Received: Task received by cli

== narrow
build  * Received: Task receiv
ed by client
server * Received: Task receiv
ed by client
build  * Started: Task started
 by client
build  | plain
build  | progress 1%
build  | progress 99%
build  | red cleared, and no e
nd
 build   main       running  
 server  main       pending  

== wide again
build  * Received: Task received by client
server * Received: Task received by client
build  * Started: Task started by client
build  | plain
build  | progress 1%
build  | progress 99%
build  | red cleared, and no end
 build   main       running  Started: Task started by clien
 server  main       pending  Received: Task received by cli

== stopped, and in the foreground again
build  * Received: Task received by client
server * Received: Task received by client
build  * Started: Task started by client
build  | plain
build  | progress 1%
build  | progress 99%
build  | red cleared, and no end
 build   main       running  Started: Task started by clien
 server  main       pending  Received: Task received by cli
^Z
[1]+  Stopped
$ fg
 build   main       running  Started: Task started by clien
 server  main       pending  Received: Task received by cli

== an event of several lines
build  * Received: Task received by client
server * Received: Task received by client
build  * Started: Task started by client
build  | plain
build  | progress 1%
build  | progress 99%
build  | red cleared, and no end
 build   main       running  Started: Task started by clien
 server  main       pending  Received: Task received by cli
^Z
[1]+  Stopped
$ fg
build  * Failed Validation: 2 errors:
build  * 	* one
build  * 	* two
 build   main       dead     Failed Validation: 2 errors:
 server  main       pending  Received: Task received by cli

== low
build  * Received: Task received by client
server * Received: Task received by client
build  * Started: Task started by client
build  | plain
build  | progress 1%
build  | progress 99%
build  | red cleared, and no end
 build   main       running  Started: Task started by clien
 server  main       pending  Received: Task received by cli
^Z
[1]+  Stopped
$ fg
build  * Failed Validation: 2 errors:
build  * 	* one
build  * 	* two
 2 tasks:  1 pending  0 running  1 dead

== closed
build  * Received: Task received by client
server * Received: Task received by client
build  * Started: Task started by client
build  | plain
build  | progress 1%
build  | progress 99%
build  | red cleared, and no end
 build   main       running  Started: Task started by clien
 server  main       pending  Received: Task received by cli
^Z
[1]+  Stopped
$ fg
build  * Failed Validation: 2 errors:
build  * 	* one
build  * 	* two
the end

`
	if got := transcript.String(); got != want {
		t.Errorf("got:\n%s", got)
	}
}

// No line of output is lost or doubled when the size changes.
func TestViewKeepsAllLines(t *testing.T) {
	terminal := newFakeTerminal(t, 80, 24)
	v := fakeView(t, terminal, "a", "b", "c")
	var want []string
	for i := range 500 {
		line := fmt.Sprintf("line %d %s", i, strings.Repeat("x", i*7%90))
		v.lines(v.tasks[i%3], i%2 == 0, []byte(line+"\n"))
		want = append(want, v.tasks[i%3].label+" | "+line)
		if i%9 == 0 {
			terminal.resize(30+i*37%90, 10+i%30)
		}
		if i%4 == 0 {
			v.status(v.tasks[i%3], model.TaskRunning, strings.Repeat("y", i%100))
		}
	}
	v.close()
	terminal.resize(1000, 24)
	if got := strings.Split(strings.TrimRight(terminal.String(), "\n"), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s", terminal)
	}
}

// blockedWriter is a terminal whose output is blocked (Ctrl-S).
type blockedWriter struct{ release chan struct{} }

func (w blockedWriter) Write(p []byte) (int, error) {
	<-w.release
	return len(p), nil
}

func TestNewsDoNotWaitForTheTerminal(t *testing.T) {
	v := fakeView(t, newFakeTerminal(t, 80, 24), "a")
	blocked := blockedWriter{make(chan struct{})}
	v.live.w = blocked
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3 {
			v.note("note")
			fmt.Fprintln(v, "log")
			v.update("a", map[string]*api.TaskState{
				"a": {State: model.TaskRunning, Events: []*api.TaskEvent{{Type: api.TaskStarted}}},
			})
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("news wait for a terminal that holds its output")
	}
	close(blocked.release)
	started := v.tasks[0].started
	v.close()
	if !closed(started) {
		t.Error("an update was not shown")
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain\ttext\n":           "plain\ttext\n",
		"\x1b[1;31mred\x1b[m\n":   "\x1b[1;31mred\x1b[m\n",
		"\x1b[1;31mred\nnext":     "\x1b[1;31mred\x1b[0m\nnext",
		"a\x1b[2Jb\x1b[10;10Hc":   "abc",
		"\x1b]8;;http://x\x1b\\l": "l",
		"a\x1bcb\x1b":             "ab",
		"a\x1b[12\nb":             "a\nb",
		"a\bb\x00c\u009bd":        "abcd",
		"50%\r100%\r\n":           "50%\n100%\n",
		"\xff\xfe\n":              "\xff\xfe\n",
	} {
		if got := printable([]byte(text), true); string(got) != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := printable([]byte("\x1b[31mred\x1b[0m"), false); string(got) != "red" {
		t.Errorf("without colours: got %q", got)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputThatCannotBeWritten(t *testing.T) {
	var said bytes.Buffer
	v := newView(&streams{out: failingWriter{}, err: &said}, nil)
	task := &taskLine{label: "t"}
	v.lines(task, false, []byte("one\n"))
	v.lines(task, false, []byte("two\n"))
	v.close()
	if want := "output is lost: no space left on device\n"; said.String() != want {
		t.Errorf("got %q, want %q", said.String(), want)
	}
}
