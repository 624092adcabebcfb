package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
)

// taskHooks calls the task's hooks and stores their responses in the record. Except where a comment says otherwise, its methods
// belong to Run's goroutine and, before Run, to the callers that prepare it.
type taskHooks struct {
	dir        hook.TaskDir
	records    *taskRecords
	requests   *taskRequests
	callLimits hooks.CallLimits

	hookChain                 *hooks.Chain      // the task's hooks; nil before setHooksAndRestoreEnvs
	allocAttachmentByHookName map[string]string // the allocation's hook attachments
	updateWG                  sync.WaitGroup    // the goroutine started by startUpdateHooksIfPending
}

// setHooksAndRestoreEnvs implements [Runner.SetHooks], and sets the variables from the stored hook responses.
func (t *taskHooks) setHooksAndRestoreEnvs(list []hooks.OrderedHook, allocAttachmentByHookName map[string]string) {
	t.hookChain = hooks.NewChain(hooks.ChainConfig{Limits: t.callLimits, EmitEvent: t.records.emitEvent, Timeline: t.records.timeline, Observer: t.records.metrics, Logger: t.records.logger}, list)
	t.allocAttachmentByHookName = allocAttachmentByHookName
	t.restoreHookEnvs()
}

// restoreHookEnvs sets the variables from the hooks' stored responses. A hook without a response gets an empty set, so that it
// keeps its place in the order.
func (t *taskHooks) restoreHookEnvs() {
	for h := range hooks.HooksImplementing[hook.TaskPrestart](t.hookChain) {
		t.setEnvOfHook(h, t.records.current().HookState(h.Name()).Env)
	}
}

// callPrestartHooks calls the Prestart hooks that are not done, in order, and stores their responses. It emits an event for an
// error unless killCtx is done. After an error it calls no further hooks, except for a running task: an earlier agent's task must
// not stop because a hook fails when it is called again. If builtinOnly is set, it does not call hooks in plugins.
func (t *taskHooks) callPrestartHooks(killCtx context.Context, alreadyRunning, builtinOnly bool) error {
	defer runtime.KeepAlive(t.records.env.Build()) // keeps the built environment in memory for all hooks, unless a hook changes it
	chain := t.hookChain.WithoutHooks(func(h hooks.Hook) bool {
		return t.records.current().HookState(h.Name()).PrestartDone || builtinOnly && !hooks.IsBuiltin(h)
	})
	return hooks.CallStartHooksUntilError(killCtx, chain, hook.Prestart, func(ctx context.Context, h hooks.Hook, at hook.TaskPrestart) (hook.TaskPrestartResponse, error) {
		return t.callPrestartHookAndStoreResponse(ctx, h, at, alreadyRunning)
	}, func(error) bool { return alreadyRunning })
}

func (t *taskHooks) callPrestartHookAndStoreResponse(ctx context.Context, h hooks.Hook, impl hook.TaskPrestart, alreadyRunning bool) (hook.TaskPrestartResponse, error) {
	previous := t.records.current().HookState(h.Name()).Data
	task := t.requests.currentTask()
	point := failpoint.EnterStep(failpoint.StepPrestart)
	response, err := impl.Prestart(ctx, hook.TaskPrestartRequest{
		Alloc:         t.records.alloc.Alloc,
		Task:          task.ToHookTask(),
		Dir:           t.dir,
		Env:           t.records.env.Build().Vars(),
		Resources:     task.Resources,
		PreviousState: maps.Clone(previous),
		Running:       alreadyRunning,
	})
	point.Leave()
	err = t.records.secrets.Error(err)

	change := t.records.commit(record.HookAnswered{
		Hook: h.Name(), Failed: err != nil, AlreadyRunning: alreadyRunning, DataAtCall: previous,
		Data: response.State, Done: response.Done, Env: response.Env, Mounts: response.Mounts, Devices: response.Devices,
	})
	if change.Applied() {
		t.setEnvOfHook(h, t.records.current().HookState(h.Name()).Env)
	}
	return response, err
}

