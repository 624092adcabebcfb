package taskexec

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Request selects a command and the task in which the command runs.
type Request struct {
	Task    string
	Command []string
	Action  string // a task action's name; its command replaces Command; empty means Command
	TTY     bool
}

// RequestError rejects a request. Code is the HTTP status that describes the error.
type RequestError struct {
	Code int
	Text string
}

func (e *RequestError) Error() string { return e.Text }

// NewRequestError returns a RequestError with a formatted text.
func NewRequestError(code int, format string, args ...any) error {
	return &RequestError{code, fmt.Sprintf(format, args...)}
}

// Command is a session's command. RunInTask blocks until the command has exited, and kills it when ctx ends.
type Command struct {
	driver.Exec
	RunInTask func(ctx context.Context, exec driver.Exec) (*driver.ExitResult, error)
}

// Runner runs commands in one allocation's tasks. allocrunner.Runner implements it.
type Runner interface {
	ExecStreaming(ctx context.Context, task string, exec driver.Exec) (*driver.ExitResult, error)
}

// FindCommand returns a request's command in an allocation. runner is nil if the node does not run the allocation.
// FindCommand returns a RequestError if the request is not valid or the task cannot run commands. Also
// Command.RunInTask's error is a RequestError if the task no longer runs.
func (r Request) FindCommand(alloc *api.Allocation, runner Runner) (Command, error) {
	if r.Task == "" {
		return Command{}, NewRequestError(http.StatusBadRequest, "must provide task name")
	}
	task := model.FindTask(alloc, r.Task)
	command := r.Command
	if r.Action != "" && task != nil {
		if command = findActionCommand(task, r.Action); command == nil {
			return Command{}, NewRequestError(http.StatusBadRequest, "action %s not found in task %s", r.Action, r.Task)
		}
	}
	switch state := alloc.TaskStates[r.Task]; {
	case len(command) == 0 && (r.Action == "" || task != nil):
		return Command{}, NewRequestError(http.StatusBadRequest, "command is not present")
	case task == nil:
		return Command{}, NewRequestError(http.StatusBadRequest, "unknown task name %q", r.Task)
	case state == nil || state.StartedAt.IsZero():
		return Command{}, NewRequestError(http.StatusNotFound, "task %q not started yet.", r.Task)
	case runner == nil:
		return Command{}, notRunningError(r.Task)
	}
	return Command{driver.Exec{Command: command, TTY: r.TTY}, func(ctx context.Context, exec driver.Exec) (*driver.ExitResult, error) {
		exit, err := runner.ExecStreaming(ctx, r.Task, exec)
		if errors.Is(err, allocrunner.ErrNotRunning) {
			err = notRunningError(r.Task)
		}
		return exit, err
	}}, nil
}

func notRunningError(task string) error {
	return NewRequestError(http.StatusNotFound, "task %q is not running.", task)
}

// findActionCommand returns an action's command, or nil if the task does not have the action.
func findActionCommand(task *api.Task, name string) []string {
	for _, a := range task.Actions {
		if a.Name == name {
			return append([]string{a.Command}, a.Args...)
		}
	}
	return nil
}
