package hookwire

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/hclspec/specwire"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/proto/hookpb"
)

// maxResponseSize is the maximum size of a plugin's response, in bytes. The limit protects the
// host's memory. The response of Prestart, which the host stores, has the lower limit of
// hook.TaskPrestartResponse.Validate.
const maxResponseSize = 4 << 20

// Client is the host's client of a hook plugin. It implements all hook points, also
// those that the plugin has not subscribed to: the caller checks the Description first.
// Its methods may be called concurrently; they block until the plugin responds, its
// process has exited (hook.ErrPluginDown) or ctx ends.
type Client struct {
	conn *basewire.Conn
	pb   hookpb.HookClient
}

var _ hook.Plugin = (*Client)(nil)

// NewClient returns a Client; processExited must be closed when the plugin process has exited.
func NewClient(conn grpc.ClientConnInterface, processExited <-chan struct{}) *Client {
	c := basewire.NewConn(conn, processExited).WithMaxRecvSize(maxResponseSize)
	return &Client{conn: c, pb: hookpb.NewHookClient(c)}
}

// Done returns a channel that is closed when the plugin process has exited.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Describe implements hook.Plugin. It omits hook points that this host does not have: a plugin can be built for a newer
// protocol.
func (c *Client) Describe(ctx context.Context) (*hook.Description, error) {
	p, err := c.pb.Describe(ctx, &hookpb.DescribeRequest{})
	if err != nil {
		return nil, c.conn.ConvertErr(ctx, err)
	}
	d := &hook.Description{AllAllocs: p.GetAllAllocs(), IncludeAllocJSON: p.GetIncludeAllocJson(), ReportsHealth: p.GetReportsHealth()}
	for _, part := range p.GetSubscriptions() {
		if point := hook.Point(part.GetPoint()); isKnownPoint(point) {
			d.Subscriptions = append(d.Subscriptions, hook.Subscription{Point: point, Timeout: max(part.GetTimeout().AsDuration(), 0)})
		}
	}
	if p.GetAttachmentSchema() != nil {
		if d.AttachmentSchema, err = specwire.FromProto(p.GetAttachmentSchema()); err != nil {
			return nil, fmt.Errorf("attachment schema: %w", err)
		}
	}
	return d, nil
}

// isKnownPoint reports whether p is a hook point of this version, and not one of a newer protocol.
func isKnownPoint(p hook.Point) bool {
	for known := range hook.AllPoints() {
		if known == p {
			return true
		}
	}
	return false
}

// Configure implements hook.Plugin. It returns nil if the plugin does not implement Configure: a hook that does not call
// hook.Host needs no configuration.
func (c *Client) Configure(ctx context.Context, config hook.Config) error {
	_, err := c.pb.Configure(ctx, &hookpb.ConfigureRequest{HostSocket: config.HostSocket, Node: nodeProto(config.Node)})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return c.conn.ConvertErr(ctx, err)
}

// pluginErrorFromStatus returns a gRPC error with the plugin's text only, without the prefix of the
// gRPC library. It returns other errors unchanged.
func pluginErrorFromStatus(err error) error {
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return &remoteError{err, basewire.ErrorMessageWithoutGRPCPrefix(err)}
	}
	return err
}

// failureResponse is the response message of any hook point. GetFailure returns the error of the hook, or nil.
type failureResponse interface{ GetFailure() *hookpb.Failure }

// invokePoint calls a hook point of the plugin. The error is that of the hook (Failure), or that of the call.
func invokePoint[Q any, A failureResponse](ctx context.Context, c *Client, call func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (A, error) {
	answer, err := call(ctx, request)
	if err != nil {
		return answer, pluginErrorFromStatus(c.conn.ConvertErr(ctx, err))
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

// Prerun implements hook.AllocPrerun.
func (c *Client) Prerun(ctx context.Context, r hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Prerun, allocRequestProto(r.RequestMeta, r.Alloc, r.Env))
}

// UpdateAlloc implements hook.AllocUpdate.
func (c *Client) UpdateAlloc(ctx context.Context, r hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, invokePointWithoutResponse(ctx, c, c.pb.UpdateAlloc, allocRequestProto(r.RequestMeta, r.Alloc, r.Env))
}

// PreTaskRestart implements hook.AllocPreTaskRestart.
func (c *Client) PreTaskRestart(ctx context.Context, r hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, invokePointWithoutResponse(ctx, c, c.pb.PreTaskRestart, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// PreKill implements hook.AllocPreKill.
func (c *Client) PreKill(ctx context.Context, r hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	return hook.AllocPreKillResponse{}, invokePointWithoutResponse(ctx, c, c.pb.PreKill, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// Postrun implements hook.AllocPostrun.
func (c *Client) Postrun(ctx context.Context, r hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Postrun, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// Destroy implements hook.AllocDestroy.
func (c *Client) Destroy(ctx context.Context, r hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Destroy, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// ShutdownAlloc implements hook.AllocShutdown.
func (c *Client) ShutdownAlloc(ctx context.Context, r hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	return hook.AllocShutdownResponse{}, invokePointWithoutResponse(ctx, c, c.pb.ShutdownAlloc, allocRequestProto(r.RequestMeta, r.Alloc, nil))
}

// Prestart implements hook.TaskPrestart. The State of the response is also set if the hook has returned an error.
func (c *Client) Prestart(ctx context.Context, r hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	answer, err := invokePoint(ctx, c, c.pb.Prestart, prestartRequestProto(r))
	if err != nil {
		return hook.TaskPrestartResponse{State: answer.GetState()}, err
	}
	return prestartResponseFromProto(answer), nil
}

// Poststart implements hook.TaskPoststart.
func (c *Client) Poststart(ctx context.Context, r hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Poststart, poststartRequestProto(r))
}

// Update implements hook.TaskUpdate.
func (c *Client) Update(ctx context.Context, r hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Update, taskRequestProto(r.RequestMeta, r.Alloc, r.Task, r.Env))
}

// PreKilling implements hook.TaskPreKilling.
func (c *Client) PreKilling(ctx context.Context, r hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, invokePointWithoutResponse(ctx, c, c.pb.PreKilling, preKillingRequestProto(r))
}

// Exited implements hook.TaskExited.
func (c *Client) Exited(ctx context.Context, r hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Exited, exitedRequestProto(r))
}

// Stop implements hook.TaskStop.
func (c *Client) Stop(ctx context.Context, r hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Stop, stopRequestProto(r))
}

// Shutdown implements hook.TaskShutdown.
func (c *Client) Shutdown(ctx context.Context, r hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	return hook.TaskShutdownResponse{}, invokePointWithoutResponse(ctx, c, c.pb.Shutdown, taskRequestProto(r.RequestMeta, r.Alloc, r.Task, nil))
}
