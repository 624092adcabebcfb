package driverwire

import (
	"context"
	"errors"
	"maps"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/specwire"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/taskspb"
)

// RegisterServer registers a driver on s. It passes calls to impl as they arrive, also
// concurrent calls for one task; a field that the host omits has its zero value.
//
// If impl is a driver.ExitNotifier and a driver.TaskSampler, as the drivers of package sdk are, RegisterServer also registers the service Tasks.
func RegisterServer(s grpc.ServiceRegistrar, impl driver.Driver) {
	tasks, servesTasks := impl.(tasksDriver)
	driverpb.RegisterDriverServer(s, &server{impl: impl, servesTasks: servesTasks})
	if servesTasks {
		taskspb.RegisterTasksServer(s, &tasksServer{impl: tasks})
	}
}

type server struct {
	driverpb.UnimplementedDriverServer
	impl        driver.Driver
	servesTasks bool // the service Tasks is registered
}

func (s *server) Init(ctx context.Context, _ *driverpb.InitRequest) (*driverpb.InitResponse, error) {
	return &driverpb.InitResponse{}, s.impl.Init(ctx)
}

func (s *server) Shutdown(ctx context.Context, _ *driverpb.ShutdownRequest) (*driverpb.ShutdownResponse, error) {
	return &driverpb.ShutdownResponse{}, s.impl.Shutdown(ctx)
}

func (s *server) TaskConfigSchema(ctx context.Context, _ *driverpb.TaskConfigSchemaRequest) (*driverpb.TaskConfigSchemaResponse, error) {
	spec, err := s.impl.TaskConfigSchema(ctx)
	if err != nil {
		return nil, err
	}
	if spec == nil {
		spec = hclspec.Object(nil) // the host needs a schema to decode even an empty config block
	}
	return &driverpb.TaskConfigSchemaResponse{Spec: specwire.Proto(spec)}, nil
}

func (s *server) Capabilities(ctx context.Context, _ *driverpb.CapabilitiesRequest) (*driverpb.CapabilitiesResponse, error) {
	capabilities, err := s.impl.Capabilities(ctx)
	if err != nil {
		return nil, err
	}
	if s.servesTasks {
		if err := announceTasks(ctx); err != nil {
			return nil, err
		}
	}
	return &driverpb.CapabilitiesResponse{Capabilities: capabilitiesProto(capabilities)}, nil
}

func (s *server) Fingerprint(_ *driverpb.FingerprintRequest, stream grpc.ServerStreamingServer[driverpb.FingerprintResponse]) error {
	ctx := stream.Context()
	ch, err := s.impl.Fingerprint(ctx)
	if err != nil {
		return err
	}
	err = basewire.ForwardChannel(ctx, ch, func(f driver.Fingerprint) error {
		p, err := fingerprintProto(f)
		if err != nil {
			return err
		}
		return stream.Send(p)
	})
	if err == nil {
		return driver.ErrChannelClosed
	}
	return err
}

func (s *server) StartTask(ctx context.Context, req *driverpb.StartTaskRequest) (*driverpb.StartTaskResponse, error) {
	config := taskConfigFromProto(req.GetTask())
	if config == nil {
		return nil, errors.New("start task: the request holds no task")
	}
	omitConfig := hostOmitsHandleConfig(ctx)
	if !omitConfig {
		config.Env = maps.Clone(config.Env) // impl may change the map, and the response repeats the request
	}
	handle, override, err := s.impl.StartTask(ctx, config)
	basewire.SendOperations(ctx)
	if err != nil {
		return nil, statusFromDriverError(err)
	}
	p, err := networkOverrideProto(override)
	if err != nil {
		return nil, err
	}
	if handle == nil {
		handle = &driver.Handle{}
	}
	// The host stores the handle, and reads all of its fields.
	resp := &driverpb.StartTaskResponse{
		Handle: &driverpb.TaskHandle{
			Version:     max(handle.Version, 1),
			State:       driverpb.TaskState(handle.State),
			DriverState: handle.DriverState,
		},
		NetworkOverride: p,
	}
	switch {
	case handle.Config != nil && handle.Config != config:
		resp.Handle.Config = taskConfigProto(handle.Config)
	case !omitConfig:
		resp.Handle.Config = req.GetTask() // the message itself keeps fields that a newer host has added
	}
	if handle.State == driver.TaskUnknown {
		resp.Handle.State = driverpb.TaskState_RUNNING
	}
	return resp, nil
}

