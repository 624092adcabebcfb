package httpapi

import (
	"encoding/json"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// execPattern is the route that runs a command in a task.
const execPattern = "/v1/client/allocation/{id}/exec"

// jobActionPattern is the route that runs an action of a job in a task.
const jobActionPattern = "/v1/job/{id...}/action"

// isExecPattern reports whether a route runs commands in a session.
func isExecPattern(pattern string) bool {
	return pattern == execPattern || pattern == jobActionPattern
}

// execHandler serves the sessions in which a client runs a command in a task.
type execHandler struct {
	store        *store.Store
	allocs       Allocs
	access       *accessPolicy
	disabled     bool // every command and action is rejected
	execSessions *execSessionGroup
}

// execTask runs a command in a task.
func (h *execHandler) execTask(r *request) (any, error) {
	return h.serveExecSession(r, func() (taskexec.Command, error) {
		var command []string
		if err := json.Unmarshal([]byte(r.query.Get("command")), &command); err != nil || len(command) == 0 {
			return taskexec.Command{}, newExecRequestError("command is not present")
		}
		s, err := r.snapshot(h.store, nil)
		if err != nil {
			return taskexec.Command{}, err
		}
		alloc := s.Allocation(nil, r.pathID)
		if alloc == nil {
			return taskexec.Command{}, newExecRequestError("Unknown allocation %q", r.pathID)
		}
		return h.findCommand(r, alloc, taskexec.Request{Command: command})
	})
}

// runJobAction runs an action of the job.
func (h *execHandler) runJobAction(r *request) (any, error) {
	return h.serveExecSession(r, func() (taskexec.Command, error) {
		allocID := r.query.Get("allocID")
		s, err := r.snapshot(h.store, nil)
		if err != nil {
			return taskexec.Command{}, err
		}
		if s.Job(nil, r.namespace, r.pathID) == nil {
			return taskexec.Command{}, newExecRequestError("Unknown job %q", r.pathID)
		}
		alloc := s.Allocation(nil, allocID)
		if alloc == nil || alloc.JobID != r.pathID || alloc.Namespace != r.namespace {
			return taskexec.Command{}, newExecRequestError("job %s does not have allocation %s", r.pathID, allocID)
		}
		return h.findCommand(r, alloc, taskexec.Request{Action: r.query.Get("action")})
	})
}

// findCommand returns the command of a session in the task of the request. It rejects each if commands are disabled.
func (h *execHandler) findCommand(r *request, alloc *api.Allocation, ask taskexec.Request) (_ taskexec.Command, err error) {
	if h.disabled {
		return taskexec.Command{}, newExecRequestError("%v", errPermissionDenied)
	}
	if ask.TTY, err = r.boolParam("tty"); err != nil {
		return taskexec.Command{}, newExecRequestError("%v", err)
	}
	ask.Task = r.query.Get("task")
	var runner taskexec.Runner
	if found := h.allocs.AllocRunner(alloc.ID); found != nil {
		runner = found
		if found.FSIsolation(ask.Task) == driver.FSIsolationNone {
			if err := r.require(alloc.Namespace, acl.AllocNodeExec); err != nil {
				return taskexec.Command{}, err
			}
		}
	}
	return ask.FindCommand(alloc, runner)
}
