package driverwire

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// malformedServer is a driver that returns an empty response to every call, and implements
// neither Init nor Shutdown, like some existing drivers.
type malformedServer struct {
	driverpb.UnimplementedDriverServer

	spec                   *specpb.Spec
	onSchemaOrCapabilities func() error // onSchemaOrCapabilities: called for each request for schema or capabilities
	startResult            driverpb.StartTaskResponse_Result
	startErr               error
	waitResponse           *driverpb.WaitTaskResponse
	waitErr                error
	fingerprints           []*driverpb.FingerprintResponse
	fingerprintErr         error
	execHandler            func(execServerStream) error
}

func (m *malformedServer) TaskConfigSchema(context.Context, *driverpb.TaskConfigSchemaRequest) (*driverpb.TaskConfigSchemaResponse, error) {
	return &driverpb.TaskConfigSchemaResponse{Spec: m.spec}, m.callOnSchemaOrCapabilities()
}

func (m *malformedServer) Capabilities(context.Context, *driverpb.CapabilitiesRequest) (*driverpb.CapabilitiesResponse, error) {
	return &driverpb.CapabilitiesResponse{}, m.callOnSchemaOrCapabilities()
}

func (m *malformedServer) callOnSchemaOrCapabilities() error {
	if m.onSchemaOrCapabilities == nil {
		return nil
	}
	return m.onSchemaOrCapabilities()
}

func (m *malformedServer) Fingerprint(_ *driverpb.FingerprintRequest, stream grpc.ServerStreamingServer[driverpb.FingerprintResponse]) error {
	for _, f := range m.fingerprints {
		if err := stream.Send(f); err != nil {
			return err
		}
	}
	return m.fingerprintErr
}

func (m *malformedServer) StartTask(context.Context, *driverpb.StartTaskRequest) (*driverpb.StartTaskResponse, error) {
	return &driverpb.StartTaskResponse{Result: m.startResult, DriverErrorMsg: "nobody reads this"}, m.startErr
}

func (m *malformedServer) RecoverTask(context.Context, *driverpb.RecoverTaskRequest) (*driverpb.RecoverTaskResponse, error) {
	return &driverpb.RecoverTaskResponse{}, nil
}

func (m *malformedServer) WaitTask(context.Context, *driverpb.WaitTaskRequest) (*driverpb.WaitTaskResponse, error) {
	return m.waitResponse, m.waitErr
}

func (m *malformedServer) InspectTask(context.Context, *driverpb.InspectTaskRequest) (*driverpb.InspectTaskResponse, error) {
	return &driverpb.InspectTaskResponse{}, nil
}

func (m *malformedServer) TaskStats(_ *driverpb.TaskStatsRequest, stream grpc.ServerStreamingServer[driverpb.TaskStatsResponse]) error {
	for _, r := range []*driverpb.TaskStatsResponse{
		{},
		{Stats: &driverpb.TaskStats{}},
		{Stats: &driverpb.TaskStats{
			AggResourceUsage:   &driverpb.TaskResourceUsage{Cpu: &driverpb.CPUUsage{MeasuredFields: []driverpb.CPUUsage_Fields{-1, 99, 5}}},
			ResourceUsageByPid: map[string]*driverpb.TaskResourceUsage{"1": nil},
		}},
	} {
		if err := stream.Send(r); err != nil {
			return err
		}
	}
	return nil
}

func (m *malformedServer) TaskEvents(_ *driverpb.TaskEventsRequest, stream grpc.ServerStreamingServer[driverpb.DriverTaskEvent]) error {
	return stream.Send(&driverpb.DriverTaskEvent{})
}

func (m *malformedServer) ExecTask(context.Context, *driverpb.ExecTaskRequest) (*driverpb.ExecTaskResponse, error) {
	return &driverpb.ExecTaskResponse{}, nil
}

func (m *malformedServer) ExecTaskStreaming(stream execServerStream) error {
	return m.execHandler(stream)
}

func (m *malformedServer) CreateNetwork(context.Context, *driverpb.CreateNetworkRequest) (*driverpb.CreateNetworkResponse, error) {
	return &driverpb.CreateNetworkResponse{}, nil
}

func openMalformedServer(t *testing.T, o *malformedServer) driver.Driver {
	t.Helper()
	p := serveOnSocket(t, func(s grpc.ServiceRegistrar) { driverpb.RegisterDriverServer(s, o) })
	return NewClient(p.conn, p.done)
}

// runWithMalformedServer runs a test with a fake clock, because a client waits for the exit
// of the process after a stream or connection has ended.
func runWithMalformedServer(t *testing.T, name string, o *malformedServer, test func(*testing.T, driver.Driver, *fakePluginProcess)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := serveInMemory(t, func(s grpc.ServiceRegistrar) { driverpb.RegisterDriverServer(s, o) })
			test(t, NewClient(p.conn, p.done), p)
		})
	})
}

