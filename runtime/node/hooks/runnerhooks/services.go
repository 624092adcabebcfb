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
func (g *GroupServices) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, g.registerUnlessKilled()
}

func (g *GroupServices) registerUnlessKilled() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.preKillCalled {
		return nil
	}
	return g.serviceSet.Register(services.GroupWorkload, nil)
}

// UpdateAlloc implements hook.AllocUpdate.
func (g *GroupServices) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, g.serviceSet.Update(services.GroupWorkload)
}

// PreTaskRestart implements hook.AllocPreTaskRestart: it deregisters the services.
// RegisterAgain registers them again.
func (g *GroupServices) PreTaskRestart(ctx context.Context, _ hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, g.serviceSet.Deregister(ctx, services.GroupWorkload)
}

// RegisterAgain registers the services again after PreTaskRestart. The old processes
// must have exited.
func (g *GroupServices) RegisterAgain() error { return g.registerUnlessKilled() }

// PreKill implements hook.AllocPreKill.
func (g *GroupServices) PreKill(ctx context.Context, _ hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	g.mu.Lock()
	g.preKillCalled = true
	g.mu.Unlock()
	return hook.AllocPreKillResponse{}, g.serviceSet.Deregister(ctx, services.GroupWorkload)
}

// Postrun implements hook.AllocPostrun. No task runs, so it removes every registration
// of the allocation.
func (g *GroupServices) Postrun(ctx context.Context, _ hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, g.serviceSet.DeregisterAll(ctx)
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
func (t *TaskServices) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if !req.Running {
		once, cancel := context.WithCancel(ctx)
		cancel()
		// A failed call is retried after the start, so that the start does not wait for it.
		_ = t.serviceSet.Deregister(once, t.taskName)
	}
	return hook.TaskPrestartResponse{}, nil
}

// Poststart implements hook.TaskPoststart.
func (t *TaskServices) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, t.serviceSet.Register(t.taskName, req.Network)
}

// Update implements hook.TaskUpdate.
func (t *TaskServices) Update(context.Context, hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, t.serviceSet.Update(t.taskName)
}

// PreKilling implements hook.TaskPreKilling.
func (t *TaskServices) PreKilling(ctx context.Context, _ hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, t.serviceSet.Deregister(ctx, t.taskName)
}

// Exited implements hook.TaskExited.
func (t *TaskServices) Exited(ctx context.Context, _ hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, t.serviceSet.Deregister(ctx, t.taskName)
}

// Stop implements hook.TaskStop.
func (t *TaskServices) Stop(ctx context.Context, _ hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, t.serviceSet.Deregister(ctx, t.taskName)
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
func (c *Checks) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	c.serviceSet.StartChecks()
	return hook.AllocPrerunResponse{}, nil
}

// UpdateAlloc implements hook.AllocUpdate.
func (c *Checks) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	c.serviceSet.UpdateChecks()
	return hook.AllocUpdateResponse{}, nil
}

// PreKill implements hook.AllocPreKill.
func (c *Checks) PreKill(context.Context, hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	c.serviceSet.StopChecks(true)
	return hook.AllocPreKillResponse{}, nil
}

// Postrun implements hook.AllocPostrun, for an allocation that was killed during its
// Prerun.
func (c *Checks) Postrun(context.Context, hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	c.serviceSet.StopChecks(true)
	return hook.AllocPostrunResponse{}, nil
}

// ShutdownAlloc implements hook.AllocShutdown. The results stay for the next agent.
func (c *Checks) ShutdownAlloc(context.Context, hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	c.serviceSet.StopChecks(false)
	return hook.AllocShutdownResponse{}, nil
}
