package taskrunner

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/restart"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// SetHooks sets the hooks. It must be called before Run, at most once. It is separate from
// New because some hooks act on the runner.
func (r *Runner) SetHooks(list []hooks.Entry) {
	r.hooks = hooks.NewChain(hooks.ChainConfig{Deadlines: r.deadlines, Emit: r.EmitEvent, Logger: r.logger}, list)
	r.restoreHookEnv()
}

// restoreHookEnv sets the variables of the hooks' stored responses. A hook without a
// response gets an empty set, so that it keeps its place in the order.
func (r *Runner) restoreHookEnv() {
	for h := range hooks.Implementing[hook.TaskPrestart](r.hooks) {
		r.setHookEnv(h, r.local.Hooks[h.Name()].Env)
	}
}

// prestart calls the Prestart hooks that are not done, in order, and stores their
// responses. An error is reported as an event unless killCtx is done. It ends the
// chain, except for a running task: such a task is not stopped because a hook failed a
// second time.
func (r *Runner) prestart(killCtx context.Context, running bool) error {
	defer runtime.KeepAlive(r.env.Build()) // keeps one built environment for all hooks, unless a hook changes it
	chain := r.hooks.Without(func(h hooks.Hook) bool { return r.local.Hooks[h.Name()].Done })
	return hooks.CallUntilError(killCtx, chain, hook.Prestart, func(ctx context.Context, h hooks.Hook, at hook.TaskPrestart) (hook.TaskPrestartResponse, error) {
		return r.prestartHook(ctx, h, at, running)
	}, func(error) bool { return running })
}

func (r *Runner) prestartHook(ctx context.Context, h hooks.Hook, at hook.TaskPrestart, running bool) (hook.TaskPrestartResponse, error) {
	before := r.local.Hooks[h.Name()]
	task := r.Task()
	point := failpoint.Enter(failpoint.Prestart)
	response, err := at.Prestart(ctx, hook.TaskPrestartRequest{
		Alloc:         r.alloc.Alloc,
		Task:          task.ForHooks(),
		Dir:           r.dir,
		Env:           r.env.Build().Vars(),
		Resources:     task.Resources,
		PreviousState: maps.Clone(before.Data),
		Running:       running,
	})
	point.Leave()

	after := state.HookState{
		Attachment: before.Attachment,
		Done:       response.Done, Data: response.State,
		Env: response.Env, Mounts: response.Mounts, Devices: response.Devices,
	}
	if err != nil {
		// Keep the state that the hook has returned so far. Its mounts, devices and
		// environment are not valid.
		after = before
		if response.State != nil {
			after.Data = response.State
		}
	}
	if len(after.Mounts) > 0 && err == nil && r.Capabilities().MountConfigs == driver.MountConfigsNone {
		r.EmitEvent(model.EventHookFailed(h.Name(), fmt.Sprintf("prestart: the driver %q takes no mounts: the task will not see %s", task.Driver, after.Mounts[0].TaskPath)))
	}
	if !reflect.DeepEqual(before, after) {
		r.local.SetHook(h.Name(), after)
		if !running {
			r.local.StartID = "" // a start with an id that is stored already would not store the response
		}
		r.records.putLocal(state.Async) // stored with the id of the start at the latest
		r.setHookEnv(h, after.Env)
	}
	return response, err
}

// noteAttachments records the task's attached hooks for the next agent, whatever the
// configuration is then, so that hooks that have started something are also called at
// the end. The record is stored with the start of the task at the latest.
func (r *Runner) noteAttachments() {
	r.local.AllocHooks = r.allocHooks
	for name, attachment := range r.hooks.Attachments() {
		if state := r.local.Hooks[name]; state.Attachment != attachment {
			state.Attachment = attachment
			r.local.SetHook(name, state)
		}
	}
}

// Attachments returns the hooks that were attached to the task under an earlier agent,
// with their configurations. It must be called before Run.
func (r *Runner) Attachments() map[string]string {
	attachments := make(map[string]string)
	for name, state := range r.local.Hooks {
		if state.Attachment != "" {
			attachments[name] = state.Attachment
		}
	}
	return attachments
}

// SetAllocHooks adds the hooks of the allocation, with their configurations, to the
// records of the task: the allocation has no record of its own. The map must not be
// changed afterwards. SetAllocHooks must be called before Run.
func (r *Runner) SetAllocHooks(attachments map[string]string) { r.allocHooks = attachments }

func (r *Runner) setHookEnv(h hooks.Hook, env map[string]string) {
	if h.VerbatimEnv() {
		r.env.SetTemplateEnv(env)
		return
	}
	r.env.SetHookEnv(h.Name(), env)
}

