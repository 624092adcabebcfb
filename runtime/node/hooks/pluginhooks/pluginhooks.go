package pluginhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// allHookPoints has the methods for all hook points.
type allHookPoints interface {
	hook.AllocPrerun
	hook.AllocUpdate
	hook.AllocPreTaskRestart
	hook.AllocPreKill
	hook.AllocPostrun
	hook.AllocDestroy
	hook.AllocShutdown
	hook.TaskPrestart
	hook.TaskPoststart
	hook.TaskUpdate
	hook.TaskPreKilling
	hook.TaskExited
	hook.TaskStop
	hook.TaskShutdown
}

var (
	_ hooks.Hook    = (*Hook)(nil)
	_ allHookPoints = (*Hook)(nil)
)

// Hook is a hook plugin attached to one allocation or one task. It applies its own deadlines, restarts a dead plugin and repeats
// the call. For a plugin failure it follows the operator's rule.
type Hook struct {
	name             string
	rule             OperatorRule
	attachment       attachment
	builtinBlockHook *builtinBlockHook                // builtin hook attached by the task's blocks; nil for other hooks
	cleanupOnly      bool                             // the hook is no longer attached, and only called to clean up
	description      atomic.Pointer[hook.Description] // nil until the plugin has been launched
	target           hooks.AttachTarget
	hookSet          *HookPluginSet
	logger           hclog.Logger

	mu           sync.Mutex
	pluginExited <-chan struct{} // result of PoststartPluginExited
}

// Name implements hooks.Hook.
func (h *Hook) Name() string { return h.name }

// NoDeadline implements hooks.Hook: a Hook applies its own deadlines.
func (*Hook) NoDeadline() bool { return true }

// ReportsHealth implements hooks.Hook. It is false until the plugin has been launched. A hook for tasks reports for each task,
// and not for the allocation.
func (h *Hook) ReportsHealth() bool {
	d := h.description.Load()
	if d == nil || !d.ReportsHealth || !h.isAttached(d) || h.cleanupOnly {
		return false
	}
	calledForTasks := slices.ContainsFunc(d.Subscriptions, func(s hook.Subscription) bool { return s.Point.IsTask() })
	return calledForTasks == (h.target.TaskName != "")
}

// EnvIsVerbatimAndOverrides implements hooks.Hook.
func (h *Hook) EnvIsVerbatimAndOverrides() bool {
	return h.builtinBlockHook != nil && h.builtinBlockHook.verbatimEnv
}

// AttachmentJSON implements hooks.Hook: it returns the job's attachment, merged with the operator's configuration.
func (h *Hook) AttachmentJSON() string {
	if h.attachment.builtinBlocksJSON != nil {
		return ""
	}
	config, err := h.attachment.mergeOperatorConfig(h.rule.Config)
	if err != nil {
		return h.attachment.jobAttachmentJSON
	}
	text, err := json.Marshal(config)
	if err != nil {
		return h.attachment.jobAttachmentJSON
	}
	return string(text)
}

// cleanupPoints are the hook points where a detached hook is called.
var cleanupPoints = map[hook.Point]bool{hook.PreKill: true, hook.PreKilling: true, hook.Exited: true, hook.Stop: true, hook.Postrun: true, hook.Destroy: true}

// isCalledAt reports whether a hook with this description is called at a hook point.
func (h *Hook) isCalledAt(d *hook.Description, point hook.Point) bool {
	_, subscribed := d.Subscription(point)
	return subscribed && h.isAttached(d)
}

// isAttached reports whether a hook with this description is attached to the target.
func (h *Hook) isAttached(d *hook.Description) bool {
	return h.attachment.isExplicit || d.AllAllocs && h.rule.Match == nil
}

// callHookPoint calls the plugin at a hook point. The error names the hook point and decides how
// the allocation or the task continues.
func (h *Hook) callHookPoint(ctx context.Context, point hook.Point, f callPluginFunc) error {
	return h.applyOnErrorRule(ctx, point, h.callWithRetries(ctx, point, f))
}

// callCleanupHookPoint is callHookPoint for a cleanup hook point. A failed cleanup is retried later.
func (h *Hook) callCleanupHookPoint(ctx context.Context, d state.PendingCleanup) error {
	err := h.callWithRetries(ctx, d.Point, newCleanupCall(&d))
	if err != nil && ctx.Err() == nil {
		err = h.enqueueCleanup(d, err)
	}
	return h.applyOnErrorRule(ctx, d.Point, err)
}

// applyOnErrorRule applies the rule's on_error to an error from callWithRetries, and returns the error for the runner. It returns
// err itself if ctx is done.
func (h *Hook) applyOnErrorRule(ctx context.Context, point hook.Point, err error) error {
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case point == hook.Destroy: // Destroy emits no event, because the allocation has no tasks left
		h.logger.Warn("hook failed", "hook", h.name, "hook_point", point, "error", err)
		return nil
	}
	h.logger.Info("hook failed", "hook", h.name, "hook_point", point, "error", err) // users see the event
	retryable := errors.As(err, new(*hooks.PluginUnavailableError))
	cause := err
	err = fmt.Errorf("%s: %w", point, err)
	switch {
	case h.rule.WarnOnError:
		h.target.EmitEvent(model.EventHookFailed(h.name, err.Error()+" (on_error is warn)"))
		return nil
	case point == hook.Prestart && h.builtinBlockHook != nil && h.builtinBlockHook.failureEvent != nil:
		if retryable {
			cause = driver.Recoverable(cause)
		}
		return &hooks.EventError{Err: cause, Event: h.builtinBlockHook.failureEvent(cause)}
	case point == hook.Prestart && retryable:
		return driver.Recoverable(err)
	case !point.IsTask() && point != hook.Prerun:
		h.target.EmitEvent(model.EventHookFailed(h.name, err.Error()))
	}
	return err
}
