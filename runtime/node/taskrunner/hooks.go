package taskrunner

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// taskHooks calls the hooks of the task and stores their responses in the local state. Except where a comment
// says otherwise, its methods belong to the goroutine of Run and, before Run, to the
// callers that prepare it.
type taskHooks struct {
	alloc       *Alloc
	dir         hook.TaskDir
	env         *taskenv.Builder
	task        func() Task
	description *driverDescription
	records     *taskRecords
	callLimits  runnerhooks.CallLimits
	timeline    timeline.Recorder
	logger      hclog.Logger

	hookChain        *runnerhooks.Chain // hooks of the task; nil before setHooks
	allocAttachments map[string]string  // hook attachments of the allocation
}

// setHooks implements [Runner.SetHooks], and sets the variables of the stored hook responses.
func (t *taskHooks) setHooks(list []runnerhooks.OrderedHook, allocAttachments map[string]string) {
	t.hookChain = runnerhooks.NewChain(runnerhooks.ChainConfig{Limits: t.callLimits, EmitEvent: t.records.emitEvent, Timeline: t.timeline, Logger: t.logger}, list)
	t.allocAttachments = allocAttachments
	t.restoreHookEnvs()
}

// restoreHookEnvs sets the variables of the hooks' stored responses. A hook without a
// response gets an empty set, so that it keeps its place in the order.
func (t *taskHooks) restoreHookEnvs() {
	for h := range runnerhooks.HooksImplementing[hook.TaskPrestart](t.hookChain) {
		t.setEnvOfHook(h, t.records.localState.Hooks[h.Name()].Env)
	}
}

// callPrestartHooks calls the Prestart hooks that are not done, in order, and stores their responses. It emits an event for
// an error unless killCtx is done. After an error it calls no further hooks, except for a running task: a task of an
// earlier agent must not stop because a hook fails when it is called again.
func (t *taskHooks) callPrestartHooks(killCtx context.Context, alreadyRunning bool) error {
	return t.callPrestartHooksExcept(killCtx, alreadyRunning, func(runnerhooks.Hook) bool { return false })
}

// callBuiltinPrestartHooks calls the builtin Prestart hooks that are not done, as callPrestartHooks does for a running task.
func (t *taskHooks) callBuiltinPrestartHooks(killCtx context.Context) {
	// CallUntilError tolerates the errors of a running task and emits events for them.
	_ = t.callPrestartHooksExcept(killCtx, true, func(h runnerhooks.Hook) bool { return !runnerhooks.IsBuiltin(h) })
}

func (t *taskHooks) callPrestartHooksExcept(killCtx context.Context, alreadyRunning bool, excluded func(runnerhooks.Hook) bool) error {
	defer runtime.KeepAlive(t.env.Build()) // keeps the built environment in memory for all hooks, unless a hook changes it
	chain := t.hookChain.WithoutHooks(func(h runnerhooks.Hook) bool { return t.records.localState.Hooks[h.Name()].Done || excluded(h) })
	return runnerhooks.CallUntilError(killCtx, chain, hook.Prestart, func(ctx context.Context, h runnerhooks.Hook, at hook.TaskPrestart) (hook.TaskPrestartResponse, error) {
		return t.callPrestartHook(ctx, h, at, alreadyRunning)
	}, func(error) bool { return alreadyRunning })
}

