package driver

import (
	"errors"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// ErrPluginDown means that the plugin process has exited. The caller requests another
// process from the supervisor, and recovers its task there.
var ErrPluginDown = base.ErrPluginDown

// UnavailableError means that no plugin process serves a driver now. The driver's tasks
// may still run.
type UnavailableError struct {
	Plugin  string // plugin that serves the driver; empty if no known plugin does
	Builtin bool   // whether Plugin is a builtin driver
	Err     error
	// Changed is closed when another request for the driver may have another result. Nil
	// means that the caller must retry after a pause.
	Changed <-chan struct{}
}

func (e *UnavailableError) Error() string { return e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

// These errors are sent as text. The receiver recognizes them by their texts, which are the
// same as Nomad's.
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

// These errors are results of calls that a driver does not support. Their texts are the
// same as Nomad's: users and the tests of drivers rely on them.
var (
	ErrSignalNotSupported         = errors.New("SignalTask is not supported by this driver")
	ErrExecNotSupported           = errors.New("ExecTask is not supported by this driver")
	ErrExecStreamingNotSupported  = errors.New("driver does not support exec")
	ErrCreateNetworkNotSupported  = errors.New("CreateNetwork RPC not supported by driver")
	ErrDestroyNetworkNotSupported = errors.New("DestroyNetwork RPC not supported by driver")
)

// Error is an error of StartTask, RecoverTask or TaskStats that states whether a retry
// may succeed.
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

// Recoverable returns err marked as an error for which a retry may succeed; nil stays
// nil.
func Recoverable(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err, Recoverable: true}
}

// exhaustedDomain and exhaustedReason identify the second detail of a status, which stands for Error.ResourceExhausted. Nomad
// reads only the first detail.
const (
	exhaustedDomain = "nomad-lite"
	exhaustedReason = "RESOURCE_EXHAUSTED"
)

// statusError converts an Error to a gRPC status with its flags. It returns
// every other error unchanged: gRPC sends its text.
func statusError(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	details := []protoadapt.MessageV1{&structspb.RecoverableError{Recoverable: e.Recoverable}}
	if e.ResourceExhausted {
		details = append(details, &errdetails.ErrorInfo{Domain: exhaustedDomain, Reason: exhaustedReason})
	}
	s, detailErr := status.New(codes.FailedPrecondition, err.Error()).WithDetails(details...)
	if detailErr != nil {
		return err
	}
	return s.Err()
}

// remoteError is an error of the other process that wraps one of this package's error
// values.
type remoteError struct {
	error          // error: as received, with the text for users
	sentinel error // one of the errors above
}

func (e *remoteError) Unwrap() []error { return []error{e.error, e.sentinel} }

// restoreErrorType restores the type of a plugin's error, which is lost on the wire.
func restoreErrorType(err error) error {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	for _, known := range []error{ErrTaskNotFound, ErrStatsNotImplemented, ErrChannelClosed, ErrCreateNetworkNotSupported, ErrDestroyNetworkNotSupported} {
		if strings.Contains(s.Message(), known.Error()) {
			err = &remoteError{err, known}
			break
		}
	}
	// A RecoverableError is always the first detail.
	if details := s.Details(); len(details) > 0 {
		if d, ok := details[0].(*structspb.RecoverableError); ok {
			err = &Error{Err: err, Recoverable: d.GetRecoverable(), ResourceExhausted: slices.ContainsFunc(details[1:], isExhaustedDetail)}
		}
	}
	return err
}

func isExhaustedDetail(detail any) bool {
	info, ok := detail.(*errdetails.ErrorInfo)
	return ok && info.GetDomain() == exhaustedDomain && info.GetReason() == exhaustedReason
}
