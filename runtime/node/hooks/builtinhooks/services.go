package builtinhooks

import (
	"context"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
)

var (
	_ hook.AllocPrerun         = (*GroupServicesHook)(nil)
	_ hook.AllocUpdate         = (*GroupServicesHook)(nil)
	_ hook.AllocPreTaskRestart = (*GroupServicesHook)(nil)
	_ hook.AllocPreKill        = (*GroupServicesHook)(nil)
	_ hook.AllocPostrun        = (*GroupServicesHook)(nil)

	_ hook.AllocUpdate   = (*ChecksHook)(nil)
	_ hook.AllocPreKill  = (*ChecksHook)(nil)
	_ hook.AllocPostrun  = (*ChecksHook)(nil)
	_ hook.AllocShutdown = (*ChecksHook)(nil)

	_ hook.TaskPrestart   = (*TaskServicesHook)(nil)
	_ hook.TaskPoststart  = (*TaskServicesHook)(nil)
	_ hook.TaskUpdate     = (*TaskServicesHook)(nil)
	_ hook.TaskPreKilling = (*TaskServicesHook)(nil)
	_ hook.TaskExited     = (*TaskServicesHook)(nil)
	_ hook.TaskStop       = (*TaskServicesHook)(nil)
)

// GroupServicesHook registers the group's services. After PreKill or PreTaskRestart has deregistered them, the runner waits for
// the group's shutdown_delay.
type GroupServicesHook struct {
	hooks.BuiltinHookDefaults
	serviceSet *services.AllocServices

	// mu is held while the services are registered, so no registration follows PreKill.
	mu            sync.Mutex
	preKillCalled bool
}

// NewGroupServicesHook returns the hook for one allocation.
func NewGroupServicesHook(set *services.AllocServices) *GroupServicesHook {
	return &GroupServicesHook{serviceSet: set}
}

// Name implements Hook.
func (*GroupServicesHook) Name() string { return "group_services" }

// Prerun implements hook.AllocPrerun: it starts the checks for all services in the allocation, which ChecksHook stops, and
// registers the group's services. An error fails the allocation.
func (g *GroupServicesHook) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	g.serviceSet.StartChecks() // before the registration: an instance without check results would count as passing
	return hook.AllocPrerunResponse{}, g.registerUnlessKilled()
}

func (g *GroupServicesHook) registerUnlessKilled() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.preKillCalled {
		return nil
	}
	return g.serviceSet.RegisterServicesOf(core.GroupWorkload, nil)
}

// UpdateAlloc implements hook.AllocUpdate.
func (g *GroupServicesHook) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, g.serviceSet.UpdateRegistrations(core.GroupWorkload)
}

// PreTaskRestart implements hook.AllocPreTaskRestart: it deregisters the services.
// RegisterAgain registers them again.
func (g *GroupServicesHook) PreTaskRestart(ctx context.Context, _ hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, g.serviceSet.DeregisterServicesOfWithRetry(ctx, core.GroupWorkload)
}

// RegisterAgain registers the services again after PreTaskRestart. The old processes
// must have exited.
func (g *GroupServicesHook) RegisterAgain() error { return g.registerUnlessKilled() }

// PreKill implements hook.AllocPreKill.
func (g *GroupServicesHook) PreKill(ctx context.Context, _ hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	g.mu.Lock()
	g.preKillCalled = true
	g.mu.Unlock()
	return hook.AllocPreKillResponse{}, g.serviceSet.DeregisterServicesOfWithRetry(ctx, core.GroupWorkload)
}

// Postrun implements hook.AllocPostrun. No task runs, so it removes all the allocation's registrations.
func (g *GroupServicesHook) Postrun(ctx context.Context, _ hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, g.serviceSet.DeregisterAllWithRetry(ctx)
}

// TaskServicesHook registers one task's services while it runs.
type TaskServicesHook struct {
	hooks.BuiltinHookDefaults
	serviceSet *services.AllocServices
	taskName   string
}

// NewTaskServicesHook returns the hook for one task.
func NewTaskServicesHook(set *services.AllocServices, task string) *TaskServicesHook {
	return &TaskServicesHook{serviceSet: set, taskName: task}
}

// Name implements Hook.
func (*TaskServicesHook) Name() string { return "task_services" }

// Prestart implements hook.TaskPrestart. If the task does not run, it removes registrations left by an agent killed together with
// the task.
func (t *TaskServicesHook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if !req.Running {
		once, cancel := context.WithCancel(ctx)
		cancel()
		// The start does not wait: a failed call is retried later.
		_ = t.serviceSet.DeregisterServicesOfWithRetry(once, t.taskName)
	}
	return hook.TaskPrestartResponse{}, nil
}

// Poststart implements hook.TaskPoststart.
func (t *TaskServicesHook) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, t.serviceSet.RegisterServicesOf(t.taskName, req.Network)
}

// Update implements hook.TaskUpdate.
func (t *TaskServicesHook) Update(context.Context, hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, t.serviceSet.UpdateRegistrations(t.taskName)
}

// PreKilling implements hook.TaskPreKilling.
func (t *TaskServicesHook) PreKilling(ctx context.Context, _ hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, t.serviceSet.DeregisterServicesOfWithRetry(ctx, t.taskName)
}

// Exited implements hook.TaskExited.
func (t *TaskServicesHook) Exited(ctx context.Context, _ hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, t.serviceSet.DeregisterServicesOfWithRetry(ctx, t.taskName)
}

// Stop implements hook.TaskStop.
func (t *TaskServicesHook) Stop(ctx context.Context, _ hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, t.serviceSet.DeregisterServicesOfWithRetry(ctx, t.taskName)
}

// ChecksHook updates and stops the checks started by GroupServicesHook.
type ChecksHook struct {
	hooks.BuiltinHookDefaults
	serviceSet *services.AllocServices
}

// NewChecksHook returns the hook for one allocation.
func NewChecksHook(set *services.AllocServices) *ChecksHook { return &ChecksHook{serviceSet: set} }

// Name implements Hook.
func (*ChecksHook) Name() string { return "checks_hook" }

// UpdateAlloc implements hook.AllocUpdate.
func (c *ChecksHook) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	c.serviceSet.UpdateChecks()
	return hook.AllocUpdateResponse{}, nil
}

// PreKill implements hook.AllocPreKill.
func (c *ChecksHook) PreKill(context.Context, hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	c.serviceSet.StopChecks(true)
	return hook.AllocPreKillResponse{}, nil
}

// Postrun implements hook.AllocPostrun, for an allocation killed during its Prerun.
func (c *ChecksHook) Postrun(context.Context, hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	c.serviceSet.StopChecks(true)
	return hook.AllocPostrunResponse{}, nil
}

// ShutdownAlloc implements hook.AllocShutdown. The results stay for the next agent.
func (c *ChecksHook) ShutdownAlloc(context.Context, hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	c.serviceSet.StopChecks(false)
	return hook.AllocShutdownResponse{}, nil
}
