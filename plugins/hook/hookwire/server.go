package hookwire

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-lite/nomad-lite/hclspec/specwire"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/proto/hookpb"
)

// RegisterServer registers a hook plugin on s. It passes calls for a hook point to pointHandler as
// they arrive, also concurrently, if pointHandler implements the interface of the hook point; calls
// for any other hook point return the status Unimplemented.
func RegisterServer(s grpc.ServiceRegistrar, p hook.Plugin, pointHandler any) {
	hookpb.RegisterHookServer(s, &server{plugin: p, pointHandler: pointHandler})
}

type server struct {
	hookpb.UnimplementedHookServer
	plugin       hook.Plugin
	pointHandler any
}

func (s *server) Describe(ctx context.Context, _ *hookpb.DescribeRequest) (*hookpb.Description, error) {
	d, err := s.plugin.Describe(ctx)
	if err != nil {
		return nil, err
	}
	p := &hookpb.Description{AllAllocs: d.AllAllocs, IncludeAllocJson: d.IncludeAllocJSON, ReportsHealth: d.ReportsHealth}
	for _, part := range d.Subscriptions {
		row := &hookpb.Subscription{Point: hookpb.Point(part.Point)}
		if part.Timeout > 0 {
			row.Timeout = durationpb.New(part.Timeout)
		}
		p.Subscriptions = append(p.Subscriptions, row)
	}
	if d.AttachmentSchema != nil {
		p.AttachmentSchema = specwire.Proto(d.AttachmentSchema)
	}
	return p, nil
}

func (s *server) Configure(ctx context.Context, r *hookpb.ConfigureRequest) (*hookpb.ConfigureResponse, error) {
	return &hookpb.ConfigureResponse{}, s.plugin.Configure(ctx, hook.Config{HostSocket: r.GetHostSocket(), Node: nodeFromProto(r.GetNode())})
}

// failureProtoUnlessCancelled converts an error of a hook to a Failure message. If the hook has failed because
// the host has cancelled the call, failureProtoUnlessCancelled returns the status of ctx as an error instead.
func failureProtoUnlessCancelled(ctx context.Context, err error) (*hookpb.Failure, error) {
	switch {
	case err == nil:
		return nil, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &hookpb.Failure{Message: sanitizeUTF8(err.Error()), Recoverable: driver.IsRecoverable(err)}, nil
}

// callHookPoint calls a hook point whose response is only an error. It returns the status Unimplemented if the hook does
// not implement I, the interface of the hook point.
func callHookPoint[I, Q, R any](ctx context.Context, s *server, point hook.Point, call func(I, context.Context, Q) (R, error), request Q) (*hookpb.Response, error) {
	h, ok := s.pointHandler.(I)
	if !ok {
		return nil, unimplementedError(point)
	}
	f, err := failureProtoUnlessCancelled(ctx, callRecoveringPanic(s.pointHandler, point, func() error {
		_, err := call(h, ctx, request)
		return err
	}))
	if err != nil {
		return nil, err
	}
	return &hookpb.Response{Failure: f}, nil
}

// callRecoveringPanic calls a method of the hook, and converts a panic of the method to a basewire.PanicError.
func callRecoveringPanic(pointHandler any, point hook.Point, call func() error) (err error) {
	defer basewire.RecoverAndLogPanic(pointHandler, point.Interface().Method(0).Name, &err)
	return call()
}

func unimplementedError(point hook.Point) error {
	return status.Error(codes.Unimplemented, fmt.Sprintf("this hook takes no part in %s", point))
}

func (s *server) Prerun(ctx context.Context, r *hookpb.AllocRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.Prerun, hook.AllocPrerun.Prerun, hook.AllocPrerunRequest{RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc()), Env: r.GetEnv()})
}

func (s *server) UpdateAlloc(ctx context.Context, r *hookpb.AllocRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.UpdateAlloc, hook.AllocUpdate.UpdateAlloc, hook.AllocUpdateRequest{RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc()), Env: r.GetEnv()})
}

func (s *server) PreTaskRestart(ctx context.Context, r *hookpb.AllocRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.PreTaskRestart, hook.AllocPreTaskRestart.PreTaskRestart, hook.AllocPreTaskRestartRequest{RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc())})
}

func (s *server) PreKill(ctx context.Context, r *hookpb.AllocRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.PreKill, hook.AllocPreKill.PreKill, hook.AllocPreKillRequest{RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc())})
}

func (s *server) Postrun(ctx context.Context, r *hookpb.AllocRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.Postrun, hook.AllocPostrun.Postrun, hook.AllocPostrunRequest{RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc())})
}

