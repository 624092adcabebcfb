package hook

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/hclspec/specwire"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/hookpb"
)

// ErrPluginDown means that the plugin process has exited. The caller requests another
// process from the supervisor.
var ErrPluginDown = base.ErrPluginDown

// maxResponseSize is the maximum size of a plugin's response, in bytes. It protects the
// host's memory; responses that the host keeps have the lower limit maxStoredResponseSize.
const maxResponseSize = 4 * maxStoredResponseSize

// Client is the host's client of a hook plugin. It implements all hook points, also
// those that the plugin has not subscribed to: the caller checks the Description first.
// Its methods may be called concurrently; they block until the plugin responds, its
// process has exited (ErrPluginDown) or ctx ends.
type Client struct {
	conn *base.Conn
	pb   hookpb.HookClient
}

var _ Plugin = (*Client)(nil)

// NewClient returns a Client; done must be closed when the plugin process has exited.
func NewClient(conn grpc.ClientConnInterface, done <-chan struct{}) *Client {
	c := base.NewConn(conn, done).WithMaxRecvSize(maxResponseSize)
	return &Client{conn: c, pb: hookpb.NewHookClient(c)}
}

// Done returns a channel that is closed when the plugin process has exited.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Describe implements Plugin. It omits hook points that this version does not have:
// they belong to a newer protocol.
func (c *Client) Describe(ctx context.Context) (*Description, error) {
	p, err := c.pb.Describe(ctx, &hookpb.DescribeRequest{})
	if err != nil {
		return nil, c.conn.Err(ctx, err)
	}
	d := &Description{AllAllocs: p.GetAllAllocs(), IncludeAllocJSON: p.GetIncludeAllocJson(), ReportsHealth: p.GetReportsHealth()}
	for _, part := range p.GetSubscriptions() {
		if point := Point(part.GetPoint()); point.isKnown() {
			d.Subscriptions = append(d.Subscriptions, Subscription{Point: point, Timeout: max(part.GetTimeout().AsDuration(), 0)})
		}
	}
	if p.GetAttachmentSchema() != nil {
		if d.Schema, err = specwire.FromProto(p.GetAttachmentSchema()); err != nil {
			return nil, fmt.Errorf("attachment schema: %w", err)
		}
	}
	return d, nil
}

// Configure implements Plugin. A plugin that does not call the Host need not implement
// it.
func (c *Client) Configure(ctx context.Context, config Config) error {
	_, err := c.pb.Configure(ctx, &hookpb.ConfigureRequest{HostSocket: config.HostSocket, Node: nodeProto(config.Node)})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return c.conn.Err(ctx, err)
}

// pluginErrorFromStatus returns a gRPC error with the plugin's text only, without the prefix of the
// gRPC library. It returns other errors unchanged.
func pluginErrorFromStatus(err error) error {
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return &remoteError{err, base.ErrorMessage(err)}
	}
	return err
}

// failureResponse is the response of a hook point, which contains the Failure of the hook.
type failureResponse interface{ GetFailure() *hookpb.Failure }

// invokePoint makes one call, and returns its Failure or its error.
func invokePoint[Q any, A failureResponse](ctx context.Context, c *Client, call func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (A, error) {
	answer, err := call(ctx, request)
	if err != nil {
		return answer, pluginErrorFromStatus(c.conn.Err(ctx, err))
	}
	failure := answer.GetFailure()
	switch {
	case failure == nil:
		return answer, nil
	case failure.GetRecoverable():
		return answer, driver.Recoverable(errors.New(failure.GetMessage()))
	}
	return answer, errors.New(failure.GetMessage())
}

func invokePointWithoutResponse[Q any, A failureResponse](ctx context.Context, c *Client, call func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) error {
	_, err := invokePoint(ctx, c, call, request)
	return err
}

// Prerun implements AllocPrerun.
func (c *Client) Prerun(ctx context.Context, r AllocPrerunRequest) (AllocPrerunResponse, error) {
	return AllocPrerunResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Prerun, allocRequestProto(r.RequestMeta, r.Alloc, r.Env))
}

