package driverwire

import (
	"errors"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// exhaustedDomain and exhaustedReason identify the second detail of a status, which stands for driver.Error.ResourceExhausted. Nomad
// reads only the first detail.
const (
	exhaustedDomain = "nomad-lite"
	exhaustedReason = "RESOURCE_EXHAUSTED"
)

// statusError converts an Error to a gRPC status with its flags. It returns
// every other error unchanged: gRPC sends its text.
func statusError(err error) error {
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

// remoteError is an error of the other process that wraps an error value of package driver.
type remoteError struct {
	error          // error: as received, with the text for users
	sentinel error // such as driver.ErrTaskNotFound
}

func (e *remoteError) Unwrap() []error { return []error{e.error, e.sentinel} }

// restoreErrorType restores the type of a plugin's error, which is lost on the wire.
func restoreErrorType(err error) error {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	for _, known := range []error{driver.ErrTaskNotFound, driver.ErrStatsNotImplemented, driver.ErrChannelClosed, driver.ErrCreateNetworkNotSupported, driver.ErrDestroyNetworkNotSupported} {
		if strings.Contains(s.Message(), known.Error()) {
			err = &remoteError{err, known}
			break
		}
	}
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
