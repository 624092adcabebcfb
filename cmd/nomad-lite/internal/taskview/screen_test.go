package taskview

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal/terminaltest"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// newTestView returns a view of a job with the given tasks, on a fake terminal.
func newTestView(t *testing.T, tty *terminaltest.FakeScrollingTerminal, tasks ...string) *View {
	v := &View{
		screen:         &terminal.LiveScreen{Output: tty, Size: func() (int, int) { return tty.Columns, tty.Rows }},
		updatesQueued:  make(chan struct{}, 1),
		closeRequested: make(chan struct{}),
	}
	v.out = outputStream{writer: tty, mu: &v.mu, drawsLiveLines: true, isTerminal: true, useColour: true}
	v.err = v.out
	group := &api.TaskGroup{Name: new("g")}
	for _, name := range tasks {
		group.Tasks = append(group.Tasks, &api.Task{Name: name})
	}
	job := &api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{group}}
	v.AddTasks([]*api.Allocation{{ID: "a", JobID: "j", Name: "j.g[0]", TaskGroup: "g", Job: job}}, JobPlacementInView{AllocCount: 1}, func(string) string { return "" })
	v.wg.Go(v.showUpdatesUntilClosed)
	return v
}

// updateTask queues an update with events of a task, and returns when the view has shown them.
func (v *View) updateTask(task, state string, events ...*api.TaskEvent) {
	for i, e := range events {
		e.Time = int64(i + 1)
	}
	v.QueueTaskStates("a", map[string]*api.TaskState{task: {State: state, Events: events}})
	v.ShowQueuedUpdates()
}

func TestViewOnATerminal(t *testing.T) {
	terminal := terminaltest.NewFakeScrollingTerminal(t, 60, 24)
	v := newTestView(t, terminal, "build", "server")
	received := &api.TaskEvent{Type: api.TaskReceived, DisplayMessage: "Task received by client"}
	started := &api.TaskEvent{Type: api.TaskStarted, DisplayMessage: "Task started by client"}
	var transcript strings.Builder
	step := func(what string) {
		fmt.Fprintf(&transcript, "== %s\n%s\n", what, terminal)
	}

	v.updateTask("build", model.TaskPending, received)
	v.updateTask("server", model.TaskPending, received)
	step("received")
	v.updateTask("build", model.TaskRunning, received, started)
	v.PrintTaskOutput(v.tasks[0], false, []byte("plain\nprogress 1%\rprogress 99%\r\n"))
	v.PrintTaskOutput(v.tasks[0], true, []byte("\x1b[31mred\x1b[0m \x1b[2J\x1b[H\x1b]0;title\acleared, and no end"))
	step("output")
	terminal.ResizeAndRewrap(30, 24)
	v.redrawLiveLines(false)
	step("narrow")
	terminal.ResizeAndRewrap(60, 24)
	v.redrawLiveLines(false)
	step("wide again")
	fmt.Fprint(terminal, "^Z\n[1]+  Stopped\n$ fg\n")
	v.redrawLiveLines(true)
	step("stopped, and in the foreground again")
	v.updateTask("build", model.TaskDead, received, started, &api.TaskEvent{Type: api.TaskFailedValidation, DisplayMessage: "2 errors:\n\t* one\n\t* two\n\n"})
	step("an event of several lines")
	terminal.ResizeAndRewrap(60, 3)
	v.redrawLiveLines(false)
	step("low")
	v.QueueMessage("the end")
	v.Close()
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

func TestViewShowsPorts(t *testing.T) {
	terminal := terminaltest.NewFakeScrollingTerminal(t, 70, 24)
	v := newTestView(t, terminal)
	group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{
		{Name: "init", Lifecycle: &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart}},
		{Name: "web"},
	}}
	v.AddTasks([]*api.Allocation{{
		ID: "a", TaskGroup: "g", Job: &api.Job{TaskGroups: []*api.TaskGroup{group}},
		AllocatedResources: &api.AllocatedResources{Shared: api.AllocatedSharedResources{Ports: []api.PortMapping{{Label: "http", HostIP: "127.0.0.1", Value: 8080}}}},
	}}, JobPlacementInView{AllocCount: 1}, func(string) string { return "" })
	v.updateTask("web", model.TaskRunning, &api.TaskEvent{Type: api.TaskStarted, DisplayMessage: "Task started by client"})
	const want = `web  * Started: Task started by client
 init  prestart   pending  
 web   main       running  http: 127.0.0.1:8080  Started: Task starte
`
	if got := terminal.String(); got != want {
		t.Errorf("got:\n%s", got)
	}
	v.Close()
}

// No line of output is lost or duplicated when the size of the terminal changes.
func TestViewKeepsAllLines(t *testing.T) {
	terminal := terminaltest.NewFakeScrollingTerminal(t, 80, 24)
	v := newTestView(t, terminal, "a", "b", "c")
	var want []string
	for i := range 500 {
		line := fmt.Sprintf("line %d %s", i, strings.Repeat("x", i*7%90))
		v.PrintTaskOutput(v.tasks[i%3], i%2 == 0, []byte(line+"\n"))
		want = append(want, v.tasks[i%3].Label+" | "+line)
		if i%9 == 0 {
			terminal.ResizeAndRewrap(30+i*37%90, 10+i%30)
		}
		if i%4 == 0 {
			v.setTaskStatusAndRedraw(v.tasks[i%3], model.TaskRunning, strings.Repeat("y", i%100))
		}
	}
	v.Close()
	terminal.ResizeAndRewrap(1000, 24)
	if got := strings.Split(strings.TrimRight(terminal.String(), "\n"), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s", terminal)
	}
}

// blockedWriter is a terminal whose output the user has stopped with Ctrl-S.
type blockedWriter struct{ release chan struct{} }

func (w blockedWriter) Write(p []byte) (int, error) {
	<-w.release
	return len(p), nil
}

func TestEventsDoNotWaitForTheTerminal(t *testing.T) {
	v := newTestView(t, terminaltest.NewFakeScrollingTerminal(t, 80, 24), "a")
	blocked := blockedWriter{make(chan struct{})}
	v.screen.Output = blocked
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3 {
			v.QueueMessage("note")
			fmt.Fprintln(v, "log")
			v.QueueTaskStates("a", map[string]*api.TaskState{
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
	task := v.tasks[0]
	v.Close()
	if !wait.IsClosed(task.FirstStarted) {
		t.Error("an update was not shown")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputThatCannotBeWritten(t *testing.T) {
	var stderrBuf bytes.Buffer
	v := New(&cli.Streams{Out: failingWriter{}, Err: &stderrBuf}, nil)
	task := &Task{Label: "t"}
	v.PrintTaskOutput(task, false, []byte("one\n"))
	v.PrintTaskOutput(task, false, []byte("two\n"))
	v.Close()
	if want := "output is lost: no space left on device\n"; stderrBuf.String() != want {
		t.Errorf("got %q, want %q", stderrBuf.String(), want)
	}
}
