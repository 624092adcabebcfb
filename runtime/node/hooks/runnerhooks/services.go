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
	set *services.Set

	// mu is held while the services are registered, so that no registration follows
	// PreKill.
	mu            sync.Mutex
	preKillCalled bool
}

// NewGroupServices returns the hook for one allocation.
func NewGroupServices(set *services.Set) *GroupServices { return &GroupServices{set: set} }

// Name implements hook.Hook.
func (*GroupServices) Name() string { return "group_services" }

// Prerun implements hook.AllocPrerun. An error fails the allocation.
func (h *GroupServices) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, h.register()
}

func (h *GroupServices) register() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.preKillCalled {
		return nil
	}
	return h.set.Register(services.GroupWorkload, nil)
}

// UpdateAlloc implements hook.AllocUpdate.
func (h *GroupServices) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, h.set.Update(services.GroupWorkload)
}

// PreTaskRestart implements hook.AllocPreTaskRestart: it deregisters the services.
// RegisterAgain registers them again.
func (h *GroupServices) PreTaskRestart(ctx context.Context, _ hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, h.set.Deregister(ctx, services.GroupWorkload)
}

// RegisterAgain registers the services again after PreTaskRestart. The old processes
// must have exited.
func (h *GroupServices) RegisterAgain() error { return h.register() }

// PreKill implements hook.AllocPreKill.
func (h *GroupServices) PreKill(ctx context.Context, _ hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	h.mu.Lock()
	h.preKillCalled = true
	h.mu.Unlock()
	return hook.AllocPreKillResponse{}, h.set.Deregister(ctx, services.GroupWorkload)
}

// Postrun implements hook.AllocPostrun. No task runs, so it removes every registration
// of the allocation.
func (h *GroupServices) Postrun(ctx context.Context, _ hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, h.set.DeregisterAll(ctx)
}

// TaskServices registers the services of one task while it runs.
type TaskServices struct {
	BuiltinHook
	set  *services.Set
	task string
}

// NewTaskServices returns the hook for one task.
func NewTaskServices(set *services.Set, task string) *TaskServices {
	return &TaskServices{set: set, task: task}
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
		_ = h.set.Deregister(once, h.task)
	}
	return hook.TaskPrestartResponse{}, nil
}

// Poststart implements hook.TaskPoststart.
func (h *TaskServices) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, h.set.Register(h.task, req.Network)
}

// Update implements hook.TaskUpdate.
func (h *TaskServices) Update(context.Context, hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, h.set.Update(h.task)
}

// PreKilling implements hook.TaskPreKilling.
func (h *TaskServices) PreKilling(ctx context.Context, _ hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, h.set.Deregister(ctx, h.task)
}

// Exited implements hook.TaskExited.
func (h *TaskServices) Exited(ctx context.Context, _ hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, h.set.Deregister(ctx, h.task)
}

// Stop implements hook.TaskStop.
func (h *TaskServices) Stop(ctx context.Context, _ hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, h.set.Deregister(ctx, h.task)
}

// Checks runs the checks of all services of the allocation.
type Checks struct {
	BuiltinHook
	set *services.Set
}

// NewChecks returns the hook for one allocation.
func NewChecks(set *services.Set) *Checks { return &Checks{set: set} }

// Name implements hook.Hook.
func (*Checks) Name() string { return "checks_hook" }

// Prerun implements hook.AllocPrerun.
func (h *Checks) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	h.set.StartChecks()
	return hook.AllocPrerunResponse{}, nil
}

// UpdateAlloc implements hook.AllocUpdate.
func (h *Checks) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	h.set.UpdateChecks()
	return hook.AllocUpdateResponse{}, nil
}

// PreKill implements hook.AllocPreKill.
func (h *Checks) PreKill(context.Context, hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	h.set.StopChecks(true)
	return hook.AllocPreKillResponse{}, nil
}

// Postrun implements hook.AllocPostrun, for an allocation that was killed during its
// Prerun.
func (h *Checks) Postrun(context.Context, hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	h.set.StopChecks(true)
	return hook.AllocPostrunResponse{}, nil
}

// ShutdownAlloc implements hook.AllocShutdown. The results stay for the next agent.
func (h *Checks) ShutdownAlloc(context.Context, hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	h.set.StopChecks(false)
	return hook.AllocShutdownResponse{}, nil
}