// recordAttachments records which hooks are attached to the task, so that the next agent calls them when the task ends even if
// its configuration no longer attaches them. The record is stored when the task starts, at the latest.
func (t *taskHooks) recordAttachments() {
	t.records.commit(record.HooksAttached{AllocConfigByName: t.allocAttachmentByHookName, AttachmentJSONByName: t.hookChain.AttachmentByHookName()})
}

func (t *taskHooks) setEnvOfHook(h hooks.Hook, env map[string]string) {
	if h.EnvIsVerbatimAndOverrides() {
		t.records.env.SetTemplateEnv(env)
		return
	}
	t.records.env.SetHookEnv(h.Name(), env)
}

// callPoststartHooks calls the Poststart hooks. If mayBeRepeated is set, an earlier agent may already have called them for the
// same process. It returns early when ctx is done.
func (t *taskHooks) callPoststartHooks(ctx context.Context, p *taskdriver.Process, mayBeRepeated bool) {
	hooks.CallEachAndReportErrors(ctx, t.hookChain, hook.Poststart, func(ctx context.Context, h hooks.Hook, at hook.TaskPoststart) (hook.TaskPoststartResponse, error) {
		point := failpoint.EnterStep(failpoint.StepPoststart)
		defer point.Leave()
		return at.Poststart(ctx, t.newPoststartRequest(h, p, mayBeRepeated))
	})
}

func (t *taskHooks) newPoststartRequest(h hooks.Hook, p *taskdriver.Process, repeated bool) hook.TaskPoststartRequest {
	return hook.TaskPoststartRequest{
		Alloc:         t.records.alloc.Alloc,
		Task:          t.requests.currentTask().ToHookTask(),
		StartID:       p.ID(),
		Dir:           t.dir,
		Env:           t.records.env.Build().Vars(),
		Network:       p.Network,
		PreviousState: t.records.previousHookState(h.Name()),
		Repeated:      repeated,
	}
}

// repeatPoststartAfterPluginRestart calls Poststart again when a hook's plugin process was replaced, until ctx is done or the
// task's process has exited. Each hook has a goroutine in wg.
func (t *taskHooks) repeatPoststartAfterPluginRestart(ctx context.Context, wg *sync.WaitGroup, p *taskdriver.Process) {
	hooks.StartCallsAfterPluginRestarts(ctx, wg, t.hookChain, hook.Poststart, func(ctx context.Context, h hooks.Hook, at hook.TaskPoststart) (hook.TaskPoststartResponse, error) {
		return at.Poststart(ctx, t.newPoststartRequest(h, p, true))
	})
}

// callPreKillingHooks calls the PreKilling hooks. It may be called from any goroutine.
func (t *taskHooks) callPreKillingHooks(ctx context.Context, p *taskdriver.Process) {
	hooks.CallEachAndReportErrors(ctx, t.hookChain, hook.PreKilling, func(ctx context.Context, h hooks.Hook, at hook.TaskPreKilling) (hook.TaskPreKillingResponse, error) {
		return at.PreKilling(ctx, hook.TaskPreKillingRequest{
			Alloc: t.records.alloc.Alloc, Task: t.requests.currentTask().ToHookTask(), StartID: p.ID(), PreviousState: t.records.previousHookState(h.Name()),
		})
	})
}

// callExitedHooks calls the Exited hooks. A kill does not interrupt them, because they clean up after the process. An agent
// shutdown does: then callExitedHooks returns false, and the next agent calls the hooks again.
func (t *taskHooks) callExitedHooks(forceKillCtx context.Context, exit *restart.RunEnd, willRestart bool) (completed bool) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(forceKillCtx))
	defer cancel()
	defer context.AfterFunc(forceKillCtx, func() {
		if context.Cause(forceKillCtx) != errForceKilled {
			cancel()
		}
	})()
	request := hook.TaskExitedRequest{
		Alloc: t.records.alloc.Alloc, Task: t.requests.currentTask().ToHookTask(), StartID: t.records.fields().StartID, Exit: exitResultOf(exit), WillRestart: willRestart,
	}
	hooks.CallEachAndReportErrors(ctx, t.hookChain, hook.Exited, func(ctx context.Context, h hooks.Hook, at hook.TaskExited) (hook.TaskExitedResponse, error) {
		request := request
		request.PreviousState = t.records.previousHookState(h.Name())
		return at.Exited(ctx, request)
	})
	return ctx.Err() == nil
}

