package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// allocHooks calls the hooks of an allocation.
type allocHooks struct {
	alloc   func() *api.Allocation // alloc returns the current version of the allocation
	envs    *environments
	tasks   taskSet
	stopped <-chan struct{} // closed when the stop of the allocation is requested
	ending  <-chan struct{} // closed when a version of the allocation that stops it is about to be applied
	limits  Limits
	logger  hclog.Logger

	mu      sync.Mutex
	list    []hook.Hook     // nil until attached
	plugins map[string]bool // names of the hooks of the factory
}

// attached returns the hooks of the allocation, or none until they are known.
func (a *allocHooks) attached() []hook.Hook {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.list
}

// attach sets the hooks. It is called once, before any hook is called.
func (a *allocHooks) attach(list []hook.Hook) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = list
}

// addPlugin records that the allocation, or one of its tasks, needs a hook of the
// factory.
func (a *allocHooks) addPlugin(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.plugins == nil {
		a.plugins = make(map[string]bool)
	}
	a.plugins[name] = true
}

// needs reports whether addPlugin was called with the name.
func (a *allocHooks) needs(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.plugins[name]
}

// pluginNames returns the names that were passed to addPlugin.
func (a *allocHooks) pluginNames() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.plugins))
}

// prerun calls the Prerun hooks in order, up to the first error. restored means that an
// earlier agent has started the allocation.
func (a *allocHooks) prerun(untilStop context.Context, restored bool) error {
	var alloc *api.Allocation
	var env map[string]string // of alloc
	for _, h := range a.attached() {
		at, ok := h.(hook.AllocPrerun)
		if !ok {
			continue
		}
		if untilStop.Err() != nil {
			return context.Cause(untilStop)
		}
		if now := a.alloc(); now != alloc {
			alloc, env = now, a.envs.ofAlloc().Vars()
		}
		point := failpoint.Enter(failpoint.Prerun)
		err := hooks.Call(untilStop, a.logger, h, hook.Prerun, a.limits.PrerunDeadline, func(ctx context.Context) error {
			_, err := at.Prerun(ctx, hook.AllocPrerunRequest{Alloc: hookAlloc(a.alloc()), Env: env})
			return err
		})
		point.Leave()
		if err == nil {
			continue
		}
		if untilStop.Err() == nil && restored && a.tolerates(err) {
			a.tasks.emit(model.EventHookFailed(h.Name(), err.Error()))
			continue
		}
		return fmt.Errorf("pre-run hook %q failed: %w", h.Name(), err)
	}
	return nil
}

// untilStop returns a context that is also canceled when the allocation is stopped or
// about to be stopped, so that hooks that hang do not delay the stop. The caller must
// call the returned function.
func (a *allocHooks) untilStop(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-a.stopped:
		case <-a.ending:
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
func (a *allocHooks) tolerates(err error) bool {
	var t unavailable
	if !errors.As(err, &t) && !process.Exhausted(err) {
		return false
	}
	_, err = a.tasks.running("")
	return err == nil
}

func (a *allocHooks) update(ctx context.Context) {
	ctx, end := a.untilStop(ctx)
	defer end()
	each(ctx, a, hook.UpdateAlloc, func(ctx context.Context, h hook.AllocUpdate) error {
		_, err := h.UpdateAlloc(ctx, hook.AllocUpdateRequest{Alloc: hookAlloc(a.alloc()), Env: a.envs.ofAlloc().Vars()})
		return err
	})
}

func (a *allocHooks) preTaskRestart(ctx context.Context) {
	ctx, end := a.untilStop(ctx)
	defer end()
	each(ctx, a, hook.PreTaskRestart, func(ctx context.Context, h hook.AllocPreTaskRestart) error {
		_, err := h.PreTaskRestart(ctx, hook.AllocPreTaskRestartRequest{Alloc: hookAlloc(a.alloc())})
		return err
	})
}

func (a *allocHooks) preKill(ctx context.Context) {
	each(ctx, a, hook.PreKill, func(ctx context.Context, h hook.AllocPreKill) error {
		_, err := h.PreKill(ctx, hook.AllocPreKillRequest{Alloc: hookAlloc(a.alloc())})
		return err
	})
}

func (a *allocHooks) postrun(ctx context.Context) {
	each(ctx, a, hook.Postrun, func(ctx context.Context, h hook.AllocPostrun) error {
		_, err := h.Postrun(ctx, hook.AllocPostrunRequest{Alloc: hookAlloc(a.alloc())})
		return err
	})
}

func (a *allocHooks) shutdown(ctx context.Context) {
	each(ctx, a, hook.ShutdownAlloc, func(ctx context.Context, h hook.AllocShutdown) error {
		_, err := h.ShutdownAlloc(ctx, hook.AllocShutdownRequest{Alloc: hookAlloc(a.alloc())})
		return err
	})
}

// destroy calls the Destroy hooks.
func (a *allocHooks) destroy(ctx context.Context) error {
	var errs []error
	for _, h := range a.attached() {
		if at, ok := h.(hook.AllocDestroy); ok {
			err := hooks.Call(ctx, a.logger, h, hook.Destroy, a.limits.HookDeadline, func(ctx context.Context) error {
				_, err := at.Destroy(ctx, hook.AllocDestroyRequest{Alloc: hookAlloc(a.alloc())})
				return err
			})
			if err != nil {
				errs = append(errs, fmt.Errorf("destroy alloc %s: hook %q: %w", a.alloc().ID, h.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// each calls the hooks of a hook point one after the other. Errors are logged unless
// ctx is done.
func each[H any](ctx context.Context, a *allocHooks, point hook.Point, call func(context.Context, H) error) {
	for _, h := range a.attached() {
		at, ok := h.(H)
		if !ok {
			continue
		}
		err := hooks.Call(ctx, a.logger, h, point, a.limits.HookDeadline, func(ctx context.Context) error { return call(ctx, at) })
		if err != nil && ctx.Err() == nil {
			a.logger.Error("hook failed", "hook", h.Name(), "hook_point", point, "error", err)
		}
	}
}
