package hooks

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Hook is a hook of an allocation or a task, as its runner sees it. The hook also
// implements the interface of each hook point at which it is called, such as hook.TaskPrestart.
// Builtin hooks embed [BuiltinHookDefaults]; pluginhooks.Hook is a hook in a plugin.
//
// A hook must not change the maps and slices in a request, because its caller still uses them: for example, a hook
// in the agent does not get a copy of Env.
type Hook interface {
	// Name returns a name that is unique among the hooks of its allocation or task. Users see the name in events, and the
	// state of the hook is stored under it.
	Name() string

	// NoDeadline reports whether the runner sets no deadline for the calls of the hook:
	// the hook sets its own, or needs none.
	NoDeadline() bool

	// AttachmentJSON returns the configuration with which a job or the operator has attached
	// the hook, as JSON. It is empty for all other hooks.
	AttachmentJSON() string

	// ReportsHealth reports whether the allocation is healthy only when the hook has
	// reported the task or the allocation healthy that it is attached to.
	ReportsHealth() bool

	// EnvIsVerbatimAndOverrides reports whether the variables of the hook have user-written values,
	// which are not interpolated and override the variables of all other hooks.
	EnvIsVerbatimAndOverrides() bool

	// PoststartPluginExited returns a channel that is closed when the plugin process that last
	// received Poststart has exited, or when no plugin process could be called. It is
	// nil if Poststart need not be repeated for the next plugin process.
	PoststartPluginExited() <-chan struct{}

	// WaitPluginUp blocks until a process of the plugin is up, or returns the error of ctx.
	WaitPluginUp(ctx context.Context) error
}

// A StartFailureExplainer is a hook that can know why a start of the task has failed, although the hook itself was done before.
type StartFailureExplainer interface {
	// ExplainStartFailure returns the reason, with which the restart policy decides about the next start, or "". It does
	// not block.
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

// PluginUnavailableError is an error of the hook's plugin process and not of the request: a
// retry may succeed.
type PluginUnavailableError struct{ Err error }

func (e *PluginUnavailableError) Error() string { return e.Err.Error() }

func (e *PluginUnavailableError) Unwrap() error { return e.Err }

// EventError is an error with the task event that reports it.
type EventError struct {
	Err   error
	Event *api.TaskEvent
}

func (e *EventError) Error() string { return e.Err.Error() }

func (e *EventError) Unwrap() error { return e.Err }

// hookFailureEvent returns the task event that reports the error of a hook.
func hookFailureEvent(h Hook, err error) *api.TaskEvent {
	var eventErr *EventError
	if errors.As(err, &eventErr) {
		return eventErr.Event
	}
	return model.EventHookFailed(h.Name(), err.Error())
}
