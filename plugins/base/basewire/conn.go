package basewire

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// maxExitDelay is the maximum delay between the end of a connection and the exit of its
// process.
const maxExitDelay = 3 * time.Second

// Conn is a connection to one plugin process, for the clients of its services. Messages
// may have any size, unless WithMaxRecvSize limits them.
type Conn struct {
	conn          grpc.ClientConnInterface
	processExited <-chan struct{} // closed when the plugin process has exited
	maxRecvBytes  int             // maximum size of a response, in bytes
	callOptions   []grpc.CallOption
}

// NewConn returns a Conn. The owner of the process closes processExited when the process has
// exited.
func NewConn(conn grpc.ClientConnInterface, processExited <-chan struct{}) *Conn {
	return newLimitedConn(conn, processExited, math.MaxInt32)
}

// Done returns a channel that is closed when the process has exited.
func (c *Conn) Done() <-chan struct{} { return c.processExited }

// WithMaxRecvSize returns the connection with a limit for responses, in bytes. A call
// with a larger response returns an error.
func (c *Conn) WithMaxRecvSize(maxRecvBytes int) *Conn {
	return newLimitedConn(c.conn, c.processExited, maxRecvBytes)
}

// Invoke makes a unary call.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.conn.Invoke(withTraceMetadata(ctx), method, args, reply, append(opts, c.callOptions...)...)
}

// NewStream starts a streaming call.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.conn.NewStream(withTraceMetadata(ctx), desc, method, append(opts, c.callOptions...)...)
}

// newLimitedConn returns a Conn that limits the size of responses. Requests may have any size.
func newLimitedConn(conn grpc.ClientConnInterface, processExited <-chan struct{}, maxRecvBytes int) *Conn {
	return &Conn{conn: conn, processExited: processExited, maxRecvBytes: maxRecvBytes, callOptions: []grpc.CallOption{grpc.MaxCallRecvMsgSize(maxRecvBytes), grpc.MaxCallSendMsgSize(math.MaxInt32)}}
}

// ConvertErr returns the error for the caller of a call that was made with ctx and has returned err:
// base.ErrPluginDown if the plugin has exited, the error of ctx if ctx has ended, an error with the limit if the
// response was too large, and otherwise err, the plugin's error, unchanged.
//
// A connection breaks shortly before the exit of its process is seen, so ConvertErr may block
// for up to maxExitDelay.
func (c *Conn) ConvertErr(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-c.processExited:
		return base.ErrPluginDown
	default:
	}
	switch status.Code(err) {
	case codes.Unavailable:
	case codes.Canceled, codes.DeadlineExceeded:
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if status.Code(err) == codes.DeadlineExceeded {
			if _, ok := ctx.Deadline(); ok {
				return context.DeadlineExceeded // the plugin's timer for the deadline of ctx fired first
			}
			return err // ctx has no deadline: an operation of the plugin timed out
		}
	case codes.ResourceExhausted:
		if strings.HasPrefix(ErrorMessageWithoutGRPCPrefix(err), "grpc: received message larger than max") {
			return fmt.Errorf("its answer has more than the %d bytes that are taken", c.maxRecvBytes)
		}
		return err
	default:
		return err
	}
	if c.ExitsWithinMaxDelay(ctx) || !c.isConnected() {
		return base.ErrPluginDown
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err // the plugin is connected: Unavailable describes a service that the plugin uses
}

// ErrorMessageWithoutGRPCPrefix returns the text of an error that a gRPC call has returned, without
// the prefix of the gRPC library.
func ErrorMessageWithoutGRPCPrefix(err error) string {
	var grpcErr interface {
		error
		GRPCStatus() *status.Status
	}
	text := err.Error()
	if !errors.As(err, &grpcErr) || grpcErr.GRPCStatus().Message() == "" {
		return text
	}
	// The error can wrap the gRPC error. Replace then keeps the text that the wrapping has added.
	return strings.Replace(text, grpcErr.Error(), grpcErr.GRPCStatus().Message(), 1)
}

// ExitsWithinMaxDelay reports whether the process has exited. It blocks for up to maxExitDelay,
// or until ctx ends, because the exit of a process can be seen later than the end of
// its connection.
func (c *Conn) ExitsWithinMaxDelay(ctx context.Context) bool {
	timer := time.NewTimer(maxExitDelay)
	defer timer.Stop()
	select {
	case <-c.processExited:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return wait.IsClosed(c.processExited)
}

// isConnected reports whether the connection is established.
func (c *Conn) isConnected() bool {
	conn, ok := c.conn.(interface{ GetState() connectivity.State })
	return ok && conn.GetState() == connectivity.Ready
}
