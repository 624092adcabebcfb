package runnerhooks

import (
	"context"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
)

var (
	_ hook.AllocPrerun         = (*GroupServices)(nil)
	_ hook.AllocUpdate         = (*GroupServices)(nil)
	_ hook.AllocPreTaskRestart = (*GroupServices)(nil)
	_ hook.AllocPreKill        = (*GroupServices)(nil)
	_ hook.AllocPostrun        = (*GroupServices)(nil)

	_ hook.AllocPrerun   = (*Checks)(nil)
	_ hook.AllocUpdate   = (*Checks)(nil)
	_ hook.AllocPreKill  = (*Checks)(nil)
	_ hook.AllocPostrun  = (*Checks)(nil)
	_ hook.AllocShutdown = (*Checks)(nil)

	_ hook.TaskPrestart   = (*TaskServices)(nil)
	_ hook.TaskPoststart  = (*TaskServices)(nil)
	_ hook.TaskUpdate     = (*TaskServices)(nil)
	_ hook.TaskPreKilling = (*TaskServices)(nil)
	_ hook.TaskExited     = (*TaskServices)(nil)
	_ hook.TaskStop       = (*TaskServices)(nil)
)

// GroupServices registers the services of the group. After PreKill and PreTaskRestart
// have deregistered them, the runner waits for the shutdown_delay of the group.
type GroupServices struct {
	BuiltinHook
	serviceSet *services.Set

	// mu is held while the services are registered, so that no registration follows
	// PreKill.
	mu            sync.Mutex
	preKillCalled bool
}

// NewGroupServices returns the hook for one allocation.
func NewGroupServices(set *services.Set) *GroupServices { return &GroupServices{serviceSet: set} }

// Name implements hook.Hook.
func (*GroupServices) Name() string { return "group_services" }

// Prerun implements hook.AllocPrerun. An error fails the allocation.
func (h *GroupServices) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, h.registerUnlessKilled()
}

func (h *GroupServices) registerUnlessKilled() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.preKillCalled {
		return nil
	}
	return h.serviceSet.Register(services.GroupWorkload, nil)
}

// UpdateAlloc implements hook.AllocUpdate.
func (h *GroupServices) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, h.serviceSet.Update(services.GroupWorkload)
}

// PreTaskRestart implements hook.AllocPreTaskRestart: it deregisters the services.
// RegisterAgain registers them again.
func (h *GroupServices) PreTaskRestart(ctx context.Context, _ hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, h.serviceSet.Deregister(ctx, services.GroupWorkload)
}

// RegisterAgain registers the services again after PreTaskRestart. The old processes
// must have exited.
func (h *GroupServices) RegisterAgain() error { return h.registerUnlessKilled() }

// PreKill implements hook.AllocPreKill.
func (h *GroupServices) PreKill(ctx context.Context, _ hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	h.mu.Lock()
	h.preKillCalled = true
	h.mu.Unlock()
	return hook.AllocPreKillResponse{}, h.serviceSet.Deregister(ctx, services.GroupWorkload)
}

// Postrun implements hook.AllocPostrun. No task runs, so it removes every registration
// of the allocation.
func (h *GroupServices) Postrun(ctx context.Context, _ hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, h.serviceSet.DeregisterAll(ctx)
}

// TaskServices registers the services of one task while it runs.
type TaskServices struct {
	BuiltinHook
	serviceSet *services.Set
	taskName   string
}

// NewTaskServices returns the hook for one task.
func NewTaskServices(set *services.Set, task string) *TaskServices {
	return &TaskServices{serviceSet: set, taskName: task}
}

// Name implements hook.Hook.
func (*TaskServices) Name() string { return "task_services" }

// Prestart implements hook.TaskPrestart. If the task does not run, it removes
// registrations that an agent left which was killed together with the task.
func (h *TaskServices) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if !req.Running {
		once, cancel := context.WithCancel(ctx)
		cancel()
		// A failed call is retried after the start, so that the start does not wait for it.
		_ = h.serviceSet.Deregister(once, h.taskName)
	}
	return hook.TaskPrestartResponse{}, nil
}

// Poststart implements hook.TaskPoststart.
func (h *TaskServices) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, h.serviceSet.Register(h.taskName, req.Network)
}

// Update implements hook.TaskUpdate.
func (h *TaskServices) Update(context.Context, hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, h.serviceSet.Update(h.taskName)
}

// PreKilling implements hook.TaskPreKilling.
func (h *TaskServices) PreKilling(ctx context.Context, _ hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, h.serviceSet.Deregister(ctx, h.taskName)
}

// Exited implements hook.TaskExited.
func (h *TaskServices) Exited(ctx context.Context, _ hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, h.serviceSet.Deregister(ctx, h.taskName)
}

// Stop implements hook.TaskStop.
func (h *TaskServices) Stop(ctx context.Context, _ hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, h.serviceSet.Deregister(ctx, h.taskName)
}

// Checks runs the checks of all services of the allocation.
type Checks struct {
	BuiltinHook
	serviceSet *services.Set
}

// NewChecks returns the hook for one allocation.
func NewChecks(set *services.Set) *Checks { return &Checks{serviceSet: set} }

// Name implements hook.Hook.
func (*Checks) Name() string { return "checks_hook" }

// Prerun implements hook.AllocPrerun.
func (h *Checks) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	h.serviceSet.StartChecks()
	return hook.AllocPrerunResponse{}, nil
}

// UpdateAlloc implements hook.AllocUpdate.
func (h *Checks) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	h.serviceSet.UpdateChecks()
	return hook.AllocUpdateResponse{}, nil
}

// PreKill implements hook.AllocPreKill.
func (h *Checks) PreKill(context.Context, hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	h.serviceSet.StopChecks(true)
	return hook.AllocPreKillResponse{}, nil
}

// Postrun implements hook.AllocPostrun, for an allocation that was killed during its
// Prerun.
func (h *Checks) Postrun(context.Context, hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	h.serviceSet.StopChecks(true)
	return hook.AllocPostrunResponse{}, nil
}

// ShutdownAlloc implements hook.AllocShutdown. The results stay for the next agent.
func (h *Checks) ShutdownAlloc(context.Context, hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	h.serviceSet.StopChecks(false)
	return hook.AllocShutdownResponse{}, nil
}
