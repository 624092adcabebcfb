package hooks

import (
	"context"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// filled is a call whose request is filled in before it is made.
func filled(grant *hook.Grant, alloc *hook.Alloc, f func(context.Context, Remote) error) func(context.Context, Remote, asked) error {
	return func(ctx context.Context, r Remote, a asked) error {
		*grant, alloc.JSON = a.Grant, a.whole
		return f(ctx, r)
	}
}

// Prerun implements hook.AllocPrerun.
func (p *Plugin) Prerun(ctx context.Context, req hook.AllocPrerunRequest) error {
	return p.call(ctx, hook.Prerun, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.Prerun(ctx, req)
	}))
}

// UpdateAlloc implements hook.AllocUpdate.
func (p *Plugin) UpdateAlloc(ctx context.Context, req hook.AllocUpdateRequest) error {
	return p.call(ctx, hook.UpdateAlloc, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.UpdateAlloc(ctx, req)
	}))
}

// PreTaskRestart implements hook.AllocPreTaskRestart.
func (p *Plugin) PreTaskRestart(ctx context.Context, req hook.AllocPreTaskRestartRequest) error {
	return p.call(ctx, hook.PreTaskRestart, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.PreTaskRestart(ctx, req)
	}))
}

// PreKill implements hook.AllocPreKill.
func (p *Plugin) PreKill(ctx context.Context, req hook.AllocPreKillRequest) error {
	return p.call(ctx, hook.PreKill, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.PreKill(ctx, req)
	}))
}

// Postrun implements hook.AllocPostrun. What fails is done later.
func (p *Plugin) Postrun(ctx context.Context, req hook.AllocPostrunRequest) error {
	return p.callOrOwe(ctx, Debt{Moment: hook.Postrun, Postrun: &req}, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.Postrun(ctx, req)
	}))
}

// Destroy implements hook.AllocDestroy. It is repeated for as long as one call may
// take: after it there is no record with which it could wait.
func (p *Plugin) Destroy(ctx context.Context, req hook.AllocDestroyRequest) error {
	for end := time.Now().Add(momentTimeout); ; {
		err := p.twice(ctx, hook.Destroy, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
			return r.Destroy(ctx, req)
		}))
		if err == nil || ctx.Err() != nil {
			return err
		}
		if time.Now().After(end) {
			return p.fail(hook.Destroy, err)
		}
		select {
		case <-time.After(debtPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ShutdownAlloc implements hook.AllocShutdown.
func (p *Plugin) ShutdownAlloc(ctx context.Context, req hook.AllocShutdownRequest) error {
	return p.call(ctx, hook.ShutdownAlloc, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.ShutdownAlloc(ctx, req)
	}))
}

// Prestart implements hook.TaskPrestart. A plugin whose failure does not count
// keeps the state that it has.
func (p *Plugin) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	answered := hook.TaskPrestartResponse{State: req.PreviousState}
	err := p.call(ctx, hook.Prestart, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		answer, err := r.Prestart(ctx, req)
		if fault := answer.Fault(); fault != nil {
			return fault
		}
		if err == nil || answer.State != nil {
			answered = answer
		}
		return err
	}))
	return answered, err
}

// Poststart implements hook.TaskPoststart.
func (p *Plugin) Poststart(ctx context.Context, req hook.TaskPoststartRequest) error {
	return p.call(ctx, hook.Poststart, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		if process, ok := r.(interface{ Done() <-chan struct{} }); ok && p.attachment.raw != nil {
			p.mu.Lock()
			p.gone = process.Done()
			p.mu.Unlock()
		}
		return r.Poststart(ctx, req)
	}))
}

// Gone is closed when the process has gone that was told of the latest start, of a
// hook in the box that works on while the task runs; nil if there is none.
func (p *Plugin) Gone() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// AwaitReturn waits until the plugin is there again.
func (p *Plugin) AwaitReturn(ctx context.Context) error {
	const first, longest = time.Second, time.Minute
	for pause := first; ; pause = min(2*pause, longest) {
		if _, _, err := p.plugins.config.Find(ctx, p.name, time.Time{}); err == nil || ctx.Err() != nil {
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
func (p *Plugin) Update(ctx context.Context, req hook.TaskUpdateRequest) error {
	return p.call(ctx, hook.Update, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.Update(ctx, req)
	}))
}

// PreKilling implements hook.TaskPreKilling.
func (p *Plugin) PreKilling(ctx context.Context, req hook.TaskPreKillingRequest) error {
	return p.call(ctx, hook.PreKilling, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.PreKilling(ctx, req)
	}))
}

// Exited implements hook.TaskExited.
func (p *Plugin) Exited(ctx context.Context, req hook.TaskExitedRequest) error {
	return p.call(ctx, hook.Exited, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.Exited(ctx, req)
	}))
}

// Stop implements hook.TaskStop. What fails is done later.
func (p *Plugin) Stop(ctx context.Context, req hook.TaskStopRequest) error {
	return p.callOrOwe(ctx, Debt{Moment: hook.Stop, Stop: &req}, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.Stop(ctx, req)
	}))
}

// Shutdown implements hook.TaskShutdown.
func (p *Plugin) Shutdown(ctx context.Context, req hook.TaskShutdownRequest) error {
	return p.call(ctx, hook.Shutdown, filled(&req.Grant, &req.Alloc, func(ctx context.Context, r Remote) error {
		return r.Shutdown(ctx, req)
	}))
}