func (s *server) Destroy(ctx context.Context, r *hookpb.AllocRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.Destroy, hook.AllocDestroy.Destroy, hook.AllocDestroyRequest{RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc())})
}

func (s *server) ShutdownAlloc(ctx context.Context, r *hookpb.AllocRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.ShutdownAlloc, hook.AllocShutdown.ShutdownAlloc, hook.AllocShutdownRequest{RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc())})
}

func (s *server) Prestart(ctx context.Context, r *hookpb.PrestartRequest) (*hookpb.PrestartResponse, error) {
	h, ok := s.pointHandler.(hook.TaskPrestart)
	if !ok {
		return nil, unimplementedError(hook.Prestart)
	}
	request := hook.TaskPrestartRequest{
		RequestMeta:   requestMetaFromProto(r),
		Alloc:         allocFromProto(r.GetAlloc()),
		Task:          taskFromProto(r.GetTask()),
		Dir:           taskDirFromProto(r.GetDir()),
		Env:           r.GetEnv(),
		Resources:     resourcesFromProto(r.GetResources()),
		PreviousState: r.GetPreviousState(),
		Running:       r.GetRunning(),
	}
	var response hook.TaskPrestartResponse
	f, err := failureProtoUnlessCancelled(ctx, callRecoveringPanic(s.pointHandler, hook.Prestart, func() (err error) {
		response, err = h.Prestart(ctx, request)
		return err
	}))
	if err != nil {
		return nil, err
	}
	if f != nil {
		return &hookpb.PrestartResponse{Failure: f, State: response.State}, nil
	}
	return prestartResponseProto(response), nil
}

func (s *server) Poststart(ctx context.Context, r *hookpb.PoststartRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.Poststart, hook.TaskPoststart.Poststart, hook.TaskPoststartRequest{
		RequestMeta: requestMetaFromProto(r),
		Alloc:       allocFromProto(r.GetAlloc()),
		Task:        taskFromProto(r.GetTask()),
		Dir:         taskDirFromProto(r.GetDir()),
		Env:         r.GetEnv(),
		Network:     networkFromProto(r.GetNetwork()),

		StartID:       r.GetStartId(),
		PreviousState: r.GetPreviousState(),
		Repeated:      r.GetRepeated(),
	})
}

func (s *server) Update(ctx context.Context, r *hookpb.TaskRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.Update, hook.TaskUpdate.Update, hook.TaskUpdateRequest{
		RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc()), Task: taskFromProto(r.GetTask()), Env: r.GetEnv(),
	})
}

func (s *server) PreKilling(ctx context.Context, r *hookpb.TaskRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.PreKilling, hook.TaskPreKilling.PreKilling, hook.TaskPreKillingRequest{
		RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc()), Task: taskFromProto(r.GetTask()),
		StartID: r.GetStartId(), PreviousState: r.GetPreviousState(),
	})
}

func (s *server) Exited(ctx context.Context, r *hookpb.ExitedRequest) (*hookpb.Response, error) {
	exit := driver.ExitResult{ExitCode: int(r.GetExitCode()), Signal: int(r.GetSignal()), OOMKilled: r.GetOomKilled()}
	if r.GetError() != "" {
		exit.Err = errors.New(r.GetError())
	}
	return callHookPoint(ctx, s, hook.Exited, hook.TaskExited.Exited, hook.TaskExitedRequest{
		RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc()), Task: taskFromProto(r.GetTask()), Exit: exit, WillRestart: r.GetWillRestart(),
		StartID: r.GetStartId(), PreviousState: r.GetPreviousState(),
	})
}

func (s *server) Stop(ctx context.Context, r *hookpb.StopRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.Stop, hook.TaskStop.Stop, hook.TaskStopRequest{
		RequestMeta:   requestMetaFromProto(r),
		Alloc:         allocFromProto(r.GetAlloc()),
		Task:          taskFromProto(r.GetTask()),
		Dir:           taskDirFromProto(r.GetDir()),
		PreviousState: r.GetPreviousState(),
	})
}

func (s *server) Shutdown(ctx context.Context, r *hookpb.TaskRequest) (*hookpb.Response, error) {
	return callHookPoint(ctx, s, hook.Shutdown, hook.TaskShutdown.Shutdown, hook.TaskShutdownRequest{
		RequestMeta: requestMetaFromProto(r), Alloc: allocFromProto(r.GetAlloc()), Task: taskFromProto(r.GetTask()),
	})
}
