package builtinhooks

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
)

var (
	_ hook.TaskPrestart = (*TaskAPIHook)(nil)
	_ hook.TaskStop     = (*TaskAPIHook)(nil)
)

// TaskAPIHook makes the task's socket for the agent API. A task without a socket still runs.
type TaskAPIHook struct {
	hooks.BuiltinHookDefaults
	listener     *taskapi.TaskSocketListener
	socketAddr   taskapi.TaskAddr
	createSocket func() (fd int, err error)
	logger       hclog.Logger
}

// NewTaskAPIHook returns the hook for one task. createSocket makes the socket, in place of an earlier one, and returns
// its descriptor.
func NewTaskAPIHook(listener *taskapi.TaskSocketListener, socketAddr taskapi.TaskAddr, createSocket func() (fd int, err error), logger hclog.Logger) *TaskAPIHook {
	return &TaskAPIHook{listener: listener, socketAddr: socketAddr, createSocket: createSocket, logger: logger}
}

// Name implements Hook.
func (*TaskAPIHook) Name() string { return "api" }

// Prestart implements hook.TaskPrestart. Each agent calls it again for a running task, and replaces the previous agent's socket.
func (t *TaskAPIHook) Prestart(context.Context, hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	fd, err := t.createSocket()
	if err == nil {
		err = t.listener.AddOrReplaceSocket(t.socketAddr, fd)
	}
	if err != nil {
		t.logger.Warn("task cannot reach the API", "task", t.socketAddr.Task, "error", err)
	}
	return hook.TaskPrestartResponse{}, nil
}

// Stop implements hook.TaskStop.
func (t *TaskAPIHook) Stop(context.Context, hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	t.listener.RemoveSocket(t.socketAddr)
	return hook.TaskStopResponse{}, nil
}
