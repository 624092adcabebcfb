package taskexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
)

// fakeConn is a client that sends inputs, and then nothing until it is closed or disconnects.
type fakeConn struct {
	inputs   chan Input
	closed   chan struct{}
	sent     []string
	sendErr  error
	closeErr error
}

func newFakeConn(inputs ...Input) *fakeConn {
	c := &fakeConn{inputs: make(chan Input, len(inputs)), closed: make(chan struct{})}
	for _, in := range inputs {
		c.inputs <- in
	}
	return c
}

func (c *fakeConn) Receive() (Input, error) {
	select {
	case in, ok := <-c.inputs:
		if !ok {
			return Input{}, ErrClientGone
		}
		return in, nil
	case <-c.closed:
		return Input{}, ErrClientGone
	}
}

func (c *fakeConn) Send(text []byte) error {
	if c.sendErr != nil {
		return c.sendErr
	}
	c.sent = append(c.sent, string(text))
	return nil
}

func (c *fakeConn) Close(err error) {
	c.closeErr = err
	close(c.closed)
}

func TestRunSendsInputAndOutputInOrder(t *testing.T) {
	c := newFakeConn(Input{}, Input{TTYSize: driver.TerminalSize{Height: 1}}, Input{TTYSize: driver.TerminalSize{Height: 24, Width: 80}},
		Input{Stdin: []byte("hel")}, Input{Stdin: []byte("lo"), CloseStdin: true})
	var size driver.TerminalSize
	Run(t.Context(), c, Command{RunInTask: func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
		size = <-e.Resize
		text, err := io.ReadAll(e.Stdin)
		fmt.Fprintf(e.Stdout, "%s!", text)
		fmt.Fprint(e.Stderr, "bad")
		return &driver.ExitResult{ExitCode: 3}, err
	}})
	want := []string{`{"stdout":{"data":"aGVsbG8h"}}`, `{"stderr":{"data":"YmFk"}}`, `{"stdout":{"close":true}}`, `{"stderr":{"close":true}}`,
		`{"exited":true,"result":{"exit_code":3}}`}
	if !slices.Equal(c.sent, want) || c.closeErr != nil {
		t.Errorf("got %v, closed with %v; want %v", c.sent, c.closeErr, want)
	}
	if size != (driver.TerminalSize{Height: 24, Width: 80}) {
		t.Errorf("got terminal %+v", size)
	}
}

func TestOutputIsSentInMessagesOfLimitedSize(t *testing.T) {
	c := newFakeConn()
	Run(t.Context(), c, Command{Exec: driver.Exec{TTY: true}, RunInTask: func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
		_, err := e.Stdout.Write(make([]byte, 2*maxOutputBytes+1))
		return &driver.ExitResult{}, err
	}})
	if len(c.sent) != 5 || len(c.sent[2]) != len(`{"stdout":{"data":"AA=="}}`) || len(c.sent[0]) != len(c.sent[1]) || c.sent[4] != `{"exited":true,"result":{}}` {
		t.Errorf("got %d messages, want three with output", len(c.sent))
	}
}

func TestEndOfClientOrContextKillsCommand(t *testing.T) {
	stopping := errors.New("the agent is stopping")
	for _, test := range []struct {
		name string
		end  func(c *fakeConn, cancel context.CancelCauseFunc)
		want error
	}{
		{"client disconnects", func(c *fakeConn, _ context.CancelCauseFunc) { close(c.inputs) }, ErrClientGone},
		{"context ends", func(_ *fakeConn, cancel context.CancelCauseFunc) { cancel(stopping) }, stopping},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			c := newFakeConn()
			Run(ctx, c, Command{RunInTask: func(ctx context.Context, e driver.Exec) (*driver.ExitResult, error) {
				test.end(c, cancel)
				<-ctx.Done()
				return nil, fmt.Errorf("exec task: %w", ctx.Err())
			}})
			if !errors.Is(c.closeErr, test.want) || len(c.sent) != 0 {
				t.Errorf("closed with %v after %v, want %v", c.closeErr, c.sent, test.want)
			}
		})
	}
}