// TestSchemaAndCapabilitiesAreRequestedOnce checks that tasks which request schema and capabilities
// concurrently share one request.
func TestSchemaAndCapabilitiesAreRequestedOnce(t *testing.T) {
	testConcurrentCallsSendOneRequest(t, "schema", func(ctx context.Context, d driver.Driver) (any, error) { return d.TaskConfigSchema(ctx) })
	testConcurrentCallsSendOneRequest(t, "capabilities", func(ctx context.Context, d driver.Driver) (any, error) { return d.Capabilities(ctx) })
}

func testConcurrentCallsSendOneRequest(t *testing.T, name string, describe func(context.Context, driver.Driver) (any, error)) {
	var receivedRequests, responseErrs chan error // the channels must be created inside the synctest bubble
	o := &malformedServer{
		spec:                   &specpb.Spec{Block: &specpb.Spec_Object{Object: &specpb.Object{}}},
		onSchemaOrCapabilities: func() error { receivedRequests <- nil; return <-responseErrs },
	}
	runWithMalformedServer(t, name, o, func(t *testing.T, d driver.Driver, p *fakePluginProcess) {
		receivedRequests, responseErrs = make(chan error, 10), make(chan error, 10)
		results := make(chan error, 100)
		all := func() {
			for range cap(results) {
				go func() { _, err := describe(t.Context(), d); results <- err }()
			}
			synctest.Wait()
		}
		step := func(questions, ended int) {
			t.Helper()
			synctest.Wait()
			if len(receivedRequests) != questions || len(results) != ended {
				t.Errorf("asked %d times, want %d; %d tasks know, want %d", len(receivedRequests), questions, len(results), ended)
			}
		}
		impatient, giveUp := context.WithCancel(t.Context())
		first := make(chan error)
		go func() { _, err := describe(impatient, d); first <- err }()
		synctest.Wait()
		all()
		step(1, 0)
		giveUp()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("who has asked and gives up gets %v", err)
		}
		step(2, 0)
		responseErrs <- nil // completes the first request, whose caller has been cancelled
		if _, err := describe(impatient, d); !errors.Is(err, context.Canceled) {
			t.Errorf("who waits and gives up gets %v", err)
		}
		responseErrs <- status.Error(codes.Internal, "not now")
		step(2, 100)
		for range cap(results) {
			if err := <-results; status.Code(err) != codes.Internal {
				t.Errorf("who has waited gets %v, want the error of the driver", err)
			}
		}
		all()
		step(3, 0)
		responseErrs <- nil
		step(3, 100)
		for range cap(results) {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		all()
		step(3, 100)
		p.die()
		if _, err := describe(t.Context(), d); err != driver.ErrPluginDown {
			t.Errorf("of a process that has gone: %v, want %v", err, driver.ErrPluginDown)
		}
	})
}

