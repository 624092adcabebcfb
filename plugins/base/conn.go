package base

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
)

// ErrPluginDown means that the plugin process has gone. The caller asks the
// supervisor for another one.
var ErrPluginDown = errors.New("plugin is shut down")

// exitGrace is how long the end of a process may come after that of its
// connection.
const exitGrace = 3 * time.Second

// Conn is a connection to one plugin process, for the clients of its services.
// It takes messages of any size, unless it is limited.
type Conn struct {
	conn    grpc.ClientConnInterface
	done    <-chan struct{}
	largest int // answer, in bytes
	options []grpc.CallOption
}

// NewConn makes a Conn; done is closed by whoever watches the process, when it
// has gone.
func NewConn(conn grpc.ClientConnInterface, done <-chan struct{}) *Conn {
	return limited(conn, done, math.MaxInt32)
}

// Done is closed when the process has gone.
func (c *Conn) Done() <-chan struct{} { return c.done }

// WithMaxRecvSize returns the connection for answers of at most so many bytes; a larger one
// is an error of its call.
func (c *Conn) WithMaxRecvSize(answer int) *Conn {
	return limited(c.conn, c.done, answer)
}

// Invoke makes a unary call.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.conn.Invoke(ctx, method, args, reply, append(opts, c.options...)...)
}

// NewStream starts a streaming call.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.conn.NewStream(ctx, desc, method, append(opts, c.options...)...)
}

// limited lets requests have any size.
func limited(conn grpc.ClientConnInterface, done <-chan struct{}, answer int) *Conn {
	return &Conn{conn: conn, done: done, largest: answer, options: []grpc.CallOption{grpc.MaxCallRecvMsgSize(answer), grpc.MaxCallSendMsgSize(math.MaxInt32)}}
}

// Err says what the error of a call under ctx means: ErrPluginDown when the
// plugin has gone, the error of ctx when the caller has ended the call, and
// otherwise what the plugin answered, as it is.
//
// A broken connection comes before the news of the process that held it, so Err
// may wait for that for a moment.
func (c *Conn) Err(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-c.done:
		return ErrPluginDown
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
				return context.DeadlineExceeded // the plugin's clock was ahead
			}
			return err // the plugin's own
		}
	case codes.ResourceExhausted:
		if strings.HasPrefix(ErrorMessage(err), "grpc: received message larger than max") {
			return fmt.Errorf("its answer has more than the %d bytes that are taken", c.largest)
		}
		return err
	default:
		return err
	}
	if c.PluginExited(ctx) || !c.alive() {
		return ErrPluginDown
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err // the plugin says so, of something behind it
}

// ErrorMessage is what an error says that has come over a connection, without what the
// library puts before it.
func ErrorMessage(err error) string {
	var remote interface {
		error
		GRPCStatus() *status.Status
	}
	text := err.Error()
	if !errors.As(err, &remote) || remote.GRPCStatus().Message() == "" {
		return text
	}
	// What wraps the error stays.
	return strings.Replace(text, remote.Error(), remote.GRPCStatus().Message(), 1)
}

// PluginExited waits for the end of the process for the moment in which it must come if
// it has caused what the caller has seen, and reports it.
func (c *Conn) PluginExited(ctx context.Context) bool {
	timer := time.NewTimer(exitGrace)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// alive reports whether the connection still stands.
func (c *Conn) alive() bool {
	conn, ok := c.conn.(interface{ GetState() connectivity.State })
	return ok && conn.GetState() == connectivity.Ready
}
