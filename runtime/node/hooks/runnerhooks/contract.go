package runnerhooks

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Hook is a hook of an allocation or a task, as its runner sees it. The hook also
// implements the interface of each hook point at which it is called, see [hook.Point].
// Builtin hooks embed [BuiltinHook]; pluginhooks.Hook is a hook in a plugin.
type Hook interface {
	hook.Hook

	// NoDeadline reports whether the runner sets no deadline for the calls of the hook:
	// the hook sets its own, or needs none.
	NoDeadline() bool

	// Attachment returns the configuration with which a job or the operator has attached
	// the hook, as JSON. It is empty for all other hooks.
	Attachment() string

	// ReportsHealth reports whether the allocation is healthy only when the hook has
	// reported it healthy.
	ReportsHealth() bool

	// VerbatimEnv reports whether the variables of the hook have user-written values,
	// which are not interpolated and override the variables of all other hooks.
	VerbatimEnv() bool

	// PluginExited returns a channel that is closed when the plugin process that last
	// received Poststart has exited, or when no plugin process could be called. It is
	// nil if Poststart need not be repeated for the next plugin process.
	PluginExited() <-chan struct{}

	// WaitPluginUp blocks until a process of the plugin is up, or returns the error of ctx.
	WaitPluginUp(ctx context.Context) error
}

// BuiltinHook implements the methods of Hook, except Name, for hooks that run in the agent.
type BuiltinHook struct{}

func (BuiltinHook) isBuiltinHook() {}

// IsBuiltin reports whether a hook runs in the agent, and not in a plugin.
func IsBuiltin(h Hook) bool {
	_, ok := h.(interface{ isBuiltinHook() })
	return ok
}

// NoDeadline implements Hook.
func (BuiltinHook) NoDeadline() bool { return false }

// Attachment implements Hook.
func (BuiltinHook) Attachment() string { return "" }

// ReportsHealth implements Hook.
func (BuiltinHook) ReportsHealth() bool { return false }

// VerbatimEnv implements Hook.
func (BuiltinHook) VerbatimEnv() bool { return false }

// PluginExited implements Hook.
func (BuiltinHook) PluginExited() <-chan struct{} { return nil }

// WaitPluginUp implements Hook.
func (BuiltinHook) WaitPluginUp(ctx context.Context) error { return ctx.Err() }

// UnavailableError is an error of the hook's plugin process and not of the request: a
// retry may succeed.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

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