// exitResultOf returns how a process has ended, as reported by the driver.
func exitResultOf(end *restart.RunEnd) driver.ExitResult {
	result := driver.ExitResult{ExitCode: end.ExitCode, Signal: end.Signal, OOMKilled: end.OOMKilled}
	if end.Error != "" {
		result.Err = errors.New(end.Error)
	}
	return result
}

func (t *taskHooks) callStopHooks(ctx context.Context) {
	hooks.CallEachAndReportErrors(ctx, t.hookChain, hook.Stop, func(ctx context.Context, h hooks.Hook, at hook.TaskStop) (hook.TaskStopResponse, error) {
		return at.Stop(ctx, hook.TaskStopRequest{
			Alloc:         t.records.alloc.Alloc,
			Task:          t.requests.currentTask().ToHookTask(),
			Dir:           t.dir,
			PreviousState: t.records.previousHookState(h.Name()),
		})
	})
}

// callShutdownHooks calls the Shutdown hooks when the agent shuts down and the task stays.
func (t *taskHooks) callShutdownHooks(ctx context.Context) {
	hooks.CallEachAndReportErrors(context.WithoutCancel(ctx), t.hookChain, hook.Shutdown, func(ctx context.Context, _ hooks.Hook, h hook.TaskShutdown) (hook.TaskShutdownResponse, error) {
		return h.Shutdown(ctx, hook.TaskShutdownRequest{Alloc: t.records.alloc.Alloc, Task: t.requests.currentTask().ToHookTask()})
	})
}

// explainStartFailure returns the reasons that the hooks know for a failed start, or "".
func (t *taskHooks) explainStartFailure() string {
	var reasons []string
	for _, h := range t.hookChain.Hooks() {
		if e, ok := h.(hooks.StartFailureExplainer); ok {
			if reason := e.ExplainStartFailure(); reason != "" {
				reasons = append(reasons, reason)
			}
		}
	}
	return strings.Join(reasons, "; ")
}

// interpolatedDeviceEnv returns the variables set by the devices hook for the reserved devices, interpolated.
func (t *taskHooks) interpolatedDeviceEnv(env *taskenv.Env) map[string]string {
	reserved := t.records.current().HookState(hooks.DevicesName).Env
	if len(reserved) == 0 {
		return nil
	}
	vars := make(map[string]string, len(reserved))
	for name, value := range reserved {
		vars[name] = env.ReplaceReferences(value)
	}
	return vars
}

// mergeHookMountsAndDevices returns the mounts and devices from all hook responses, in hook order. If several hooks use the same
// path in the task, the last one has precedence. It returns an error if a hook mounts a path and the driver does not support
// mounts.
func (t *taskHooks) mergeHookMountsAndDevices(mountsSupported bool) (mounts []driver.Mount, devices []driver.Device, err error) {
	for _, h := range t.hookChain.Hooks() {
		record := t.records.current().HookState(h.Name())
		switch {
		case mountsSupported || len(record.Mounts) == 0:
		case h.Name() == hooks.TaskDirName:
			record.Mounts = nil // without mounts, the task uses the task directory on the host directly
		case h.Name() == hooks.DevicesName:
			record.Mounts = nil // without mounts, the task sees the host's device files
		case h.Name() == hooks.VolumesName:
			return nil, nil, fmt.Errorf("task driver %q for %q does not support host volumes: remove its volume_mount blocks, or use another driver", t.requests.currentTask().Driver, t.records.taskName)
		default:
			return nil, nil, fmt.Errorf("task driver %q for %q does not support mounts: hook %q mounts %s, so detach the hook, or use another driver", t.requests.currentTask().Driver, t.records.taskName, h.Name(), record.Mounts[0].TaskPath)
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