// UpdateAlloc implements AllocUpdate.
func (c *Client) UpdateAlloc(ctx context.Context, r AllocUpdateRequest) (AllocUpdateResponse, error) {
	return AllocUpdateResponse{}, invokePointWithoutResponse(ctx, c, c.pb.UpdateAlloc, allocRequestProto(r.RequestMeta, r.Alloc, r.Env))
}

// PreTaskRestart implements AllocPreTaskRestart.
func (c *Client) PreTaskRestart(ctx context.Context, r AllocPreTaskRestartRequest) (AllocPreTaskRestartResponse, error) {
	return AllocPreTaskRestartResponse{}, invokePointWithoutResponse(ctx, c, c.pb.PreTaskRestart, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// PreKill implements AllocPreKill.
func (c *Client) PreKill(ctx context.Context, r AllocPreKillRequest) (AllocPreKillResponse, error) {
	return AllocPreKillResponse{}, invokePointWithoutResponse(ctx, c, c.pb.PreKill, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// Postrun implements AllocPostrun.
func (c *Client) Postrun(ctx context.Context, r AllocPostrunRequest) (AllocPostrunResponse, error) {
	return AllocPostrunResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Postrun, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// Destroy implements AllocDestroy.
func (c *Client) Destroy(ctx context.Context, r AllocDestroyRequest) (AllocDestroyResponse, error) {
	return AllocDestroyResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Destroy, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// ShutdownAlloc implements AllocShutdown.
func (c *Client) ShutdownAlloc(ctx context.Context, r AllocShutdownRequest) (AllocShutdownResponse, error) {
	return AllocShutdownResponse{}, invokePointWithoutResponse(ctx, c, c.pb.ShutdownAlloc, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// Prestart implements TaskPrestart. The State of the response is valid with an error too.
func (c *Client) Prestart(ctx context.Context, r TaskPrestartRequest) (TaskPrestartResponse, error) {
	answer, err := invokePoint(ctx, c, c.pb.Prestart, prestartRequestProto(r))
	if err != nil {
		return TaskPrestartResponse{State: answer.GetState()}, err
	}
	return prestartResponseFromProto(answer), nil
}

// Poststart implements TaskPoststart.
func (c *Client) Poststart(ctx context.Context, r TaskPoststartRequest) (TaskPoststartResponse, error) {
	return TaskPoststartResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Poststart, poststartRequestProto(r))
}

// Update implements TaskUpdate.
func (c *Client) Update(ctx context.Context, r TaskUpdateRequest) (TaskUpdateResponse, error) {
	return TaskUpdateResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Update, taskRequestProto(r.RequestMeta, r.Alloc, r.Task, r.Env))
}

// PreKilling implements TaskPreKilling.
func (c *Client) PreKilling(ctx context.Context, r TaskPreKillingRequest) (TaskPreKillingResponse, error) {
	return TaskPreKillingResponse{}, invokePointWithoutResponse(ctx, c, c.pb.PreKilling, taskRequestProto(r.RequestMeta, r.Alloc, r.Task, nil))
}

// Exited implements TaskExited.
func (c *Client) Exited(ctx context.Context, r TaskExitedRequest) (TaskExitedResponse, error) {
	return TaskExitedResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Exited, exitedRequestProto(r))
}

// Stop implements TaskStop.
func (c *Client) Stop(ctx context.Context, r TaskStopRequest) (TaskStopResponse, error) {
	return TaskStopResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Stop, stopRequestProto(r))
}

// Shutdown implements TaskShutdown.
func (c *Client) Shutdown(ctx context.Context, r TaskShutdownRequest) (TaskShutdownResponse, error) {
	return TaskShutdownResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Shutdown, taskRequestProto(r.RequestMeta, r.Alloc, r.Task, nil))
}
