package hooks

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Hook is an allocation's or a task's hook, as its runner sees it. The hook also implements the interface for each
// of its hook points, such as hook.TaskPrestart. Builtin hooks embed [BuiltinHookDefaults]; pluginhooks.Hook is a
// hook in a plugin.
//
// A hook must not change the maps and slices in a request, because its caller still uses them: for example, a hook
// in the agent does not get a copy of Env.
type Hook interface {
	// Name returns a name unique among the hooks on its allocation or task. Users see the name in events, and the hook's
	// state is stored under it.
	Name() string

	// NoDeadline reports whether the runner sets no deadline for the hook's calls: the hook sets
	// its own, or needs none.
	NoDeadline() bool

	// AttachmentJSON returns, as JSON, the configuration by which a job or the operator attached
	// the hook. It is empty for all other hooks.
	AttachmentJSON() string

	// ReportsHealth reports whether the allocation is healthy only when the hook has reported its
	// task or allocation healthy.
	ReportsHealth() bool

	// EnvIsVerbatimAndOverrides reports whether the hook's variables have user-written values,
	// which are not interpolated and override the variables from all other hooks.
	EnvIsVerbatimAndOverrides() bool

	// PoststartPluginExited returns a channel that is closed when the last plugin process to
	// receive Poststart has exited, or when no plugin process could be called. It is nil if
	// Poststart need not be repeated for the next plugin process.
	PoststartPluginExited() <-chan struct{}

	// WaitPluginUp blocks until a plugin process is up, or returns ctx's error.
	WaitPluginUp(ctx context.Context) error
}

// A StartFailureExplainer is a hook that may know why a task start has failed, although the hook itself was done
// before.
type StartFailureExplainer interface {
	// ExplainStartFailure returns the reason, which the restart policy uses to decide about the next start, or "". It
	// does not block.
	ExplainStartFailure() string
}

// BuiltinHookDefaults implements the methods of Hook, except Name, for hooks that run in the agent.
type BuiltinHookDefaults struct{}

func (BuiltinHookDefaults) isBuiltinHook() {}

// IsBuiltin reports whether a hook runs in the agent, and not in a plugin.
func IsBuiltin(h Hook) bool {
	_, ok := h.(interface{ isBuiltinHook() })
	return ok
}

// NoDeadline implements Hook.
func (BuiltinHookDefaults) NoDeadline() bool { return false }

// AttachmentJSON implements Hook.
func (BuiltinHookDefaults) AttachmentJSON() string { return "" }

// ReportsHealth implements Hook.
func (BuiltinHookDefaults) ReportsHealth() bool { return false }

// EnvIsVerbatimAndOverrides implements Hook.
func (BuiltinHookDefaults) EnvIsVerbatimAndOverrides() bool { return false }

// PoststartPluginExited implements Hook.
func (BuiltinHookDefaults) PoststartPluginExited() <-chan struct{} { return nil }

// WaitPluginUp implements Hook.
func (BuiltinHookDefaults) WaitPluginUp(ctx context.Context) error { return ctx.Err() }

// PluginUnavailableError is an error from the hook's plugin process, not from the request: a retry
// may succeed.
type PluginUnavailableError struct{ Err error }

func (e *PluginUnavailableError) Error() string { return e.Err.Error() }

func (e *PluginUnavailableError) Unwrap() error { return e.Err }

// EventError is an error with the task event to report it.
type EventError struct {
	Err   error
	Event *api.TaskEvent
}

func (e *EventError) Error() string { return e.Err.Error() }

func (e *EventError) Unwrap() error { return e.Err }

// hookFailureEvent returns the task event for a hook's error.
func hookFailureEvent(h Hook, err error) *api.TaskEvent {
	var eventErr *EventError
	if errors.As(err, &eventErr) {
		return eventErr.Event
	}
	return model.EventHookFailed(h.Name(), err.Error())
}