func (s *server) RecoverTask(ctx context.Context, req *driverpb.RecoverTaskRequest) (*driverpb.RecoverTaskResponse, error) {
	handle := handleFromProto(req.GetHandle())
	if handle == nil {
		return nil, errors.New("recover task: the request holds no handle")
	}
	if handle.Config == nil {
		handle.Config = &driver.TaskConfig{}
	}
	if handle.Config.ID == "" {
		handle.Config.ID = req.GetTaskId()
	}
	return &driverpb.RecoverTaskResponse{}, statusFromDriverError(s.impl.RecoverTask(ctx, handle))
}

func (s *server) WaitTask(ctx context.Context, req *driverpb.WaitTaskRequest) (*driverpb.WaitTaskResponse, error) {
	exitResult, err := s.impl.WaitTask(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return waitTaskResponseProto(exitResult), nil
}

func (s *server) StopTask(ctx context.Context, req *driverpb.StopTaskRequest) (*driverpb.StopTaskResponse, error) {
	return &driverpb.StopTaskResponse{}, s.impl.StopTask(ctx, req.GetTaskId(), req.GetTimeout().AsDuration(), req.GetSignal())
}

func (s *server) DestroyTask(ctx context.Context, req *driverpb.DestroyTaskRequest) (*driverpb.DestroyTaskResponse, error) {
	return &driverpb.DestroyTaskResponse{}, s.impl.DestroyTask(ctx, req.GetTaskId(), req.GetForce())
}

func (s *server) InspectTask(ctx context.Context, req *driverpb.InspectTaskRequest) (*driverpb.InspectTaskResponse, error) {
	status, err := s.impl.InspectTask(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return taskStatusProto(status)
}

func (s *server) TaskStats(req *driverpb.TaskStatsRequest, stream grpc.ServerStreamingServer[driverpb.TaskStatsResponse]) error {
	ctx := stream.Context()
	ch, err := s.impl.TaskStats(ctx, req.GetTaskId(), req.GetCollectionInterval().AsDuration())
	if err != nil {
		return statusFromDriverError(err)
	}
	return basewire.ForwardChannel(ctx, ch, func(stats *driver.TaskStats) error {
		if err := stats.Validate(); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		return stream.Send(&driverpb.TaskStatsResponse{Stats: taskStatsProto(req.GetTaskId(), stats)})
	})
}

func (s *server) TaskEvents(_ *driverpb.TaskEventsRequest, stream grpc.ServerStreamingServer[driverpb.DriverTaskEvent]) error {
	ctx := stream.Context()
	ch, err := s.impl.TaskEvents(ctx)
	if err != nil {
		return err
	}
	for {
		select {
		case event, ok := <-ch:
			if !ok {
				// The stream stays open without events: a host would reopen an ended stream
				// in an endless loop.
				ch = nil
				continue
			}
			if event == nil {
				continue
			}
			if err := stream.Send(taskEventProto(event)); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *server) SignalTask(ctx context.Context, req *driverpb.SignalTaskRequest) (*driverpb.SignalTaskResponse, error) {
	return &driverpb.SignalTaskResponse{}, s.impl.SignalTask(ctx, req.GetTaskId(), req.GetSignal())
}

func (s *server) ExecTask(ctx context.Context, req *driverpb.ExecTaskRequest) (*driverpb.ExecTaskResponse, error) {
	result, err := s.impl.ExecTask(ctx, req.GetTaskId(), req.GetCommand(), req.GetTimeout().AsDuration())
	switch {
	case err != nil:
		return nil, err
	case result == nil:
		return nil, errNoExitResult
	case result.Exit.Err != nil:
		return nil, result.Exit.Err // Err is returned as the error of the call: the response has no field for it
	}
	return &driverpb.ExecTaskResponse{Stdout: result.Stdout, Stderr: result.Stderr, Result: exitResultProto(&result.Exit)}, nil
}

func (s *server) CreateNetwork(ctx context.Context, req *driverpb.CreateNetworkRequest) (*driverpb.CreateNetworkResponse, error) {
	isolation, created, err := s.impl.CreateNetwork(ctx, req.GetAllocId(), req.GetHostname())
	if err != nil {
		return nil, err
	}
	return &driverpb.CreateNetworkResponse{IsolationSpec: networkIsolationProto(isolation), Created: created}, nil
}

func (s *server) DestroyNetwork(ctx context.Context, req *driverpb.DestroyNetworkRequest) (*driverpb.DestroyNetworkResponse, error) {
	return &driverpb.DestroyNetworkResponse{}, s.impl.DestroyNetwork(ctx, req.GetAllocId(), networkIsolationFromProto(req.GetIsolationSpec()))
}
