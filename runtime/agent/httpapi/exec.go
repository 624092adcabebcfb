package httpapi

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// execHandler serves the sessions in which a client runs a command in a task.
type execHandler struct {
	store        *store.Store
	node         Node
	access       *accessPolicy
	execSessions *execSessionGroup
}

// execCommand is the command of a session. runInTask blocks until the command has exited, and kills it
// when ctx ends.
type execCommand struct {
	driver.Exec
	runInTask func(ctx context.Context, exec driver.Exec) (*driver.ExitResult, error)
}

func (h *execHandler) execTask(r *request) (any, error) {
	return h.serveExecSession(r, func() (execCommand, error) {
		var command []string
		if err := json.Unmarshal([]byte(r.query.Get("command")), &command); err != nil || len(command) == 0 {
			return execCommand{}, newExecRequestError("command is not present")
		}
		alloc := h.store.Snapshot().Allocation(nil, r.pathID)
		if alloc == nil {
			return execCommand{}, newExecRequestError("Unknown allocation %q", r.pathID)
		}
		return h.newExecCommand(r, alloc, command)
	})
}

// runJobAction runs an action of the job.
func (h *execHandler) runJobAction(r *request) (any, error) {
	return h.serveExecSession(r, func() (execCommand, error) {
		s, allocID := h.store.Snapshot(), r.query.Get("allocID")
		if s.Job(nil, r.namespace, r.pathID) == nil {
			return execCommand{}, newExecRequestError("Unknown job %q", r.pathID)
		}
		alloc := s.Allocation(nil, allocID)
		if alloc == nil || alloc.JobID != r.pathID || alloc.Namespace != r.namespace {
			return execCommand{}, newExecRequestError("job %s does not have allocation %s", r.pathID, allocID)
		}
		name, action := r.query.Get("task"), r.query.Get("action")
		task := findTask(alloc, name)
		if task == nil {
			return execCommand{}, newExecRequestError("unknown task name %q", name)
		}
		for _, known := range task.Actions {
			if known.Name == action {
				return h.newExecCommand(r, alloc, append([]string{known.Command}, known.Args...))
			}
		}
		return execCommand{}, newExecRequestError("action %s not found in task %s", action, name)
	})
}

// newExecCommand returns the command of a session in a task. It returns an error if the task cannot run
// commands.
func (h *execHandler) newExecCommand(r *request, alloc *api.Allocation, command []string) (execCommand, error) {
	tty, err := r.boolParam("tty")
	task := r.query.Get("task")
	switch state := alloc.TaskStates[task]; {
	case err != nil:
		return execCommand{}, newExecRequestError("%v", err)
	case findTask(alloc, task) == nil:
		return execCommand{}, newExecRequestError("unknown task name %q", task)
	case state == nil || state.StartedAt.IsZero():
		return execCommand{}, newExecRequestError("task %q not started yet.", task)
	}
	runner := h.node.Alloc(alloc.ID)
	if runner == nil {
		return execCommand{}, taskNotRunningError(task)
	}
	return execCommand{driver.Exec{Command: command, TTY: tty}, func(ctx context.Context, exec driver.Exec) (*driver.ExitResult, error) {
		exit, err := runner.ExecStreaming(ctx, task, exec)
		if errors.Is(err, allocrunner.ErrNotRunning) {
			err = taskNotRunningError(task)
		}
		return exit, err
	}}, nil
}

func taskNotRunningError(task string) error {
	return newExecRequestError("task %q is not running.", task)
}
