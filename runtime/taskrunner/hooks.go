package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/restart"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// eventError is an error that provides its own task event.
type eventError interface{ Event() *api.TaskEvent }

func failureEvent(h hook.Hook, err error) *api.TaskEvent {
	var told eventError
	if errors.As(err, &told) {
		return told.Event()
	}
	return model.EventHookFailed(h.Name(), err.Error())
}

// prestart calls the Prestart hooks that are not done, in order, and stores their
// responses. An error is reported as an event unless killCtx is done. It ends the
// chain, except for a running task: such a task is not stopped because a hook failed a
// second time.
func (r *Runner) prestart(killCtx context.Context, running bool) error {
	defer runtime.KeepAlive(r.env.Build()) // keeps one built environment for all hooks, unless a hook changes it
	for _, h := range r.hooks {
		at, ok := h.(hook.TaskPrestart)
		if !ok || r.local.Hooks[h.Name()].Done {
			continue
		}
		if killCtx.Err() != nil {
			return context.Cause(killCtx)
		}
		if err := r.prestartHook(killCtx, h, at, running); err != nil {
			if killCtx.Err() == nil {
				r.EmitEvent(failureEvent(h, err))
			}
			if running {
				continue
			}
			return fmt.Errorf("prestart hook %q failed: %w", h.Name(), err)
		}
	}
	return nil
}

func (r *Runner) prestartHook(killCtx context.Context, h hook.Hook, at hook.TaskPrestart, running bool) error {
	before := r.local.Hooks[h.Name()]
	task := r.Task()
	request := hook.TaskPrestartRequest{
		Alloc:         r.alloc.Alloc,
		Task:          task.ForHooks(),
		Dir:           r.dir,
		Env:           r.env.Build().Vars(),
		Resources:     task.Resources,
		PreviousState: maps.Clone(before.Data),
		Running:       running,
	}
	var response hook.TaskPrestartResponse
	err := hooks.Call(killCtx, r.logger, h, hook.Prestart, r.deadlines.Prestart, func(ctx context.Context) (err error) {
		point := failpoint.Enter(failpoint.Prestart)
		response, err = at.Prestart(ctx, request)
		point.Leave()
		return err
	})

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
		r.setHookEnv(h.Name(), after.Env)
	}
	return err
}

// templateHook is the hook whose variables contain user-written values that are used
// verbatim, without interpolation.
const templateHook = "template"

// attached is a hook that a user attached. Attachment returns its configuration as
// JSON.
type attached interface{ Attachment() string }

