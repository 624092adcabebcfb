package pluginhooks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// bindRequest returns a hook point's call. meta and alloc point into request and are filled in before the call. meta is cleared
// after each call: a pending cleanup's request is stored on disk, but its capability token must not be.
func bindRequest[Q, R any](method func(RemoteHook, context.Context, Q) (R, error), request *Q, meta *hook.RequestMeta, alloc *hook.Alloc) callPluginFunc {
	return func(ctx context.Context, r RemoteHook, m commonRequestFields) error {
		*meta = m.RequestMeta
		defer func() { *meta = hook.RequestMeta{} }()
		if m.allocJSON != nil { // allocJSON is nil for a pending cleanup: its stored request has the JSON
			alloc.JSON = m.allocJSON
		}
		_, err := method(r, ctx, *request)
		return err
	}
}

// Prerun implements hook.AllocPrerun.
func (h *Hook) Prerun(ctx context.Context, req hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, h.callHookPoint(ctx, hook.Prerun, bindRequest(RemoteHook.Prerun, &req, &req.RequestMeta, &req.Alloc))
}

// UpdateAlloc implements hook.AllocUpdate.
func (h *Hook) UpdateAlloc(ctx context.Context, req hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, h.callHookPoint(ctx, hook.UpdateAlloc, bindRequest(RemoteHook.UpdateAlloc, &req, &req.RequestMeta, &req.Alloc))
}

// PreTaskRestart implements hook.AllocPreTaskRestart.
func (h *Hook) PreTaskRestart(ctx context.Context, req hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, h.callHookPoint(ctx, hook.PreTaskRestart, bindRequest(RemoteHook.PreTaskRestart, &req, &req.RequestMeta, &req.Alloc))
}

// PreKill implements hook.AllocPreKill.
func (h *Hook) PreKill(ctx context.Context, req hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	return hook.AllocPreKillResponse{}, h.callHookPoint(ctx, hook.PreKill, bindRequest(RemoteHook.PreKill, &req, &req.RequestMeta, &req.Alloc))
}

// Postrun implements hook.AllocPostrun. A failed call becomes a pending cleanup.
func (h *Hook) Postrun(ctx context.Context, req hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, h.callCleanupHookPoint(ctx, state.PendingCleanup{Point: hook.Postrun, Postrun: &req})
}

// Destroy implements hook.AllocDestroy. A failed call becomes a pending cleanup. So does a call while the hook has another
// pending cleanup for the allocation, because Destroy is the last call.
func (h *Hook) Destroy(ctx context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	d := state.PendingCleanup{Point: hook.Destroy, Destroy: &req, RetryUntil: time.Now().Add(CleanupTimeout)}
	if later, err := h.postponeDestroyIfCleanupPending(d); later {
		return hook.AllocDestroyResponse{}, h.applyOnErrorRule(ctx, d.Point, err)
	}
	return hook.AllocDestroyResponse{}, h.callCleanupHookPoint(ctx, d)
}

// ShutdownAlloc implements hook.AllocShutdown.
func (h *Hook) ShutdownAlloc(ctx context.Context, req hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	return hook.AllocShutdownResponse{}, h.callHookPoint(ctx, hook.ShutdownAlloc, bindRequest(RemoteHook.ShutdownAlloc, &req, &req.RequestMeta, &req.Alloc))
}

// Prestart implements hook.TaskPrestart. If a plugin failure is tolerated, the previous state is kept.
func (h *Hook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	response := hook.TaskPrestartResponse{State: req.PreviousState}
	prestart := func(r RemoteHook, ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
		got, err := r.Prestart(ctx, req)
		if fault := got.Validate(); fault != nil {
			return got, fault
		}
		for _, m := range got.Mounts {
			if m.PropagationMode == api.VolumeMountPropagationBidirectional {
				// Only the operator can allow it, for a host volume.
				return got, fmt.Errorf("the mount of %s at %s has the propagation mode bidirectional: use private or host-to-task, and a host volume with allow_bidirectional for the rest", m.HostPath, m.TaskPath)
			}
		}
		if err == nil || got.State != nil {
			response = got
		}
		return got, err
	}
	err := h.callHookPoint(ctx, hook.Prestart, bindRequest(prestart, &req, &req.RequestMeta, &req.Alloc))
	return response, err
}

// Poststart implements hook.TaskPoststart.
func (h *Hook) Poststart(ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	var processExited <-chan struct{} // closed when the last called plugin process has exited
	poststart := func(r RemoteHook, ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
		if processExited != nil {
			req.Repeated = true // the previous process may have done the work
		}
		processExited = r.Done()
		return r.Poststart(ctx, req)
	}
	err := h.callWithRetries(ctx, hook.Poststart, bindRequest(poststart, &req, &req.RequestMeta, &req.Alloc))
	switch {
	case errors.Is(err, hook.ErrPluginDown) && processExited != nil && ctx.Err() == nil:
		processExited = nil // the repeated call ended the second process too, and would end the next one
	case processExited == nil && errors.As(err, new(*hooks.PluginUnavailableError)) && !errors.Is(err, supervisor.ErrNoHook):
		processExited = closedChannel // no process was up
	}
	h.mu.Lock()
	h.pluginExited = processExited
	h.mu.Unlock()
	return hook.TaskPoststartResponse{}, h.applyOnErrorRule(ctx, hook.Poststart, err)
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// PoststartPluginExited implements hooks.Hook. The channel is nil if the plugin takes no part in
// Poststart, or if the call ended its process twice.
func (h *Hook) PoststartPluginExited() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pluginExited
}

// WaitPluginUp implements hooks.Hook.
func (h *Hook) WaitPluginUp(ctx context.Context) error {
	const minPause, maxPause = time.Second, time.Minute
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		if _, _, err := h.hookSet.config.FindOrLaunchHook(ctx, h.name, time.Time{}); err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Update implements hook.TaskUpdate.
func (h *Hook) Update(ctx context.Context, req hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, h.callHookPoint(ctx, hook.Update, bindRequest(RemoteHook.Update, &req, &req.RequestMeta, &req.Alloc))
}

// PreKilling implements hook.TaskPreKilling.
func (h *Hook) PreKilling(ctx context.Context, req hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, h.callHookPoint(ctx, hook.PreKilling, bindRequest(RemoteHook.PreKilling, &req, &req.RequestMeta, &req.Alloc))
}

// Exited implements hook.TaskExited.
func (h *Hook) Exited(ctx context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, h.callHookPoint(ctx, hook.Exited, bindRequest(RemoteHook.Exited, &req, &req.RequestMeta, &req.Alloc))
}

// Stop implements hook.TaskStop. A failed call becomes a pending cleanup.
func (h *Hook) Stop(ctx context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, h.callCleanupHookPoint(ctx, state.PendingCleanup{Point: hook.Stop, Stop: &req})
}

// Shutdown implements hook.TaskShutdown.
func (h *Hook) Shutdown(ctx context.Context, req hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	return hook.TaskShutdownResponse{}, h.callHookPoint(ctx, hook.Shutdown, bindRequest(RemoteHook.Shutdown, &req, &req.RequestMeta, &req.Alloc))
}