func (t *taskHooks) callPrestartHook(ctx context.Context, h runnerhooks.Hook, at hook.TaskPrestart, alreadyRunning bool) (hook.TaskPrestartResponse, error) {
	before := t.records.localState.Hooks[h.Name()]
	task := t.task()
	point := failpoint.EnterStep(failpoint.StepPrestart)
	response, err := at.Prestart(ctx, hook.TaskPrestartRequest{
		Alloc:         t.alloc.Alloc,
		Task:          task.ToHookTask(),
		Dir:           t.dir,
		Env:           t.env.Build().Vars(),
		Resources:     task.Resources,
		PreviousState: maps.Clone(before.Data),
		Running:       alreadyRunning,
	})
	point.Leave()
	err = t.records.redactError(err)

	after := state.HookState{
		AttachmentJSON: before.AttachmentJSON,
		Done:           response.Done, Data: response.State,
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
	if !reflect.DeepEqual(before, after) {
		t.records.localState.SetHook(h.Name(), after)
		if !alreadyRunning {
			t.records.localState.StartID = "" // the next start gets a new id, whose write also stores the response
		}
		t.records.putLocalState(state.DurabilityAsync) // stored with the id of the start at the latest
		t.setEnvOfHook(h, after.Env)
	}
	return response, err
}

// recordAttachments records in the local state which hooks are attached to the task, so that the next agent calls them at
// the end of the task even if its configuration no longer attaches them. The local state is stored with the start of the
// task at the latest.
func (t *taskHooks) recordAttachments() {
	t.records.localState.AllocHooks = t.allocAttachments
	for name, attachment := range t.hookChain.Attachments() {
		if state := t.records.localState.Hooks[name]; state.AttachmentJSON != attachment {
			state.AttachmentJSON = attachment
			t.records.localState.SetHook(name, state)
		}
	}
}

func (t *taskHooks) setEnvOfHook(h runnerhooks.Hook, env map[string]string) {
	if h.VerbatimEnv() {
		t.env.SetTemplateEnv(env)
		return
	}
	t.env.SetHookEnv(h.Name(), env)
}

// callPoststartHooks calls the Poststart hooks. repeated means that an earlier agent may already have called them for the
// same process.
func (t *taskHooks) callPoststartHooks(killCtx context.Context, p *process, repeated bool) {
	runnerhooks.CallEachHook(killCtx, t.hookChain, hook.Poststart, func(ctx context.Context, _ runnerhooks.Hook, h hook.TaskPoststart) (hook.TaskPoststartResponse, error) {
		point := failpoint.EnterStep(failpoint.StepPoststart)
		defer point.Leave()
		return h.Poststart(ctx, t.newPoststartRequest(p, repeated))
	})
}

func (t *taskHooks) newPoststartRequest(p *process, repeated bool) hook.TaskPoststartRequest {
	return hook.TaskPoststartRequest{
		Alloc:    t.alloc.Alloc,
		Task:     t.task().ToHookTask(),
		Dir:      t.dir,
		Env:      t.env.Build().Vars(),
		Network:  p.network,
		Repeated: repeated,
	}
}

// repeatPoststartHooks calls Poststart again when the plugin process of a hook was replaced,
// until ctx is done or the process of the task has exited. Each hook has a goroutine in
// wg.
func (t *taskHooks) repeatPoststartHooks(ctx context.Context, wg *sync.WaitGroup, p *process) {
	runnerhooks.CallAfterPluginRestarts(ctx, wg, t.hookChain, hook.Poststart, func(ctx context.Context, _ runnerhooks.Hook, h hook.TaskPoststart) (hook.TaskPoststartResponse, error) {
		return h.Poststart(ctx, t.newPoststartRequest(p, true))
	})
}

// callPreKillingHooks calls the PreKilling hooks. It may be called from any goroutine.
func (t *taskHooks) callPreKillingHooks(ctx context.Context) {
	runnerhooks.CallEachHook(ctx, t.hookChain, hook.PreKilling, func(ctx context.Context, _ runnerhooks.Hook, h hook.TaskPreKilling) (hook.TaskPreKillingResponse, error) {
		return h.PreKilling(ctx, hook.TaskPreKillingRequest{Alloc: t.alloc.Alloc, Task: t.task().ToHookTask()})
	})
}

// callExitedHooks calls the Exited hooks. A kill does not interrupt them, because they clean up after the process. A
// shutdown of the agent does: then callExitedHooks returns false, and the next agent calls the hooks again.
func (t *taskHooks) callExitedHooks(forceKillCtx context.Context, exit *state.ProcessExit, willRestart bool) bool {
	ctx, cancel := context.WithCancel(context.WithoutCancel(forceKillCtx))
	defer cancel()
	defer context.AfterFunc(forceKillCtx, func() {
		if context.Cause(forceKillCtx) != errForceKilled {
			cancel()
		}
	})()
	request := hook.TaskExitedRequest{
		Alloc: t.alloc.Alloc, Task: t.task().ToHookTask(), Exit: exit.ExitResult(), WillRestart: willRestart,
	}
	runnerhooks.CallEachHook(ctx, t.hookChain, hook.Exited, func(ctx context.Context, _ runnerhooks.Hook, h hook.TaskExited) (hook.TaskExitedResponse, error) {
		return h.Exited(ctx, request)
	})
	return ctx.Err() == nil
}

func (t *taskHooks) callStopHooks(ctx context.Context) {
	runnerhooks.CallEachHook(ctx, t.hookChain, hook.Stop, func(ctx context.Context, h runnerhooks.Hook, at hook.TaskStop) (hook.TaskStopResponse, error) {
		return at.Stop(ctx, hook.TaskStopRequest{
			Alloc:         t.alloc.Alloc,
			Task:          t.task().ToHookTask(),
			Dir:           t.dir,
			PreviousState: maps.Clone(t.records.localState.Hooks[h.Name()].Data),
		})
	})
}

// callShutdownHooks calls the Shutdown hooks when the agent shuts down and the task stays.
func (t *taskHooks) callShutdownHooks(ctx context.Context) {
	runnerhooks.CallEachHook(context.WithoutCancel(ctx), t.hookChain, hook.Shutdown, func(ctx context.Context, _ runnerhooks.Hook, h hook.TaskShutdown) (hook.TaskShutdownResponse, error) {
		return h.Shutdown(ctx, hook.TaskShutdownRequest{Alloc: t.alloc.Alloc, Task: t.task().ToHookTask()})
	})
}

// callUpdateHooks calls the Update hooks. It may be called from any goroutine.
func (t *taskHooks) callUpdateHooks(killCtx context.Context) {
	runnerhooks.CallEachHook(killCtx, t.hookChain, hook.Update, func(ctx context.Context, _ runnerhooks.Hook, h hook.TaskUpdate) (hook.TaskUpdateResponse, error) {
		return h.Update(ctx, hook.TaskUpdateRequest{Alloc: t.alloc.Alloc, Task: t.task().ToHookTask(), Env: t.env.Build().Vars()})
	})
}

// deviceEnv returns the variables that the devices hook has set for the reserved devices, interpolated.
func (t *taskHooks) deviceEnv(env *taskenv.Env) map[string]string {
	reserved := t.records.localState.Hooks[runnerhooks.DevicesName].Env
	if len(reserved) == 0 {
		return nil
	}
	vars := make(map[string]string, len(reserved))
	for name, value := range reserved {
		vars[name] = env.Replace(value)
	}
	return vars
}

// mergeHookMountsAndDevices returns the mounts and devices of all hook responses, in the order of the hooks. If several hooks
// use the same path in the task, the last one has precedence. It returns an error if a hook mounts a path and the driver
// does not support mounts.
func (t *taskHooks) mergeHookMountsAndDevices() (mounts []driver.Mount, devices []driver.Device, err error) {
	supported := t.description.driverCapabilities().MountConfigs != driver.MountConfigsNone
	for _, h := range t.hookChain.Hooks() {
		record := t.records.localState.Hooks[h.Name()]
		switch {
		case supported || len(record.Mounts) == 0:
		case h.Name() == runnerhooks.TaskDirName:
			record.Mounts = nil // without mounts, the task uses the task directory on the host directly
		case h.Name() == runnerhooks.DevicesName:
			record.Mounts = nil // without mounts, the task sees the device files of the host
		case h.Name() == runnerhooks.VolumesName:
			task := t.task()
			return nil, nil, fmt.Errorf("task driver %q for %q does not support host volumes: remove its volume_mount blocks, or use another driver", task.Driver, task.Name)
		default:
			task := t.task()
			return nil, nil, fmt.Errorf("task driver %q for %q does not support mounts: hook %q mounts %s, so detach the hook, or use another driver", task.Driver, task.Name, h.Name(), record.Mounts[0].TaskPath)
		}
		for _, m := range record.Mounts {
			mounts = slices.DeleteFunc(mounts, func(o driver.Mount) bool { return o.TaskPath == m.TaskPath })
			mounts = append(mounts, m)
		}
		for _, d := range record.Devices {
			devices = slices.DeleteFunc(devices, func(o driver.Device) bool { return o.TaskPath == d.TaskPath })
			devices = append(devices, d)
		}
	}
	return mounts, devices, nil
}
