package hookwire

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/proto/hookpb"
)

// RegisterHost registers the agent's server of the Host service on s.
func RegisterHost(s grpc.ServiceRegistrar, impl hook.Host) {
	hookpb.RegisterHostServer(s, &hostServer{impl: impl})
}

type hostServer struct {
	hookpb.UnimplementedHostServer
	impl hook.Host
}

// statusFromHostError converts an error of a Host to a gRPC status.
func statusFromHostError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, hook.ErrPermissionDenied):
		return status.Error(codes.PermissionDenied, err.Error())
	case errors.Is(err, hook.ErrTaskNotRunning):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unknown, basewire.ErrorMessageWithoutGRPCPrefix(err))
}

// scopeFromProto returns the Scope of a request.
func scopeFromProto(r interface {
	GetToken() string
	GetTask() string
}) hook.Scope {
	return hook.Scope{Token: r.GetToken(), Task: r.GetTask()}
}

func (s *hostServer) Exec(ctx context.Context, r *hookpb.ExecRequest) (*hookpb.ExecResponse, error) {
	result, err := s.impl.Exec(ctx, scopeFromProto(r), hook.ExecRequest{Command: r.GetCommand(), Timeout: r.GetTimeout().AsDuration()})
	if err == nil {
		err = result.Exit.Err
	}
	if err != nil {
		return nil, statusFromHostError(err)
	}
	return &hookpb.ExecResponse{
		Stdout: result.Stdout, Stderr: result.Stderr, ExitCode: int32(result.Exit.ExitCode), Signal: int32(result.Exit.Signal),
	}, nil
}

