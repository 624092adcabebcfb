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

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
)

// allocHooks calls the hooks of an allocation.
type allocHooks struct {
	alloc               func() *api.Allocation // returns the current version of the allocation
	envBuilders         *envBuilders
	tasks               taskSet
	stopRequested       <-chan struct{} // closed when the stop of the allocation is requested
	stopVersionReceived <-chan struct{} // closed before a version of the allocation that stops it is applied
	limits              Limits
	timeline            timeline.Recorder
	logger              hclog.Logger

	mu              sync.Mutex
	hookChain       *runnerhooks.Chain // hooks of the allocation; nil until attached
	pluginHookNames map[string]bool    // names of the hooks in plugins that the allocation and its tasks have
}

// currentHookChain returns the hooks of the allocation, nil before setHooks.
func (a *allocHooks) currentHookChain() *runnerhooks.Chain {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hookChain
}

// setHooks sets the hooks of the allocation. It returns their attachments, by hook name. It is called once, before any hook is
// called.
func (a *allocHooks) setHooks(list []runnerhooks.OrderedHook) (attachmentOfHook map[string]string) {
	chain := runnerhooks.NewChain(runnerhooks.ChainConfig{Limits: a.limits.hookCallLimits(), EmitEvent: a.tasks.emitEvent, Timeline: a.timeline, Logger: a.logger}, list)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hookChain = chain
	return chain.Attachments()
}

// recordPluginHook records that the allocation or one of its tasks has the named hook of the HookFactory.
func (a *allocHooks) recordPluginHook(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pluginHookNames == nil {
		a.pluginHookNames = make(map[string]bool)
	}
	a.pluginHookNames[name] = true
}

// hasPluginHook reports whether recordPluginHook was called with the name.
func (a *allocHooks) hasPluginHook(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pluginHookNames[name]
}

// listPluginHookNames returns the names that were passed to recordPluginHook.
func (a *allocHooks) listPluginHookNames() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.pluginHookNames))
}

// callPrerunHooks calls the Prerun hooks in order, up to the first error. restored means that an
// earlier agent has started the allocation.
func (a *allocHooks) callPrerunHooks(untilStop context.Context, restored bool) error {
	var alloc *api.Allocation
	var env map[string]string // environment of alloc
	return runnerhooks.CallUntilError(untilStop, a.currentHookChain(), hook.Prerun, func(ctx context.Context, _ runnerhooks.Hook, h hook.AllocPrerun) (hook.AllocPrerunResponse, error) {
		if now := a.alloc(); now != alloc {
			alloc, env = now, a.envBuilders.allocEnv().Vars()
		}
		point := failpoint.EnterStep(failpoint.StepPrerun)
		defer point.Leave()
		return h.Prerun(ctx, hook.AllocPrerunRequest{Alloc: toHookAlloc(a.alloc()), Env: env})
	}, func(err error) bool { return restored && a.keepsTasksAfterPrerunError(err) })
}

// contextUntilStop returns a context that is canceled with ctx, and also when the stop of the allocation is requested or
// announced, so that hooks that hang do not delay the stop. The caller must call the returned function.
func (a *allocHooks) contextUntilStop(ctx context.Context) (untilStop context.Context, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	var waiterWG sync.WaitGroup
	waiterWG.Go(func() {
		select {
		case <-a.stopRequested:
		case <-a.stopVersionReceived:
		case <-ctx.Done():
		}
		cancel()
	})
	return ctx, func() {
		cancel()
		waiterWG.Wait()
	}
}

// keepsTasksAfterPrerunError reports whether the running tasks of a restored allocation continue although a Prerun hook has
// failed with err. They do if the hook's plugin is unavailable, or if the agent has no free file descriptors.
func (a *allocHooks) keepsTasksAfterPrerunError(err error) bool {
	if !errors.As(err, new(*runnerhooks.UnavailableError)) && !osprocess.IsResourceExhausted(err) {
		return false
	}
	_, err = a.tasks.runningTasks("")
	return err == nil
}

func (a *allocHooks) callUpdateHooks(ctx context.Context) {
	ctx, end := a.contextUntilStop(ctx)
	defer end()
	runnerhooks.CallEachHook(ctx, a.currentHookChain(), hook.UpdateAlloc, func(ctx context.Context, _ runnerhooks.Hook, h hook.AllocUpdate) (hook.AllocUpdateResponse, error) {
		return h.UpdateAlloc(ctx, hook.AllocUpdateRequest{Alloc: toHookAlloc(a.alloc()), Env: a.envBuilders.allocEnv().Vars()})
	})
}

func (a *allocHooks) callPreTaskRestartHooks(ctx context.Context) {
	ctx, end := a.contextUntilStop(ctx)
	defer end()
	runnerhooks.CallEachHook(ctx, a.currentHookChain(), hook.PreTaskRestart, func(ctx context.Context, _ runnerhooks.Hook, h hook.AllocPreTaskRestart) (hook.AllocPreTaskRestartResponse, error) {
		return h.PreTaskRestart(ctx, hook.AllocPreTaskRestartRequest{Alloc: toHookAlloc(a.alloc())})
	})
}

func (a *allocHooks) callPreKillHooks(ctx context.Context) {
	runnerhooks.CallEachHook(ctx, a.currentHookChain(), hook.PreKill, func(ctx context.Context, _ runnerhooks.Hook, h hook.AllocPreKill) (hook.AllocPreKillResponse, error) {
		return h.PreKill(ctx, hook.AllocPreKillRequest{Alloc: toHookAlloc(a.alloc())})
	})
}

func (a *allocHooks) callPostrunHooks(ctx context.Context) {
	runnerhooks.CallEachHook(ctx, a.currentHookChain(), hook.Postrun, func(ctx context.Context, _ runnerhooks.Hook, h hook.AllocPostrun) (hook.AllocPostrunResponse, error) {
		return h.Postrun(ctx, hook.AllocPostrunRequest{Alloc: toHookAlloc(a.alloc())})
	})
}

func (a *allocHooks) callShutdownHooks(ctx context.Context) {
	runnerhooks.CallEachHook(ctx, a.currentHookChain(), hook.ShutdownAlloc, func(ctx context.Context, _ runnerhooks.Hook, h hook.AllocShutdown) (hook.AllocShutdownResponse, error) {
		return h.ShutdownAlloc(ctx, hook.AllocShutdownRequest{Alloc: toHookAlloc(a.alloc())})
	})
}

// callDestroyHooks calls the Destroy hooks.
func (a *allocHooks) callDestroyHooks(ctx context.Context) error {
	return runnerhooks.CallAndJoinErrors(ctx, a.currentHookChain(), hook.Destroy, func(ctx context.Context, h runnerhooks.Hook, at hook.AllocDestroy) (hook.AllocDestroyResponse, error) {
		response, err := at.Destroy(ctx, hook.AllocDestroyRequest{Alloc: toHookAlloc(a.alloc())})
		if err != nil {
			err = fmt.Errorf("destroy alloc %s: hook %q: %w", a.alloc().ID, h.Name(), err)
		}
		return response, err
	})
}
