package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// prerun calls the Prerun hooks in order, up to the first error. live ends when
// the allocation is stopped or the agent shuts down.
func (r *Runner) prerun(live context.Context) error {
	var alloc *api.Allocation
	var env map[string]string // of alloc
	for _, h := range r.attached() {
		at, ok := h.(hook.AllocPrerun)
		if !ok {
			continue
		}
		if live.Err() != nil {
			return context.Cause(live)
		}
		if now := r.Alloc(); now != alloc {
			alloc, env = now, r.env().Vars()
		}
		point := failpoint.Enter(failpoint.Prerun)
		err := hooks.Call(live, r.logger, h, hook.Prerun, r.limits.PrerunDeadline, func(ctx context.Context) error {
			_, err := at.Prerun(ctx, hook.AllocPrerunRequest{Alloc: r.forHooks(), Env: env})
			return err
		})
		point.Leave()
		if err == nil {
			continue
		}
		if live.Err() == nil && r.tolerates(err) {
			r.emitToAll(model.EventHookFailed(h.Name(), err.Error()))
			continue
		}
		return fmt.Errorf("pre-run hook %q failed: %w", h.Name(), err)
	}
	return nil
}

// untilStop returns a context that is also canceled when the allocation is stopped or
// about to be stopped, so that hooks that hang do not delay the stop. The caller must
// call the returned function.
func (r *Runner) untilStop(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-r.stopping:
		case <-r.updates.last:
		case <-ctx.Done():
		}
		cancel()
	})
	return ctx, func() {
		cancel()
		waiting.Wait()
	}
}

// unavailable marks an error that says nothing about the allocation: the plugin that
// would decide is temporarily unavailable.
type unavailable interface{ Trouble() }

// tolerates reports whether tasks that an earlier agent started continue after the
// error of a prerun hook: they do not end because the hook's plugin is unavailable, or
// because the agent is out of file descriptors.
func (r *Runner) tolerates(err error) bool {
	var t unavailable
	if !r.started || !errors.As(err, &t) && !process.Exhausted(err) {
		return false
	}
	_, err = r.running("")
	return err == nil
}

func (r *Runner) updateHooks(ctx context.Context) {
	ctx, end := r.untilStop(ctx)
	defer end()
	each(ctx, r, hook.UpdateAlloc, func(ctx context.Context, h hook.AllocUpdate) error {
		_, err := h.UpdateAlloc(ctx, hook.AllocUpdateRequest{Alloc: r.forHooks(), Env: r.env().Vars()})
		return err
	})
}

func (r *Runner) preTaskRestart(ctx context.Context) {
	ctx, end := r.untilStop(ctx)
	defer end()
	each(ctx, r, hook.PreTaskRestart, func(ctx context.Context, h hook.AllocPreTaskRestart) error {
		_, err := h.PreTaskRestart(ctx, hook.AllocPreTaskRestartRequest{Alloc: r.forHooks()})
		return err
	})
}

func (r *Runner) preKill(ctx context.Context) {
	each(ctx, r, hook.PreKill, func(ctx context.Context, h hook.AllocPreKill) error {
		_, err := h.PreKill(ctx, hook.AllocPreKillRequest{Alloc: r.forHooks()})
		return err
	})
}

func (r *Runner) postrun(ctx context.Context) {
	each(ctx, r, hook.Postrun, func(ctx context.Context, h hook.AllocPostrun) error {
		_, err := h.Postrun(ctx, hook.AllocPostrunRequest{Alloc: r.forHooks()})
		return err
	})
}

func (r *Runner) shutdownHooks(ctx context.Context) {
	each(ctx, r, hook.ShutdownAlloc, func(ctx context.Context, h hook.AllocShutdown) error {
		_, err := h.ShutdownAlloc(ctx, hook.AllocShutdownRequest{Alloc: r.forHooks()})
		return err
	})
}

// Destroy removes what the allocation left on the node. It must not be called before
// Run has returned. It may be called again after an error.
func (r *Runner) Destroy(ctx context.Context) error {
	if r.attached() == nil {
		r.attachHooks() // the runner was created only for Destroy, so the hooks are not awaited
	}
	var errs []error
	for _, h := range r.attached() {
		if at, ok := h.(hook.AllocDestroy); ok {
			err := hooks.Call(ctx, r.logger, h, hook.Destroy, r.limits.HookDeadline, func(ctx context.Context) error {
				_, err := at.Destroy(ctx, hook.AllocDestroyRequest{Alloc: r.forHooks()})
				return err
			})
			if err != nil {
				errs = append(errs, fmt.Errorf("destroy alloc %s: hook %q: %w", r.id, h.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// each calls the hooks of a hook point one after the other. Errors are logged unless
// ctx is done.
func each[H any](ctx context.Context, r *Runner, point hook.Point, call func(context.Context, H) error) {
	for _, h := range r.attached() {
		at, ok := h.(H)
		if !ok {
			continue
		}
		err := hooks.Call(ctx, r.logger, h, point, r.limits.HookDeadline, func(ctx context.Context) error { return call(ctx, at) })
		if err != nil && ctx.Err() == nil {
			r.logger.Error("hook failed", "hook", h.Name(), "hook_point", point, "error", err)
		}
	}
}