func (s *hostServer) Stats(r *hookpb.StatsRequest, stream grpc.ServerStreamingServer[hookpb.StatsSample]) error {
	samples, err := s.impl.Stats(stream.Context(), scopeFromProto(r), r.GetInterval().AsDuration())
	if err != nil {
		return statusFromHostError(err)
	}
	for {
		select {
		case u, ok := <-samples:
			if !ok {
				return nil
			}
			err := stream.Send(&hookpb.StatsSample{
				Time: timestamppb.New(u.Time), CpuPercent: u.CPUPercent, CpuMhz: u.CPUMHz, MemoryRss: u.MemoryRSS, MemoryUsage: u.MemoryUsage,
			})
			if err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (s *hostServer) State(ctx context.Context, r *hookpb.StateRequest) (*hookpb.AllocState, error) {
	state, err := s.impl.State(ctx, hook.Scope{Token: r.GetToken()})
	if err != nil {
		return nil, statusFromHostError(err)
	}
	p := &hookpb.AllocState{
		ClientStatus: state.ClientStatus, ClientDescription: state.ClientDescription, DesiredStatus: state.DesiredStatus,
		Tasks: make(map[string]*hookpb.TaskState, len(state.Tasks)),
	}
	for name, t := range state.Tasks {
		p.Tasks[name] = taskStateProto(t)
	}
	return p, nil
}

func (s *hostServer) Interpolate(ctx context.Context, r *hookpb.InterpolateRequest) (*hookpb.InterpolateResponse, error) {
	text, err := s.impl.Interpolate(ctx, scopeFromProto(r), r.GetText())
	if err != nil {
		return nil, statusFromHostError(err)
	}
	return &hookpb.InterpolateResponse{Text: text}, nil
}

// doneResponse returns the response of a call without result, or the status of its error.
func doneResponse(err error) (*hookpb.Done, error) {
	if err != nil {
		return nil, statusFromHostError(err)
	}
	return &hookpb.Done{}, nil
}

func (s *hostServer) EmitEvent(ctx context.Context, r *hookpb.EmitEventRequest) (*hookpb.Done, error) {
	return doneResponse(s.impl.EmitEvent(ctx, scopeFromProto(r), hook.Event{
		Type: r.GetType(), Message: r.GetMessage(), Details: r.GetDetails(),
		OperationID: r.GetOperationId(), Ongoing: r.GetOngoing(),
	}))
}

func (s *hostServer) Restart(ctx context.Context, r *hookpb.RestartRequest) (*hookpb.Done, error) {
	return doneResponse(s.impl.Restart(ctx, scopeFromProto(r), hook.RestartRequest{Reason: r.GetReason(), CountAsFailure: r.GetFailure()}))
}

func (s *hostServer) Signal(ctx context.Context, r *hookpb.SignalRequest) (*hookpb.Done, error) {
	return doneResponse(s.impl.Signal(ctx, scopeFromProto(r), hook.SignalRequest{Signal: r.GetSignal(), Reason: r.GetReason()}))
}

func (s *hostServer) Kill(ctx context.Context, r *hookpb.KillRequest) (*hookpb.Done, error) {
	return doneResponse(s.impl.Kill(ctx, scopeFromProto(r), hook.KillRequest{Reason: r.GetReason()}))
}

func (s *hostServer) SetHealth(ctx context.Context, r *hookpb.SetHealthRequest) (*hookpb.Done, error) {
	return doneResponse(s.impl.SetHealth(ctx, scopeFromProto(r), hook.SetHealthRequest{Healthy: r.GetHealthy(), Reason: r.GetReason()}))
}

func (s *hostServer) StoreState(ctx context.Context, r *hookpb.StoreStateRequest) (*hookpb.Done, error) {
	return doneResponse(s.impl.StoreState(ctx, scopeFromProto(r), r.GetState()))
}

func (s *hostServer) Variable(ctx context.Context, r *hookpb.VariableRequest) (*hookpb.VariableResponse, error) {
	v, err := s.impl.Variable(ctx, hook.Scope{Token: r.GetToken()}, hook.VariableRequest{Path: r.GetPath(), Namespace: r.GetNamespace(), AfterIndex: r.GetAfter()})
	if err != nil {
		return nil, statusFromHostError(err)
	}
	return &hookpb.VariableResponse{Found: v.Items != nil, Items: v.Items, Metadata: variableMetadataProto(v.Metadata), Index: v.Index}, nil
}

func (s *hostServer) Variables(ctx context.Context, r *hookpb.VariablesRequest) (*hookpb.VariablesResponse, error) {
	v, err := s.impl.Variables(ctx, hook.Scope{Token: r.GetToken()}, hook.VariablesRequest{Prefix: r.GetPrefix(), Namespace: r.GetNamespace(), AfterIndex: r.GetAfter()})
	if err != nil {
		return nil, statusFromHostError(err)
	}
	p := &hookpb.VariablesResponse{Paths: v.Paths, Index: v.Index}
	for _, m := range v.Variables {
		p.Variables = append(p.Variables, variableMetadataProto(m))
	}
	return p, nil
}

// variableMetadataProto returns nil for the zero value.
func variableMetadataProto(m hook.VariableMetadata) *hookpb.VariableMetadata {
	if m == (hook.VariableMetadata{}) {
		return nil
	}
	return &hookpb.VariableMetadata{
		Namespace: m.Namespace, Path: m.Path, CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
		CreateTime: timeProto(m.CreateTime), ModifyTime: timeProto(m.ModifyTime),
	}
}

func (s *hostServer) Services(ctx context.Context, r *hookpb.ServicesRequest) (*hookpb.ServicesResponse, error) {
	found, err := s.impl.Services(ctx, hook.Scope{Token: r.GetToken()}, hook.ServicesRequest{Name: r.GetName(), InPlaceOfConsul: r.GetInPlaceOfConsul(), AfterIndex: r.GetAfter()})
	if err != nil {
		return nil, statusFromHostError(err)
	}
	p := &hookpb.ServicesResponse{NoConsul: found.NoConsul, Index: found.Index}
	for _, i := range found.Services {
		p.Instances = append(p.Instances, &hookpb.ServiceInstance{
			Id: i.ID, Name: i.Name, Address: i.Address, Port: int32(i.Port), Tags: i.Tags, AllocId: i.AllocID,
			NodeId: i.NodeID, Datacenter: i.Datacenter, JobId: i.JobID, Status: i.Status,
		})
	}
	return p, nil
}

func taskStateProto(t hook.TaskState) *hookpb.TaskState {
	p := &hookpb.TaskState{
		State: t.State, Failed: t.Failed, Restarts: t.Restarts, StartedAt: timeProto(t.StartedAt), FinishedAt: timeProto(t.FinishedAt),
	}
	for _, e := range t.Events {
		p.Events = append(p.Events, &hookpb.TaskEvent{Type: e.Type, Time: timeProto(e.Time), Message: e.Message, Details: e.Details, OperationId: e.OperationID, Ongoing: e.Ongoing})
	}
	return p
}

// timeProto returns nil for the zero time.
func timeProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
