package driver

import (
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// ErrPluginDown means that the plugin process has gone. The caller asks the
// supervisor for another one, and recovers its task there.
var ErrPluginDown = base.ErrPluginDown

// UnavailableError means that no plugin process serves a driver at the moment. It
// says nothing about the driver's tasks, which may still run.
type UnavailableError struct {
	Plugin  string // the plugin that serves the driver; empty if no known plugin does
	Builtin bool   // whether Plugin is a builtin driver
	Err     error
	// Changed is closed when another request for the driver may have another result.
	// Nil means that the caller has to try again after a pause.
	Changed <-chan struct{}
}

func (e *UnavailableError) Error() string { return e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

// These errors cross the wire as their text, which is Nomad's, and are
// recognised by it on the other side.
var (
	// ErrTaskNotFound means that the driver does not know the task id.
	ErrTaskNotFound = errors.New("task not found for given id")

	// ErrStatsNotImplemented means that there is no point in asking again.
	ErrStatsNotImplemented = errors.New("stats not implemented for driver")

	// ErrChannelClosed means that the driver has given up an answer that it
	// owed: a fingerprint stream or the end of a task.
	ErrChannelClosed = errors.New("channel closed")
)

// What drivers answer to calls that they do not take part in. Users and the
// tests of drivers know the texts.
var (
	ErrSignalNotSupported         = errors.New("SignalTask is not supported by this driver")
	ErrExecNotSupported           = errors.New("ExecTask is not supported by this driver")
	ErrExecStreamingNotSupported  = errors.New("driver does not support exec")
	ErrCreateNetworkNotSupported  = errors.New("CreateNetwork RPC not supported by driver")
	ErrDestroyNetworkNotSupported = errors.New("DestroyNetwork RPC not supported by driver")
)

// Error is an error of StartTask, RecoverTask or TaskStats that says whether another
// try may help.
type Error struct {
	Err         error
	Recoverable bool
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// IsRecoverable reports whether err says that another try may help. A plain
// error does not.
func IsRecoverable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Recoverable
}

// Recoverable marks err as one that another try may heal; nil stays nil.
func Recoverable(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err, Recoverable: true}
}

// statusError is the status for an error that says by an Error whether another
// try may help. Every other error is one already: grpc sends its text.
func statusError(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	s, detailErr := status.New(codes.FailedPrecondition, err.Error()).
		WithDetails(&structspb.RecoverableError{Recoverable: e.Recoverable})
	if detailErr != nil {
		return err
	}
	return s.Err()
}

// remoteError is an error of the other side that is known here.
type remoteError struct {
	error       // as it came; users read it
	known error // one of the errors above
}

func (e *remoteError) Unwrap() []error { return []error{e.error, e.known} }

// known gives a plugin's error back the meaning that it lost on the wire.
func known(err error) error {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	for _, known := range []error{ErrTaskNotFound, ErrStatsNotImplemented, ErrChannelClosed} {
		if strings.Contains(s.Message(), known.Error()) {
			err = &remoteError{err, known}
			break
		}
	}
	// Only the first detail counts.
	if details := s.Details(); len(details) > 0 {
		if d, ok := details[0].(*structspb.RecoverableError); ok {
			err = &Error{Err: err, Recoverable: d.GetRecoverable()}
		}
	}
	return err
}