// A command that has ended must not leave the receiving goroutine blocked in a write to its input.
func TestRunReturnsWhileCommandHasNotReadItsInput(t *testing.T) {
	c := newFakeConn(Input{Stdin: []byte("unread")})
	Run(t.Context(), c, Command{RunInTask: func(context.Context, driver.Exec) (*driver.ExitResult, error) { return &driver.ExitResult{}, nil }})
	if c.closeErr != nil {
		t.Error(c.closeErr)
	}
}

func TestErrorOfCommandOrDriverClosesSession(t *testing.T) {
	failure := errors.New("no pty")
	for name, run := range map[string]func() (*driver.ExitResult, error){
		"driver":  func() (*driver.ExitResult, error) { return nil, failure },
		"command": func() (*driver.ExitResult, error) { return &driver.ExitResult{Err: failure}, nil },
	} {
		c := newFakeConn()
		Run(t.Context(), c, Command{RunInTask: func(context.Context, driver.Exec) (*driver.ExitResult, error) { return run() }})
		if !errors.Is(c.closeErr, failure) {
			t.Errorf("%s: closed with %v, want %v", name, c.closeErr, failure)
		}
	}
}

// runnerFunc is a Runner.
type runnerFunc func(task string, exec driver.Exec) error

func (f runnerFunc) ExecStreaming(_ context.Context, task string, exec driver.Exec) (*driver.ExitResult, error) {
	return &driver.ExitResult{}, f(task, exec)
}

func testAllocation() *api.Allocation {
	return &api.Allocation{
		TaskGroup: "g",
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{
			{Name: "web", Actions: []*api.Action{{Name: "greet", Command: "echo", Args: []string{"hello", "you"}}}}, {Name: "late"},
		}}}},
		TaskStates: map[string]*api.TaskState{"web": {StartedAt: time.Unix(1, 0)}, "late": {}},
	}
}

func TestFindCommandChecksInOrder(t *testing.T) {
	stopped := runnerFunc(func(string, driver.Exec) error { return allocrunner.ErrNotRunning })
	for _, test := range []struct {
		request Request
		runner  Runner
		want    string
	}{
		{Request{}, stopped, "400 must provide task name"},
		{Request{Task: "web", Action: "x"}, stopped, "400 action x not found in task web"},
		{Request{Task: "web"}, stopped, "400 command is not present"},
		{Request{Task: "no"}, stopped, "400 command is not present"},
		{Request{Task: "no", Action: "greet"}, stopped, `400 unknown task name "no"`},
		{Request{Task: "no", Command: []string{"ls"}}, stopped, `400 unknown task name "no"`},
		{Request{Task: "late", Command: []string{"ls"}}, nil, `404 task "late" not started yet.`},
		{Request{Task: "web", Command: []string{"ls"}}, nil, `404 task "web" is not running.`},
		{Request{Task: "web", Command: []string{"ls"}}, stopped, `404 task "web" is not running.`},
	} {
		command, err := test.request.FindCommand(testAllocation(), test.runner)
		if err == nil {
			_, err = command.RunInTask(t.Context(), command.Exec)
		}
		var rejected *RequestError
		if !errors.As(err, &rejected) || fmt.Sprint(rejected.Code, " ", rejected.Text) != test.want {
			t.Errorf("%+v: got %v, want %s", test.request, err, test.want)
		}
	}
}

func TestFindCommandReturnsCommandOrAction(t *testing.T) {
	for _, test := range []struct {
		request Request
		want    string
	}{
		{Request{Task: "web", Command: []string{"ls", "-l"}, TTY: true}, "web ls -l true"},
		{Request{Task: "web", Command: []string{"ls"}, Action: "greet"}, "web echo hello you false"},
	} {
		got := ""
		command, err := test.request.FindCommand(testAllocation(), runnerFunc(func(task string, exec driver.Exec) error {
			got = fmt.Sprint(task, " ", strings.Join(exec.Command, " "), " ", exec.TTY)
			return nil
		}))
		if err == nil {
			_, err = command.RunInTask(t.Context(), command.Exec)
		}
		if err != nil || got != test.want {
			t.Errorf("got %s, %v, want %s", got, err, test.want)
		}
	}
}
