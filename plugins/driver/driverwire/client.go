package driverwire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/specwire"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/taskspb"
)

// NewClient returns the host's client of a driver; processExited must be closed when the plugin
// process has exited.
//
// Errors of the driver keep the text that gRPC gives them, which users know, and are an
// *driver.Error, driver.ErrTaskNotFound and so on if the client recognizes them. A field that is
// missing in a response has its zero value, except an exit status: a missing exit
// status is a driver.ExitResult with Err.
func NewClient(conn grpc.ClientConnInterface, processExited <-chan struct{}) driver.Driver {
	c := basewire.NewConn(conn, processExited)
	tasks := taskspb.NewTasksClient(c)
	return &client{conn: c, pb: driverpb.NewDriverClient(c), tasks: tasks, exits: exitStream{client: tasks}, samplers: map[time.Duration]*taskSampler{}}
}

type client struct {
	conn              *basewire.Conn
	pb                driverpb.DriverClient
	taskSchemaCache   rpcCache[hclspec.Spec]
	capabilitiesCache rpcCache[describedCapabilities]
	tasks             taskspb.TasksClient // only called if the driver serves Tasks
	exits             exitStream

	samplersMu sync.Mutex
	samplers   map[time.Duration]*taskSampler // by interval
}

// describedCapabilities is what the driver says of itself in its response to Capabilities and in that response's header.
type describedCapabilities struct {
	driver.Capabilities
	servesTasks bool // the driver also serves the service Tasks
}

var (
	_ tasksDriver         = (*client)(nil)
	_ driver.TasksSampler = (*client)(nil)
)

// convertErr converts the error of a call to driver.ErrPluginDown, the error of ctx, or an error type of
// package driver.
func (c *client) convertErr(ctx context.Context, err error) error {
	return restoreErrorType(c.conn.ConvertErr(ctx, err))
}

// pluginDownIfExited returns the error for a stream or a call that the driver has ended without a result: err, or
// driver.ErrPluginDown if the plugin process has exited, because a driver ends its streams while its process exits.
func (c *client) pluginDownIfExited(ctx context.Context, err error) error {
	if c.conn.ExitsWithinMaxDelay(ctx) {
		return driver.ErrPluginDown
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// convertErrIgnoringUnimplemented converts the error of a call like convertErr. It returns nil if the driver
// does not implement the call, which older drivers do not have.
func (c *client) convertErrIgnoringUnimplemented(ctx context.Context, err error) error {
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return c.convertErr(ctx, err)
}

func (c *client) Init(ctx context.Context) error {
	_, err := c.pb.Init(ctx, &driverpb.InitRequest{})
	return c.convertErrIgnoringUnimplemented(ctx, err)
}

func (c *client) Shutdown(ctx context.Context) error {
	_, err := c.pb.Shutdown(ctx, &driverpb.ShutdownRequest{})
	return c.convertErrIgnoringUnimplemented(ctx, err)
}

func (c *client) TaskConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	return c.taskSchemaCache.get(ctx, c.conn, func() (*hclspec.Spec, error) {
		resp, err := c.pb.TaskConfigSchema(ctx, &driverpb.TaskConfigSchemaRequest{})
		if err != nil {
			return nil, c.convertErr(ctx, err)
		}
		spec, err := specwire.FromProto(resp.GetSpec())
		if err != nil {
			return nil, fmt.Errorf("task config schema: %w", err)
		}
		return spec, nil
	})
}

func (c *client) Capabilities(ctx context.Context) (*driver.Capabilities, error) {
	r, err := c.fetchCapabilities(ctx)
	if err != nil {
		return nil, err
	}
	return &r.Capabilities, nil
}

func (c *client) fetchCapabilities(ctx context.Context) (*describedCapabilities, error) {
	return c.capabilitiesCache.get(ctx, c.conn, func() (*describedCapabilities, error) {
		var header metadata.MD
		resp, err := c.pb.Capabilities(ctx, &driverpb.CapabilitiesRequest{}, grpc.Header(&header))
		if err != nil {
			return nil, c.convertErr(ctx, err)
		}
		return &describedCapabilities{*capabilitiesFromProto(resp.GetCapabilities()), hasTasksHeader(header)}, nil
	})
}

func (c *client) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	stream, err := c.pb.Fingerprint(ctx, &driverpb.FingerprintRequest{})
	if err != nil {
		return nil, c.convertErr(ctx, err)
	}
	ch := make(chan driver.Fingerprint)
	go func() {
		defer close(ch)
		err := forwardValues(ctx, stream, ch, fingerprintFromProto)
		if ctx.Err() != nil {
			return
		}
		switch err = restoreErrorType(err); {
		case err == io.EOF: // older drivers end the stream without an error
			err = c.pluginDownIfExited(ctx, driver.ErrChannelClosed)
		case errors.Is(err, driver.ErrChannelClosed):
			err = c.pluginDownIfExited(ctx, err)
		default:
			err = c.convertErr(ctx, err)
		}
		sendValueUnlessDone(ctx, ch, driver.Fingerprint{Err: err})
	}()
	return ch, nil
}