// poststart calls the Poststart hooks. repeated means that an earlier agent may have
// called them for the same process.
func (r *Runner) poststart(killCtx context.Context, p *process, repeated bool) {
	hooks.CallEach(killCtx, r.hooks, hook.Poststart, func(ctx context.Context, _ hooks.Hook, h hook.TaskPoststart) (hook.TaskPoststartResponse, error) {
		point := failpoint.Enter(failpoint.Poststart)
		defer point.Leave()
		return h.Poststart(ctx, r.poststartRequest(p, repeated))
	})
}

func (r *Runner) poststartRequest(p *process, repeated bool) hook.TaskPoststartRequest {
	return hook.TaskPoststartRequest{
		Alloc:    r.alloc.Alloc,
		Task:     r.Task().ForHooks(),
		Dir:      r.dir,
		Env:      r.env.Build().Vars(),
		Network:  p.network,
		Repeated: repeated,
	}
}

// repeatPoststart calls Poststart again when the plugin process of a hook was replaced,
// until ctx is done or the process of the task has exited. Each hook has a goroutine in
// wg.
func (r *Runner) repeatPoststart(ctx context.Context, wg *sync.WaitGroup, p *process) {
	hooks.CallAfterPluginRestarts(ctx, wg, r.hooks, hook.Poststart, func(ctx context.Context, _ hooks.Hook, h hook.TaskPoststart) (hook.TaskPoststartResponse, error) {
		return h.Poststart(ctx, r.poststartRequest(p, true))
	})
}

func (r *Runner) preKilling(ctx context.Context) {
	hooks.CallEach(ctx, r.hooks, hook.PreKilling, func(ctx context.Context, _ hooks.Hook, h hook.TaskPreKilling) (hook.TaskPreKillingResponse, error) {
		return h.PreKilling(ctx, hook.TaskPreKillingRequest{Alloc: r.alloc.Alloc, Task: r.Task().ForHooks()})
	})
}

// exitedHooks calls the Exited hooks. A kill does not cut them short, because they
// clean up after the process. A shutdown does; exitedHooks then returns false, and the
// next agent calls them again.
func (r *Runner) exitedHooks(forceKillCtx context.Context) bool {
	ctx, cancel := context.WithCancel(context.WithoutCancel(forceKillCtx))
	defer cancel()
	defer context.AfterFunc(forceKillCtx, func() {
		if context.Cause(forceKillCtx) != errForceKilled {
			cancel()
		}
	})()
	exit := r.local.Exit
	next := r.restarts.predict(exit.Outcome())
	request := hook.TaskExitedRequest{
		Alloc: r.alloc.Alloc, Task: r.Task().ForHooks(), Exit: exit.Result(), WillRestart: next.Action == restart.Restart,
	}
	hooks.CallEach(ctx, r.hooks, hook.Exited, func(ctx context.Context, _ hooks.Hook, h hook.TaskExited) (hook.TaskExitedResponse, error) {
		return h.Exited(ctx, request)
	})
	return ctx.Err() == nil
}

func (r *Runner) stopHooks(ctx context.Context) {
	hooks.CallEach(ctx, r.hooks, hook.Stop, func(ctx context.Context, h hooks.Hook, at hook.TaskStop) (hook.TaskStopResponse, error) {
		return at.Stop(ctx, hook.TaskStopRequest{
			Alloc:         r.alloc.Alloc,
			Task:          r.Task().ForHooks(),
			Dir:           r.dir,
			PreviousState: maps.Clone(r.local.Hooks[h.Name()].Data),
		})
	})
}

// shutdownHooks calls the Shutdown hooks when the agent shuts down and the task stays.
func (r *Runner) shutdownHooks(ctx context.Context) {
	hooks.CallEach(context.WithoutCancel(ctx), r.hooks, hook.Shutdown, func(ctx context.Context, _ hooks.Hook, h hook.TaskShutdown) (hook.TaskShutdownResponse, error) {
		return h.Shutdown(ctx, hook.TaskShutdownRequest{Alloc: r.alloc.Alloc, Task: r.Task().ForHooks()})
	})
}

// runUpdateHooks calls the Update hooks for new versions of the task until there is no
// newer version or killCtx is done.
func (r *Runner) runUpdateHooks(killCtx context.Context) {
	for killCtx.Err() == nil && r.updates.take() {
		hooks.CallEach(killCtx, r.hooks, hook.Update, func(ctx context.Context, _ hooks.Hook, h hook.TaskUpdate) (hook.TaskUpdateResponse, error) {
			return h.Update(ctx, hook.TaskUpdateRequest{Alloc: r.alloc.Alloc, Task: r.Task().ForHooks(), Env: r.env.Build().Vars()})
		})
	}
}