// noteAttachments records the task's attached hooks for the next agent, whatever the
// configuration is then, so that hooks that have started something are also called at
// the end. The record is stored with the start of the task at the latest.
func (r *Runner) noteAttachments() {
	r.local.AllocHooks = r.allocHooks
	for _, h := range r.hooks {
		at, ok := h.(attached)
		if !ok {
			continue
		}
		if state := r.local.Hooks[h.Name()]; state.Attachment != at.Attachment() {
			state.Attachment = at.Attachment()
			r.local.SetHook(h.Name(), state)
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

func (r *Runner) setHookEnv(name string, env map[string]string) {
	if name == templateHook {
		r.env.SetTemplateEnv(env)
		return
	}
	r.env.SetHookEnv(name, env)
}

// poststart calls the Poststart hooks. repeated means that an earlier agent may have
// called them for the same process.
func (r *Runner) poststart(killCtx context.Context, p *process, repeated bool) {
	for _, h := range r.hooks {
		if at, ok := h.(hook.TaskPoststart); ok && killCtx.Err() == nil {
			point := failpoint.Enter(failpoint.Poststart)
			r.poststartHook(killCtx, h, at, p, repeated)
			point.Leave()
		}
	}
}

func (r *Runner) poststartHook(killCtx context.Context, h hook.Hook, at hook.TaskPoststart, p *process, repeated bool) {
	r.reportHook(killCtx, hook.Poststart, h, func(ctx context.Context) error {
		_, err := at.Poststart(ctx, hook.TaskPoststartRequest{
			Alloc:   r.alloc.Alloc,
			Task:    r.Task().ForHooks(),
			Dir:     r.dir,
			Env:     r.env.Build().Vars(),
			Network: p.network,

			Repeated: repeated,
		})
		return err
	})
}

// pluginHook is a hook in a plugin process of its own.
type pluginHook interface {
	hook.TaskPoststart

	// PluginExited returns a channel that is closed when the plugin process that last
	// received Poststart has exited, or when no plugin process could be called. It is
	// nil if the plugin needs no Poststart.
	PluginExited() <-chan struct{}

	// WaitPlugin blocks until the plugin is up.
	WaitPlugin(context.Context) error
}

// repeatPoststart calls Poststart again when the plugin process of a hook was replaced,
// until ctx is done or the process of the task has exited. Each hook has a goroutine in
// wg.
func (r *Runner) repeatPoststart(ctx context.Context, wg *sync.WaitGroup, p *process) {
	for _, h := range r.hooks {
		ph, ok := h.(pluginHook)
		if !ok {
			continue
		}
		exited := ph.PluginExited()
		if exited == nil {
			continue
		}
		wg.Go(func() {
			for ; exited != nil; exited = ph.PluginExited() {
				select {
				case <-exited:
				case <-ctx.Done():
					return
				}
				if ph.WaitPlugin(ctx) != nil || ctx.Err() != nil {
					return
				}
				r.poststartHook(ctx, h, ph, p, true)
			}
		})
	}
}

func (r *Runner) preKilling(ctx context.Context) {
	each(ctx, r, hook.PreKilling, func(ctx context.Context, h hook.TaskPreKilling) error {
		_, err := h.PreKilling(ctx, hook.TaskPreKillingRequest{Alloc: r.alloc.Alloc, Task: r.Task().ForHooks()})
		return err
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
	each(ctx, r, hook.Exited, func(ctx context.Context, h hook.TaskExited) error {
		_, err := h.Exited(ctx, request)
		return err
	})
	return ctx.Err() == nil
}

func (r *Runner) stopHooks(ctx context.Context) {
	for _, h := range r.hooks {
		if at, ok := h.(hook.TaskStop); ok {
			r.reportHook(ctx, hook.Stop, h, func(ctx context.Context) error {
				_, err := at.Stop(ctx, hook.TaskStopRequest{
					Alloc:         r.alloc.Alloc,
					Task:          r.Task().ForHooks(),
					Dir:           r.dir,
					PreviousState: maps.Clone(r.local.Hooks[h.Name()].Data),
				})
				return err
			})
		}
	}
}

// shutdownHooks calls the Shutdown hooks when the agent shuts down and the task stays.
func (r *Runner) shutdownHooks(ctx context.Context) {
	each(context.WithoutCancel(ctx), r, hook.Shutdown, func(ctx context.Context, h hook.TaskShutdown) error {
		_, err := h.Shutdown(ctx, hook.TaskShutdownRequest{Alloc: r.alloc.Alloc, Task: r.Task().ForHooks()})
		return err
	})
}

// runUpdateHooks calls the Update hooks for new versions of the task until there is no
// newer version or killCtx is done.
func (r *Runner) runUpdateHooks(killCtx context.Context) {
	for killCtx.Err() == nil && r.updates.take() {
		each(killCtx, r, hook.Update, func(ctx context.Context, h hook.TaskUpdate) error {
			_, err := h.Update(ctx, hook.TaskUpdateRequest{Alloc: r.alloc.Alloc, Task: r.Task().ForHooks(), Env: r.env.Build().Vars()})
			return err
		})
	}
}

// each calls the hooks of a hook point one after the other, until ctx is done.
func each[H any](ctx context.Context, r *Runner, point hook.Point, call func(context.Context, H) error) {
	for _, h := range r.hooks {
		if at, ok := h.(H); ok && ctx.Err() == nil {
			r.reportHook(ctx, point, h, func(ctx context.Context) error { return call(ctx, at) })
		}
	}
}

// reportHook emits an event for the error of a hook, unless ctx is done.
func (r *Runner) reportHook(ctx context.Context, point hook.Point, h hook.Hook, call func(context.Context) error) {
	err := hooks.Call(ctx, r.logger, h, point, r.deadlines.Others, call)
	if err != nil && ctx.Err() == nil {
		r.EmitEvent(model.EventHookFailed(h.Name(), err.Error()))
	}
}
