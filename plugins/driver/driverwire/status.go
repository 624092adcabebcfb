package driverwire

import (
	"errors"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// exhaustedDomain and exhaustedReason identify the second detail of a gRPC status, whose presence means that
// driver.Error.ResourceExhausted is true. Nomad reads only the first detail.
const (
	exhaustedDomain = "nomad-lite"
	exhaustedReason = "RESOURCE_EXHAUSTED"
)

// statusFromDriverError converts a driver.Error to a gRPC status with the fields Recoverable and ResourceExhausted.
// It returns every other error unchanged: gRPC sends the text of the error.
func statusFromDriverError(err error) error {
	var e *driver.Error
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

// remoteError is an error that the plugin has sent, and wraps the error value of package driver that its text contains.
type remoteError struct {
	received error // with a gRPC status
	sentinel error // error value of package driver, such as driver.ErrTaskNotFound; nil if the text contains none
}

// Error returns the text of the plugin, without the prefix of the gRPC library.
func (e *remoteError) Error() string { return basewire.ErrorMessageWithoutGRPCPrefix(e.received) }

func (e *remoteError) Unwrap() []error {
	if e.sentinel == nil {
		return []error{e.received}
	}
	return []error{e.received, e.sentinel}
}

// restoreErrorType converts a received gRPC error to the error type or value of package driver that the plugin has sent.
func restoreErrorType(err error) error {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	remote := &remoteError{received: err}
	for _, known := range []error{driver.ErrTaskNotFound, driver.ErrStatsNotImplemented, driver.ErrChannelClosed, driver.ErrCreateNetworkNotSupported, driver.ErrDestroyNetworkNotSupported} {
		if strings.Contains(s.Message(), known.Error()) {
			remote.sentinel = known
			break
		}
	}
	err = remote
	// A RecoverableError is always the first detail.
	if details := s.Details(); len(details) > 0 {
		if d, ok := details[0].(*structspb.RecoverableError); ok {
			err = &driver.Error{Err: err, Recoverable: d.GetRecoverable(), ResourceExhausted: slices.ContainsFunc(details[1:], isExhaustedDetail)}
		}
	}
	return err
}

func isExhaustedDetail(detail any) bool {
	info, ok := detail.(*errdetails.ErrorInfo)
	return ok && info.GetDomain() == exhaustedDomain && info.GetReason() == exhaustedReason
}
