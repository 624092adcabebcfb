package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// ErrPluginDown means that the plugin process has exited. The caller requests another
// process from the supervisor, and recovers its task there. For hosts only.
var ErrPluginDown = base.ErrPluginDown

// UnavailableError means that no plugin process serves a driver now. The driver's tasks
// may still run. For hosts only.
type UnavailableError struct {
	Plugin                string // plugin that serves the driver; empty if no known plugin does
	TasksAreHostProcesses bool   // Plugin is a builtin driver whose tasks are processes of this machine, which the agent can end
	NotLaunchedAgain      bool   // Plugin is launched again only if its file or its configuration changes
	Err                   error
	// RetryOnClose is closed when another request for the driver may have another result. Nil
	// means that the caller must retry after a pause.
	RetryOnClose <-chan struct{}
}

func (e *UnavailableError) Error() string { return e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

// WaitWhileUnavailable calls get until its error is not an [UnavailableError] of a known plugin, and returns the results of
// the last call. It makes a further call when the plugin may be available. It calls reportOnce with the first error after
// which it waits. If ctx ends during a wait, the error is that of get, and also wraps the cause. For hosts only.
func WaitWhileUnavailable[P any](ctx context.Context, get func(context.Context) (P, error), reportOnce func(error)) (P, error) {
	for reported := false; ; reported = true {
		p, err := get(ctx)
		unavailableErr, _ := errors.AsType[*UnavailableError](err)
		if unavailableErr == nil || unavailableErr.Plugin == "" || unavailableErr.RetryOnClose == nil {
			return p, err
		}
		if !reported {
			reportOnce(err)
		}
		select {
		case <-unavailableErr.RetryOnClose:
		case <-ctx.Done():
			return p, fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
	}
}

// The following errors are sent as text. The receiver recognizes each of them by its text, which is the
// same as Nomad's. For hosts only.
var (
	// ErrTaskNotFound means that the driver does not have a task with the id.
	ErrTaskNotFound = errors.New("task not found for given id")

	// ErrStatsNotImplemented means that the driver never has stats: further calls are
	// pointless.
	ErrStatsNotImplemented = errors.New("stats not implemented for driver")

	// ErrChannelClosed means that the driver has closed a fingerprint stream, or has
	// abandoned a WaitTask call, without a result.
	ErrChannelClosed = errors.New("channel closed")
)

// The following errors are results of calls that a driver does not support. Their texts are the
// same as Nomad's: users and the tests of drivers rely on them. For hosts only.
var (
	ErrSignalNotSupported         = errors.New("SignalTask is not supported by this driver")
	ErrExecNotSupported           = errors.New("ExecTask is not supported by this driver")
	ErrExecStreamingNotSupported  = errors.New("driver does not support exec")
	ErrCreateNetworkNotSupported  = errors.New("CreateNetwork RPC not supported by driver")
	ErrDestroyNetworkNotSupported = errors.New("DestroyNetwork RPC not supported by driver")
)

// Error is an error of StartTask, RecoverTask or TaskStats that states whether a retry
// may succeed. For hosts only.
type Error struct {
	Err         error
	Recoverable bool

	// ResourceExhausted means that StartTask found no free descriptor or process, and that nothing was executed: a
	// nomad-lite agent waits and repeats the call, and does not apply the restart policy. Other hosts ignore it. Only
	// drivers that are made with package sdk set it.
	ResourceExhausted bool
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// IsRecoverable reports whether err is an Error for which a retry may succeed. It is
// false for any other error.
func IsRecoverable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Recoverable
}

// IsResourceExhausted reports whether err is an Error with the field ResourceExhausted.
func IsResourceExhausted(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.ResourceExhausted
}

// Recoverable returns an Error that wraps err and means that a retry may succeed. If err is nil, it returns nil.
// For hosts only.
func Recoverable(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err, Recoverable: true}
}