func TestMalformedServer(t *testing.T) {
	d := openMalformedServer(t, &malformedServer{waitResponse: &driverpb.WaitTaskResponse{}, startResult: driverpb.StartTaskResponse_FATAL})
	ctx := t.Context()

	expectEqual(t, "Init", d.Init(ctx), nil)
	expectEqual(t, "Shutdown", d.Shutdown(ctx), nil)
	spec, err := d.TaskConfigSchema(ctx)
	expectEqual(t, "TaskConfigSchema", []any{spec, err}, []any{(*hclspec.Spec)(nil), nil})
	capabilities, err := d.Capabilities(ctx)
	expectEqual(t, "Capabilities", []any{capabilities, err}, []any{&driver.Capabilities{}, nil})

	config := &driver.TaskConfig{ID: "id"}
	handle, override, err := d.StartTask(ctx, config)
	expectEqual(t, "StartTask", []any{handle, override, err}, []any{&driver.Handle{Config: config, State: driver.TaskRunning}, (*driver.NetworkOverride)(nil), nil})

	exitResult, err := d.WaitTask(ctx, "id")
	if err != nil || exitResult.Successful() {
		t.Errorf("WaitTask: got %+v, %v, want no success", exitResult, err)
	}
	status, err := d.InspectTask(ctx, "id")
	expectEqual(t, "InspectTask", []any{status, err}, []any{&driver.TaskStatus{}, nil})

	stats, err := d.TaskStats(ctx, "id", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var got []*driver.TaskStats
	for s := range stats {
		got = append(got, s)
	}
	expectEqual(t, "TaskStats", got, []*driver.TaskStats{
		{}, {},
		{Total: driver.Usage{CPU: driver.CPUUsage{Measured: []string{"Percent"}}}, ByPID: map[string]driver.Usage{"1": {}}},
	})

	events, err := d.TaskEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	expectEqual(t, "TaskEvents", <-events, &driver.TaskEvent{})
	if _, ok := <-events; ok {
		t.Error("the event stream goes on after its end")
	}

	result, err := d.ExecTask(ctx, "id", nil, 0)
	if err != nil || result.Exit.Successful() {
		t.Errorf("ExecTask: got %+v, %v, want no success", result, err)
	}
	isolation, created, err := d.CreateNetwork(ctx, "", "")
	expectEqual(t, "CreateNetwork", []any{isolation, created, err}, []any{(*driver.NetworkIsolation)(nil), false, nil})
	if err := d.SignalTask(ctx, "id", ""); err == nil {
		t.Error("SignalTask: a call that does not exist is no success")
	}
}

func TestMalformedWaitTaskResponse(t *testing.T) {
	tests := []struct {
		name string
		odd  malformedServer
	}{
		{"as older servers say that the channel is closed", malformedServer{waitResponse: &driverpb.WaitTaskResponse{Err: "channel closed"}}},
		{"as newer servers say it", malformedServer{waitErr: errors.New("channel closed")}},
	}
	for _, tt := range tests {
		runWithMalformedServer(t, tt.name, &tt.odd, func(t *testing.T, d driver.Driver, _ *fakePluginProcess) {
			if _, err := d.WaitTask(t.Context(), "id"); !errors.Is(err, driver.ErrChannelClosed) {
				t.Errorf("got %v", err)
			}
		})
		runWithMalformedServer(t, tt.name+" while the plugin ends", &tt.odd, func(t *testing.T, d driver.Driver, p *fakePluginProcess) {
			errs := make(chan error)
			go func() { _, err := d.WaitTask(t.Context(), "id"); errs <- err }()
			time.Sleep(time.Second)
			p.die()
			if err := <-errs; err != driver.ErrPluginDown {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("an error of the driver beside a result", func(t *testing.T) {
		d := openMalformedServer(t, &malformedServer{waitResponse: &driverpb.WaitTaskResponse{Result: &driverpb.ExitResult{ExitCode: 7}, Err: "lost it"}})
		exitResult, err := d.WaitTask(t.Context(), "id")
		expectEqual(t, "WaitTask", []any{exitResult, err}, []any{&driver.ExitResult{ExitCode: 7, Err: errors.New("lost it")}, nil})
	})
}

func TestMalformedFingerprints(t *testing.T) {
	some := []*driverpb.FingerprintResponse{{
		Health: 99,
		Attributes: map[string]*structspb.Attribute{
			"nil":   nil,
			"empty": {Unit: "GiB"},
			"good":  {Value: &structspb.Attribute_StringVal{StringVal: "x"}},
		},
	}}
	for name, end := range map[string]error{"a clean end": nil, "channel closed": errors.New("channel closed")} {
		runWithMalformedServer(t, name, &malformedServer{fingerprints: some, fingerprintErr: end}, func(t *testing.T, d driver.Driver, _ *fakePluginProcess) {
			ch, err := d.Fingerprint(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			expectEqual(t, "first", <-ch, driver.Fingerprint{Health: 99, Attributes: map[string]driver.Attribute{"good": {Value: "x"}}})
			if last := <-ch; !errors.Is(last.Err, driver.ErrChannelClosed) {
				t.Errorf("last: got %v", last.Err)
			}
			if _, ok := <-ch; ok {
				t.Error("the channel goes on")
			}
		})
	}
}

func TestMalformedTaskStatus(t *testing.T) {
	recoverable, err := anypb.New(&structspb.RecoverableError{Recoverable: true})
	if err != nil {
		t.Fatal(err)
	}
	other, err := anypb.New(durationpb.New(1))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		details []*anypb.Any
		want    bool
	}{
		{"no detail", nil, false},
		{"the first detail", []*anypb.Any{recoverable, other}, true},
		{"the second detail does not count", []*anypb.Any{other, recoverable}, false},
		{"a detail that nobody knows", []*anypb.Any{{TypeUrl: "type.googleapis.com/x.Y", Value: []byte{1}}}, false},
		{"a detail that does not parse", []*anypb.Any{{TypeUrl: recoverable.TypeUrl, Value: []byte{0xff}}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := status.New(codes.FailedPrecondition, "x").Proto()
			s.Details = tt.details
			d := openMalformedServer(t, &malformedServer{startErr: status.FromProto(s).Err()})
			_, _, err := d.StartTask(t.Context(), &driver.TaskConfig{})
			if err == nil || driver.IsRecoverable(err) != tt.want {
				t.Errorf("got %v, recoverable %v, want %v", err, driver.IsRecoverable(err), tt.want)
			}
		})
	}
	away := &malformedServer{startErr: status.Error(codes.Unavailable, "containerd is away")}
	runWithMalformedServer(t, "Unavailable from a live plugin is not its death", away, func(t *testing.T, d driver.Driver, _ *fakePluginProcess) {
		_, _, err := d.StartTask(t.Context(), &driver.TaskConfig{})
		if got, want := err.Error(), "containerd is away"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a spec without end", func(t *testing.T) {
		spec := &specpb.Spec{}
		for range 200 {
			spec = &specpb.Spec{Block: &specpb.Spec_BlockValue{BlockValue: &specpb.Block{Name: "b", Nested: spec}}}
		}
		d := openMalformedServer(t, &malformedServer{spec: spec})
		_, err := d.TaskConfigSchema(t.Context())
		if got, want := err.Error(), "task config schema: spec is nested deeper than 100 levels"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestMalformedClientRequests sends requests with missing fields to the server, as some hosts do.
func TestMalformedClientRequests(t *testing.T) {
	f := &fakeDriver{
		handle:     &driver.Handle{Version: 3},
		execResult: &driver.ExecResult{Exit: driver.ExitResult{ExitCode: 1, Err: errors.New("the driver's own")}},
	}
	p := serveOnSocket(t, func(s grpc.ServiceRegistrar) { RegisterServer(s, f) })
	c := driverpb.NewDriverClient(p.conn)
	ctx := t.Context()

	if _, err := c.StartTask(ctx, &driverpb.StartTaskRequest{}); err == nil {
		t.Error("StartTask without a task is no success")
	}
	start, err := c.StartTask(ctx, &driverpb.StartTaskRequest{Task: &driverpb.TaskConfig{
		Id: "id", Mounts: []*driverpb.Mount{nil}, Devices: []*driverpb.Device{nil},
		Resources: &driverpb.Resources{Ports: []*driverpb.PortMapping{nil}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if h := start.Handle; h.Version != 3 || h.State != driverpb.TaskState_RUNNING || h.Config.GetId() != "id" {
		t.Errorf("StartTask: got %v", h)
	}
	newer := &driverpb.TaskConfig{Id: "id"}
	newer.ProtoReflect().SetUnknown([]byte("\xca\x3e\x01x")) // field 1001
	if start, err := c.StartTask(ctx, &driverpb.StartTaskRequest{Task: newer}); err != nil || !proto.Equal(start.Handle.Config, newer) {
		t.Errorf("StartTask of a newer host: got %v, %v", start, err)
	}
	if _, err := c.RecoverTask(ctx, &driverpb.RecoverTaskRequest{}); err == nil {
		t.Error("RecoverTask without a handle is no success")
	}
	if _, err := c.RecoverTask(ctx, &driverpb.RecoverTaskRequest{TaskId: "id", Handle: &driverpb.TaskHandle{}}); err != nil {
		t.Error(err)
	}
	expectEqual(t, "RecoverTask's call", f.lastCall(), []any{"RecoverTask", &driver.Handle{Config: &driver.TaskConfig{ID: "id"}}})
	if _, err := c.StopTask(ctx, &driverpb.StopTaskRequest{}); err != nil {
		t.Error(err)
	}
	expectEqual(t, "StopTask's call", f.lastCall(), []any{"StopTask", "", time.Duration(0), ""})
	if _, err := c.DestroyNetwork(ctx, &driverpb.DestroyNetworkRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := c.ExecTask(ctx, &driverpb.ExecTaskRequest{}); status.Convert(err).Message() != "the driver's own" {
		t.Errorf("ExecTask: got %v", err)
	}
}

// TestClosedStatsChannel checks the server's responses after the driver has closed a
// channel: older and newer hosts expect different ones.
func TestClosedStatsChannel(t *testing.T) {
	f := &fakeDriver{fingerprints: make(chan driver.Fingerprint), stats: make(chan *driver.TaskStats)}
	close(f.fingerprints)
	close(f.stats)
	p := serveOnSocket(t, func(s grpc.ServiceRegistrar) { RegisterServer(s, f) })
	c := driverpb.NewDriverClient(p.conn)

	fingerprint, err := c.Fingerprint(t.Context(), &driverpb.FingerprintRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = fingerprint.Recv()
	if got, want := err.Error(), "rpc error: code = Unknown desc = channel closed"; got != want {
		t.Errorf("fingerprint: got %q, want %q", got, want)
	}
	stats, err := c.TaskStats(t.Context(), &driverpb.TaskStatsRequest{TaskId: "id"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stats.Recv(); err != io.EOF {
		t.Errorf("stats: got %v, want a clean end", err)
	}
}