// omitHandleConfigKey is the metadata of a StartTask call, see OmitHandleConfig.
const omitHandleConfigKey = "nomad-lite-omit-handle-config"

// OmitHandleConfig returns a context for a StartTask call. The response's handle may then have no task configuration: the client
// completes the handle with the configuration that it has sent. A driver made without this project's SDK ignores the mark.
func OmitHandleConfig(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, omitHandleConfigKey, "1")
}

func hostOmitsHandleConfig(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, omitHandleConfigKey)) > 0
}

func (c *client) StartTask(ctx context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	if err := checkEnvUTF8(config); err != nil {
		return nil, nil, err
	}
	task := taskConfigProto(config)
	encodeEnv(task)
	resp, err := c.pb.StartTask(ctx, &driverpb.StartTaskRequest{Task: task})
	if err != nil {
		return nil, nil, c.convertErr(ctx, err)
	}
	handle := handleFromProto(resp.GetHandle())
	if handle == nil {
		// The driver has sent no handle. The task runs, and WaitTask needs only its id.
		handle = &driver.Handle{State: driver.TaskRunning}
	}
	if sent := resp.GetHandle().GetConfig(); sent == nil || proto.Equal(sent, taskConfigProto(config)) {
		handle.Config = config // the decoded copy of config is discarded, to save memory while the task runs
	}
	return handle, networkOverrideFromProto(resp.GetNetworkOverride()), nil
}

// envField is the number of the field env of the message TaskConfig.
const envField protowire.Number = 4

// encodeEnv replaces the map Env of p by its encoding, which protobuf sends as it is: protobuf would allocate five objects for each
// variable, because it reads the map by reflection.
func encodeEnv(p *driverpb.TaskConfig) {
	const keyField, valueField = 1, 2
	size := 0
	for name, value := range p.Env {
		entry := protowire.SizeTag(keyField) + protowire.SizeBytes(len(name)) + protowire.SizeTag(valueField) + protowire.SizeBytes(len(value))
		size += protowire.SizeTag(envField) + protowire.SizeBytes(entry)
	}
	encoded := make([]byte, 0, size)
	for name, value := range p.Env {
		entry := protowire.SizeTag(keyField) + protowire.SizeBytes(len(name)) + protowire.SizeTag(valueField) + protowire.SizeBytes(len(value))
		encoded = protowire.AppendTag(encoded, envField, protowire.BytesType)
		encoded = protowire.AppendVarint(encoded, uint64(entry))
		encoded = protowire.AppendString(protowire.AppendTag(encoded, keyField, protowire.BytesType), name)
		encoded = protowire.AppendString(protowire.AppendTag(encoded, valueField, protowire.BytesType), value)
	}
	p.Env = nil
	p.ProtoReflect().SetUnknown(encoded)
}

// checkEnvUTF8 returns an error that names an environment variable that is not valid UTF-8. The error of
// protobuf would not name the variable.
func checkEnvUTF8(config *driver.TaskConfig) error {
	for _, env := range []map[string]string{config.Env, config.DeviceEnv} {
		for _, name := range slices.Sorted(maps.Keys(env)) {
			if !utf8.ValidString(name) || !utf8.ValidString(env[name]) {
				return fmt.Errorf("environment variable %q is not valid UTF-8", name)
			}
		}
	}
	return nil
}

func (c *client) RecoverTask(ctx context.Context, handle *driver.Handle) error {
	_, err := c.pb.RecoverTask(ctx, &driverpb.RecoverTaskRequest{Handle: handleProto(handle)})
	err = c.convertErr(ctx, err)
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return driver.Recoverable(err) // convertErr has replaced errors of the connection, so a service behind the driver was not reached: the task may exist
	}
	return err
}

func (c *client) WaitTask(ctx context.Context, taskID string) (*driver.ExitResult, error) {
	resp, err := c.pb.WaitTask(ctx, &driverpb.WaitTaskRequest{TaskId: taskID})
	if err != nil {
		if err = c.convertErr(ctx, err); errors.Is(err, driver.ErrChannelClosed) {
			err = c.pluginDownIfExited(ctx, err)
		}
		return nil, err
	}
	if resp.GetResult() == nil && resp.GetErr() == driver.ErrChannelClosed.Error() {
		return nil, c.pluginDownIfExited(ctx, driver.ErrChannelClosed) // older drivers report a closed channel in the response
	}
	return exitResultOfWaitTask(resp), nil
}

func (c *client) StopTask(ctx context.Context, taskID string, timeout time.Duration, signal string) error {
	_, err := c.pb.StopTask(ctx, &driverpb.StopTaskRequest{TaskId: taskID, Timeout: durationpb.New(timeout), Signal: signal})
	return c.convertErr(ctx, err)
}

