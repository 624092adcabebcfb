package hookwire

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/proto/hookpb"
)

// hostBackoff is the delay between attempts to connect to an agent: at most one second.
var hostBackoff = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// HostClient is a hook's client of the Host service.
type HostClient struct {
	resolver         *manual.Resolver
	socketGeneration atomic.Int64 // number of calls of SwitchAgentSocket
	conn             *grpc.ClientConn
	pb               hookpb.HostClient
}

var _ hook.Host = (*HostClient)(nil)

// DialHost returns a client of the service on a unix socket. It does not wait for a
// server on the socket. The caller must call Close.
func DialHost(socketPath string) (*HostClient, error) {
	c := &HostClient{resolver: manual.NewBuilderWithScheme("agent")}
	c.SwitchAgentSocket(socketPath)
	conn, err := grpc.NewClient("agent:///host",
		grpc.WithResolvers(c.resolver),
		grpc.WithContextDialer(func(ctx context.Context, socket string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// While the agent is upgraded, no server listens on the socket.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: hostBackoff, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	)
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", socketPath, err)
	}
	c.conn, c.pb = conn, hookpb.NewHostClient(conn)
	return c, nil
}

// socketGenerationKey is the key of the attribute of a gRPC address that makes the addresses of two agents with one
// socket differ.
type socketGenerationKey struct{}

// SwitchAgentSocket sets the socket of the agent that has replaced the current agent; both can have the same socket. No
// call that starts after SwitchAgentSocket uses the connection to the earlier agent. Calls in flight continue on that
// connection.
func (c *HostClient) SwitchAgentSocket(socketPath string) {
	// gRPC notices the end of a connection after some time, and until then a call on that connection fails with
	// hook.ErrHostUnavailable. With another address, gRPC immediately stops to use the connection.
	address := resolver.Address{Addr: socketPath, Attributes: attributes.New(socketGenerationKey{}, c.socketGeneration.Add(1))}
	c.resolver.UpdateState(resolver.State{Addresses: []resolver.Address{address}})
}

// Close closes the connection, and ends the calls in flight.
func (c *HostClient) Close() error { return c.conn.Close() }

// remoteError has the text that the host has sent, and wraps an error value of package
// hook.
type remoteError struct {
	sentinel error
	message  string
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.sentinel }

// hostErrorFromStatus converts the gRPC error of a call to the error of package hook that the host has returned, because
// gRPC sends only a status code and a text.
func hostErrorFromStatus(ctx context.Context, err error) error {
	s, ok := status.FromError(err)
	switch {
	case err == nil || !ok:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case s.Code() == codes.PermissionDenied:
		return &remoteError{hook.ErrPermissionDenied, s.Message()}
	case s.Code() == codes.NotFound:
		return &remoteError{hook.ErrTaskNotRunning, s.Message()}
	case s.Code() == codes.DeadlineExceeded:
		return context.DeadlineExceeded // the deadline of the request or Exec's timeout has expired
	case s.Code() == codes.Unavailable:
		return hook.ErrHostUnavailable
	case s.Code() == codes.Unimplemented:
		return fmt.Errorf("the agent is too old for that: %s", s.Message())
	case s.Code() == codes.Unknown:
		return errors.New(s.Message())
	}
	return err
}

// retryWhileUnavailable repeats an idempotent call as long as its result is hook.ErrHostUnavailable.
func retryWhileUnavailable[Q, A any](ctx context.Context, call func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (A, error) {
	for {
		answer, err := call(ctx, request)
		if err = hostErrorFromStatus(ctx, err); !errors.Is(err, hook.ErrHostUnavailable) {
			return answer, err
		}
	}
}

// Exec implements hook.Host.
func (c *HostClient) Exec(ctx context.Context, s hook.Scope, req hook.ExecRequest) (*driver.ExecResult, error) {
	request := &hookpb.ExecRequest{Token: s.Token, Task: s.Task, Command: req.Command}
	if req.Timeout > 0 {
		request.Timeout = durationpb.New(req.Timeout)
	}
	p, err := c.pb.Exec(ctx, request)
	if err != nil {
		return nil, hostErrorFromStatus(ctx, err)
	}
	return &driver.ExecResult{
		Stdout: p.GetStdout(), Stderr: p.GetStderr(),
		Exit: driver.ExitResult{ExitCode: int(p.GetExitCode()), Signal: int(p.GetSignal())},
	}, nil
}

// Stats implements hook.Host.
func (c *HostClient) Stats(ctx context.Context, s hook.Scope, interval time.Duration) (<-chan hook.Usage, error) {
	request := &hookpb.StatsRequest{Token: s.Token, Task: s.Task}
	if interval > 0 {
		request.Interval = durationpb.New(interval)
	}
	stream, p, err := c.openStatsStream(ctx, request)
	if err != nil {
		return nil, err
	}
	samples := make(chan hook.Usage)
	go func() {
		defer close(samples)
		for err == nil {
			select {
			case samples <- usageFromProto(p):
			case <-ctx.Done():
				return
			}
			if p, err = stream.Recv(); errors.Is(hostErrorFromStatus(ctx, err), hook.ErrHostUnavailable) {
				stream, p, err = c.openStatsStream(ctx, request)
			}
		}
	}()
	return samples, nil
}

// openStatsStream opens a stream and waits for the first sample, because gRPC returns the error of the call only then.
func (c *HostClient) openStatsStream(ctx context.Context, request *hookpb.StatsRequest) (stream grpc.ServerStreamingClient[hookpb.StatsSample], first *hookpb.StatsSample, err error) {
	first, err = retryWhileUnavailable(ctx, func(ctx context.Context, request *hookpb.StatsRequest, _ ...grpc.CallOption) (*hookpb.StatsSample, error) {
		if stream, err = c.pb.Stats(ctx, request); err != nil {
			return nil, err
		}
		return stream.Recv()
	}, request)
	return stream, first, err
}

// State implements hook.Host.
func (c *HostClient) State(ctx context.Context, s hook.Scope) (*hook.AllocState, error) {
	p, err := retryWhileUnavailable(ctx, c.pb.State, &hookpb.StateRequest{Token: s.Token})
	if err != nil {
		return nil, err
	}
	state := &hook.AllocState{
		ClientStatus: p.GetClientStatus(), ClientDescription: p.GetClientDescription(), DesiredStatus: p.GetDesiredStatus(),
		Tasks: make(map[string]hook.TaskState, len(p.GetTasks())),
	}
	for name, t := range p.GetTasks() {
		state.Tasks[name] = taskStateFromProto(t)
	}
	return state, nil
}

// Interpolate implements hook.Host.
func (c *HostClient) Interpolate(ctx context.Context, s hook.Scope, text string) (string, error) {
	p, err := retryWhileUnavailable(ctx, c.pb.Interpolate, &hookpb.InterpolateRequest{Token: s.Token, Task: s.Task, Text: text})
	return p.GetText(), err
}

// EmitEvent implements hook.Host.
func (c *HostClient) EmitEvent(ctx context.Context, s hook.Scope, event hook.Event) error {
	request := &hookpb.EmitEventRequest{Token: s.Token, Task: s.Task, Type: event.Type, Message: sanitizeUTF8(event.Message), OperationId: sanitizeUTF8(event.OperationID), Ongoing: event.Ongoing}
	for key, detail := range event.Details {
		if request.Details == nil {
			request.Details = make(map[string]string, len(event.Details))
		}
		request.Details[key] = sanitizeUTF8(detail)
	}
	_, err := c.pb.EmitEvent(ctx, request)
	return hostErrorFromStatus(ctx, err)
}

// Restart implements hook.Host.
func (c *HostClient) Restart(ctx context.Context, s hook.Scope, req hook.RestartRequest) error {
	_, err := c.pb.Restart(ctx, &hookpb.RestartRequest{Token: s.Token, Task: s.Task, Reason: sanitizeUTF8(req.Reason), Failure: req.CountAsFailure})
	return hostErrorFromStatus(ctx, err)
}

// Signal implements hook.Host.
func (c *HostClient) Signal(ctx context.Context, s hook.Scope, req hook.SignalRequest) error {
	_, err := c.pb.Signal(ctx, &hookpb.SignalRequest{Token: s.Token, Task: s.Task, Signal: req.Signal, Reason: sanitizeUTF8(req.Reason)})
	return hostErrorFromStatus(ctx, err)
}

// Kill implements hook.Host.
func (c *HostClient) Kill(ctx context.Context, s hook.Scope, req hook.KillRequest) error {
	_, err := c.pb.Kill(ctx, &hookpb.KillRequest{Token: s.Token, Task: s.Task, Reason: sanitizeUTF8(req.Reason)})
	return hostErrorFromStatus(ctx, err)
}

// SetHealth implements hook.Host.
func (c *HostClient) SetHealth(ctx context.Context, s hook.Scope, req hook.SetHealthRequest) error {
	_, err := retryWhileUnavailable(ctx, c.pb.SetHealth, &hookpb.SetHealthRequest{Token: s.Token, Task: s.Task, Healthy: req.Healthy, Reason: sanitizeUTF8(req.Reason)})
	return err
}

// StoreState implements hook.Host.
func (c *HostClient) StoreState(ctx context.Context, s hook.Scope, state map[string]string) error {
	_, err := retryWhileUnavailable(ctx, c.pb.StoreState, &hookpb.StoreStateRequest{Token: s.Token, Task: s.Task, State: state})
	return err
}

// Variable implements hook.Host.
func (c *HostClient) Variable(ctx context.Context, s hook.Scope, req hook.VariableRequest) (hook.VariableResponse, error) {
	p, err := retryWhileUnavailable(ctx, c.pb.Variable, &hookpb.VariableRequest{Token: s.Token, Path: req.Path, Namespace: req.Namespace, After: req.AfterIndex})
	response := hook.VariableResponse{Metadata: variableMetadataFromProto(p.GetMetadata()), Index: p.GetIndex()}
	if err != nil || !p.GetFound() {
		return response, err
	}
	response.Items = p.GetItems()
	if response.Items == nil {
		response.Items = map[string]string{}
	}
	return response, nil
}

// Variables implements hook.Host.
func (c *HostClient) Variables(ctx context.Context, s hook.Scope, req hook.VariablesRequest) (hook.VariablesResponse, error) {
	p, err := retryWhileUnavailable(ctx, c.pb.Variables, &hookpb.VariablesRequest{Token: s.Token, Prefix: req.Prefix, Namespace: req.Namespace, After: req.AfterIndex})
	response := hook.VariablesResponse{Paths: p.GetPaths(), Index: p.GetIndex()}
	for _, v := range p.GetVariables() {
		response.Variables = append(response.Variables, variableMetadataFromProto(v))
	}
	return response, err
}

func variableMetadataFromProto(p *hookpb.VariableMetadata) hook.VariableMetadata {
	return hook.VariableMetadata{
		Namespace: p.GetNamespace(), Path: p.GetPath(), CreateIndex: p.GetCreateIndex(), ModifyIndex: p.GetModifyIndex(),
		CreateTime: timeFromProto(p.GetCreateTime()), ModifyTime: timeFromProto(p.GetModifyTime()),
	}
}

// Services implements hook.Host.
func (c *HostClient) Services(ctx context.Context, s hook.Scope, req hook.ServicesRequest) (hook.ServicesResponse, error) {
	p, err := retryWhileUnavailable(ctx, c.pb.Services, &hookpb.ServicesRequest{Token: s.Token, Name: req.Name, InPlaceOfConsul: req.InPlaceOfConsul, After: req.AfterIndex})
	if err != nil {
		return hook.ServicesResponse{}, err
	}
	instances := make([]hook.Service, 0, len(p.GetInstances()))
	for _, i := range p.GetInstances() {
		instances = append(instances, hook.Service{
			ID: i.GetId(), Name: i.GetName(), Address: i.GetAddress(), Port: int(i.GetPort()), Tags: i.GetTags(), AllocID: i.GetAllocId(),
			NodeID: i.GetNodeId(), Datacenter: i.GetDatacenter(), JobID: i.GetJobId(), Status: i.GetStatus(),
		})
	}
	return hook.ServicesResponse{Services: instances, NoConsul: p.GetNoConsul(), Index: p.GetIndex()}, nil
}

func usageFromProto(p *hookpb.StatsSample) hook.Usage {
	return hook.Usage{
		Time: timeFromProto(p.GetTime()), CPUPercent: p.GetCpuPercent(), CPUMHz: p.GetCpuMhz(),
		MemoryRSS: p.GetMemoryRss(), MemoryUsage: p.GetMemoryUsage(),
	}
}

func taskStateFromProto(p *hookpb.TaskState) hook.TaskState {
	t := hook.TaskState{
		State: p.GetState(), Failed: p.GetFailed(), Restarts: p.GetRestarts(),
		StartedAt: timeFromProto(p.GetStartedAt()), FinishedAt: timeFromProto(p.GetFinishedAt()),
	}
	for _, e := range p.GetEvents() {
		t.Events = append(t.Events, hook.Event{Type: e.GetType(), Time: timeFromProto(e.GetTime()), Message: e.GetMessage(), Details: e.GetDetails(), OperationID: e.GetOperationId(), Ongoing: e.GetOngoing()})
	}
	return t
}

// timeFromProto returns the zero time for an absent timestamp.
func timeFromProto(p *timestamppb.Timestamp) time.Time {
	if p == nil {
		return time.Time{}
	}
	return p.AsTime()
}
