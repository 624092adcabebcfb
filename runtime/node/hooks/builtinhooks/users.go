package builtinhooks

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/users"
)

var (
	_ hook.TaskPrestart = (*WorkloadUserHook)(nil)
	_ hook.TaskStop     = (*WorkloadUserHook)(nil)
)

// UserPool assigns user ids to tasks; [users.UIDPool] implements it.
type UserPool interface {
	Acquire(task users.Task, previousUID uint32) (uint32, error)
	Release(users.Task)
}

// WorkloadUserHook gives a task its own user id. It is for tasks that name no user, and has an effect only if the driver supports
// such users.
type WorkloadUserHook struct {
	hooks.BuiltinHookDefaults
	userPool           UserPool
	driverCapabilities func() driver.Capabilities
	setTaskUser        func(name string)
	revokeUserAccess   func(id uint32) error
	logger             hclog.Logger
}

// NewWorkloadUserHook returns the hook for one task. It calls setTaskUser with the task's user, which may be empty. It calls
// revokeUserAccess when the task no longer has the user, so the next task with the id cannot access its files.
func NewWorkloadUserHook(pool UserPool, driverCapabilities func() driver.Capabilities, setTaskUser func(name string), revokeUserAccess func(id uint32) error, logger hclog.Logger) *WorkloadUserHook {
	return &WorkloadUserHook{userPool: pool, driverCapabilities: driverCapabilities, setTaskUser: setTaskUser, revokeUserAccess: revokeUserAccess, logger: logger}
}

// Name implements Hook.
func (*WorkloadUserHook) Name() string { return hooks.WorkloadUserHookName }

// Prestart implements hook.TaskPrestart.
func (w *WorkloadUserHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if !w.driverCapabilities().DynamicWorkloadUsers {
		w.setTaskUser("")
		return hook.TaskPrestartResponse{}, nil
	}
	id, err := w.userPool.Acquire(users.Task{AllocID: req.Alloc.ID, Name: req.Task.Name}, hooks.StoredWorkloadUserID(req.PreviousState))
	if err != nil {
		return hook.TaskPrestartResponse{}, err
	}
	w.setTaskUser(hooks.WorkloadUserNameOrEmpty(id))
	return hook.TaskPrestartResponse{State: hooks.NewWorkloadUserState(id)}, nil
}

// Stop implements hook.TaskStop.
func (w *WorkloadUserHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	id := hooks.StoredWorkloadUserID(req.PreviousState)
	if id == 0 {
		return hook.TaskStopResponse{}, nil
	}
	if err := w.revokeUserAccess(id); err != nil {
		w.logger.Error("the next task with this user id can access files of an ended task", "task", req.Task.Name, "uid", id, "error", err)
	}
	w.userPool.Release(users.Task{AllocID: req.Alloc.ID, Name: req.Task.Name})
	return hook.TaskStopResponse{}, nil
}