func (c *client) DestroyTask(ctx context.Context, taskID string, force bool) error {
	_, err := c.pb.DestroyTask(ctx, &driverpb.DestroyTaskRequest{TaskId: taskID, Force: force})
	return c.convertErr(ctx, err)
}

func (c *client) InspectTask(ctx context.Context, taskID string) (*driver.TaskStatus, error) {
	resp, err := c.pb.InspectTask(ctx, &driverpb.InspectTaskRequest{TaskId: taskID})
	if err != nil {
		return nil, c.convertErr(ctx, err)
	}
	return taskStatusFromProto(resp), nil
}

func (c *client) TaskStats(ctx context.Context, taskID string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	if r := c.capabilitiesCache.getIfCached(); r != nil && r.servesTasks && interval > 0 {
		return c.sampleRegularly(ctx, taskID, interval)
	}
	return c.callTaskStats(ctx, taskID, interval)
}

func (c *client) callTaskStats(ctx context.Context, taskID string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.pb.TaskStats(ctx, &driverpb.TaskStatsRequest{TaskId: taskID, CollectionInterval: durationpb.New(interval)})
	if err != nil {
		cancel()
		return nil, c.convertErr(ctx, err)
	}
	// gRPC returns the error of the call from the first Recv.
	first, err := stream.Recv()
	if err != nil && err != io.EOF {
		err = c.convertErr(ctx, err)
		cancel()
		return nil, err
	}
	ch := make(chan *driver.TaskStats)
	go func() {
		defer close(ch)
		defer cancel()
		read := func(p *driverpb.TaskStatsResponse) *driver.TaskStats { return taskStatsFromProto(p.GetStats()) }
		if err == nil && sendValueUnlessDone(ctx, ch, read(first)) {
			_ = forwardValues(ctx, stream, ch, read) // a stream error only closes ch
		}
	}()
	return ch, nil
}

func (c *client) TaskEvents(ctx context.Context) (<-chan *driver.TaskEvent, error) {
	stream, err := c.pb.TaskEvents(ctx, &driverpb.TaskEventsRequest{})
	if err != nil {
		return nil, c.convertErr(ctx, err)
	}
	ch := make(chan *driver.TaskEvent)
	go func() {
		defer close(ch)
		_ = forwardValues(ctx, stream, ch, taskEventFromProto) // a stream error only closes ch
	}()
	return ch, nil
}

// forwardValues sends the values of a stream to ch, converted by convert, until the stream or ctx ends.
func forwardValues[P, V any](ctx context.Context, stream grpc.ServerStreamingClient[P], ch chan<- V, convert func(*P) V) error {
	for {
		p, err := stream.Recv()
		if err != nil {
			return err
		}
		if !sendValueUnlessDone(ctx, ch, convert(p)) {
			return ctx.Err()
		}
	}
}

func sendValueUnlessDone[V any](ctx context.Context, ch chan<- V, v V) bool {
	select {
	case ch <- v:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *client) SignalTask(ctx context.Context, taskID, signal string) error {
	_, err := c.pb.SignalTask(ctx, &driverpb.SignalTaskRequest{TaskId: taskID, Signal: signal})
	return c.convertErr(ctx, err)
}

func (c *client) ExecTask(ctx context.Context, taskID string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	resp, err := c.pb.ExecTask(ctx, &driverpb.ExecTaskRequest{TaskId: taskID, Command: command, Timeout: durationpb.New(timeout)})
	if err != nil {
		return nil, c.convertErr(ctx, err)
	}
	return &driver.ExecResult{Stdout: resp.GetStdout(), Stderr: resp.GetStderr(), Exit: exitResultFromProto(resp.GetResult())}, nil
}

func (c *client) CreateNetwork(ctx context.Context, allocID, hostname string) (*driver.NetworkIsolation, bool, error) {
	resp, err := c.pb.CreateNetwork(ctx, &driverpb.CreateNetworkRequest{AllocId: allocID, Hostname: hostname})
	if err != nil {
		return nil, false, c.convertNetworkErr(ctx, err, driver.ErrCreateNetworkNotSupported)
	}
	return networkIsolationFromProto(resp.GetIsolationSpec()), resp.GetCreated(), nil
}

func (c *client) DestroyNetwork(ctx context.Context, allocID string, isolation *driver.NetworkIsolation) error {
	if isolation == nil {
		return nil // CreateNetwork has created no namespace
	}
	_, err := c.pb.DestroyNetwork(ctx, &driverpb.DestroyNetworkRequest{AllocId: allocID, IsolationSpec: networkIsolationProto(isolation)})
	return c.convertNetworkErr(ctx, err, driver.ErrDestroyNetworkNotSupported)
}

// convertNetworkErr converts the error of a call like convertErr. If the driver does not have the call, as old drivers,
// the error wraps errIfUnimplemented.
func (c *client) convertNetworkErr(ctx context.Context, err, errIfUnimplemented error) error {
	if status.Code(err) == codes.Unimplemented {
		return &remoteError{err, errIfUnimplemented}
	}
	return c.convertErr(ctx, err)
}
