package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-msgpack/v2/codec"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nomad-lite/nomad-lite/plugins/proto/basepb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

var (
	errTaskNotFound = errors.New("task not found for given id")
	// errExecutorDown is the error that old drivers return when their own executor has exited. It has the same text as
	// driver.ErrPluginDown, the error for a plugin that has exited.
	errExecutorDown = errors.New("plugin is shut down")
)

// protocolDialectDriver is a driver of any dialect. Each task is a shell script.
type protocolDialectDriver struct {
	basepb.UnimplementedBasePluginServer
	driverpb.UnimplementedDriverServer
	dialect               ProtocolDialect
	name                  string
	faultFile             faultFilePath
	occurredFaults        occurredFaultSet
	logger                hclog.Logger
	pendingEvents         chan *driverpb.DriverTaskEvent
	startTaskInProgressMu sync.RWMutex // read-locked from the call of StartTask until its response was sent

	mu                sync.Mutex
	executorPorts     portRange
	topologyCoreCount int
	initCalled        bool
	taskByID          map[string]*driverTask
}

func newProtocolDialectDriver(d ProtocolDialect) *protocolDialectDriver {
	return &protocolDialectDriver{
		dialect:       d,
		name:          d.DriverName(),
		logger:        hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true, Output: stderr}),
		pendingEvents: make(chan *driverpb.DriverTaskEvent, 100),
		taskByID:      map[string]*driverTask{},
	}
}

// driverTask is a task that a protocolDialectDriver has started or recovered.
type driverTask struct {
	config  *driverpb.TaskConfig
	state   taskHandleState
	process taskProcess
	exited  chan struct{} // closed when result is set
	result  ProcessResult
}

// taskHandleState is the driver's state in a handle. It is encoded in the first version of MessagePack, which has no
// types for byte strings and for short strings.
type taskHandleState struct {
	PID       int
	Executor  executorAddress
	StartedAt time.Time
	Script    string
}

// findTask returns the task with an id, or errTaskNotFound.
func (d *protocolDialectDriver) findTask(id string) (*driverTask, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.taskByID[id]; t != nil {
		return t, nil
	}
	return nil, errTaskNotFound
}

// addAndWatchTask adds a task to taskByID, and starts a goroutine that waits for the exit of the task's process.
func (d *protocolDialectDriver) addAndWatchTask(t *driverTask) {
	t.exited = make(chan struct{})
	d.mu.Lock()
	d.taskByID[t.config.Id] = t
	d.mu.Unlock()
	go func() {
		t.result = t.process.wait()
		close(t.exited)
	}()
}

// Init implements the gRPC service Driver, like all exported methods below.
func (d *protocolDialectDriver) Init(ctx context.Context, r *driverpb.InitRequest) (*driverpb.InitResponse, error) {
	if d.dialect != Newest {
		return d.UnimplementedDriverServer.Init(ctx, r)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.initCalled = true
	return &driverpb.InitResponse{}, nil
}

func (d *protocolDialectDriver) Shutdown(ctx context.Context, r *driverpb.ShutdownRequest) (*driverpb.ShutdownResponse, error) {
	if d.dialect != Newest {
		return d.UnimplementedDriverServer.Shutdown(ctx, r)
	}
	d.logger.Info("shutdown was requested")
	return &driverpb.ShutdownResponse{}, nil
}

func (d *protocolDialectDriver) TaskConfigSchema(context.Context, *driverpb.TaskConfigSchemaRequest) (*driverpb.TaskConfigSchemaResponse, error) {
	if _, set := d.faultFile.faultArgs("other-schema"); set {
		return &driverpb.TaskConfigSchemaResponse{Spec: singleAttrSpec("other", true)}, nil
	}
	return &driverpb.TaskConfigSchemaResponse{Spec: singleAttrSpec("script", true)}, nil
}

func (d *protocolDialectDriver) Capabilities(context.Context, *driverpb.CapabilitiesRequest) (*driverpb.CapabilitiesResponse, error) {
	return &driverpb.CapabilitiesResponse{Capabilities: d.dialect.capabilities()}, nil
}

func (d *protocolDialectDriver) Fingerprint(_ *driverpb.FingerprintRequest, stream grpc.ServerStreamingServer[driverpb.FingerprintResponse]) error {
	for {
		response := &driverpb.FingerprintResponse{Health: driverpb.FingerprintResponse_HEALTHY}
		if d.dialect != Old {
			response.HealthDescription = "Healthy"
			response.Attributes = map[string]*structspb.Attribute{
				"driver." + d.name: {Value: &structspb.Attribute_BoolVal{BoolVal: true}},
			}
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-time.After(30 * time.Second):
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (d *protocolDialectDriver) StartTask(_ context.Context, r *driverpb.StartTaskRequest) (*driverpb.StartTaskResponse, error) {
	config := r.Task
	if _, err := d.findTask(config.Id); err == nil {
		return nil, fmt.Errorf("task with ID %q already started", config.Id)
	}
	var settings struct {
		Script string `codec:"script"`
	}
	if err := codec.NewDecoderBytes(config.MsgpackDriverConfig, msgpackV1Handle()).Decode(&settings); err != nil {
		return nil, err
	}
	t := &driverTask{config: config, state: taskHandleState{StartedAt: time.Now(), Script: settings.Script}}
	command, err := d.checkHostAndBuildTaskCommand(config, settings.Script)
	if err != nil {
		return nil, err
	}
	if d.dialect == Skeleton {
		if t.state.Executor, err = startExecutor(d.executorPorts, command); err != nil {
			return nil, err
		}
		t.process, err = t.state.Executor.dial()
	} else {
		t.process, t.state.PID, err = startChild(command)
	}
	if err != nil {
		return nil, err
	}
	state, err := encodeHandleState(t.state)
	if err != nil {
		return nil, err
	}
	d.addAndWatchTask(t)
	d.trySendEvent(t, "started")
	handle := &driverpb.TaskHandle{Version: 1, Config: config, DriverState: state}
	if d.dialect != Old {
		handle.State = driverpb.TaskState_RUNNING
	}
	d.faultFile.injectHandleFault(handle)
	return &driverpb.StartTaskResponse{Handle: handle}, nil
}

// checkHostAndBuildTaskCommand returns the command of a task. It returns an error if the host has not prepared what a
// driver of the dialect needs, such as a filled task directory.
func (d *protocolDialectDriver) checkHostAndBuildTaskCommand(config *driverpb.TaskConfig, script string) (taskCommand, error) {
	c, err := d.commandInTask(config, []string{"/bin/sh", "-c", script})
	if err != nil {
		return c, err
	}
	c.StdoutPath, c.StderrPath = config.StdoutPath, config.StderrPath
	switch d.dialect {
	case Chroot:
		if _, err := os.Stat(filepath.Join(c.RootDir, "bin/sh")); err != nil {
			return c, fmt.Errorf("the host has not filled the task directory: %w", err)
		}
		// With cgroups v1, drivers compute the paths of all controllers but one.
		scope := config.AllocId + "." + config.Name
		if group := config.GetResources().GetLinuxResources().GetCpusetCgroup(); group != "" {
			c.CgroupDirs = []string{group}
		}
		for _, controller := range []string{"freezer", "cpu", "memory"} {
			c.CgroupDirs = append(c.CgroupDirs, filepath.Join("/sys/fs/cgroup", controller, "nomad", scope))
		}
	case Newest:
		d.mu.Lock()
		initialized, cores := d.initCalled, d.topologyCoreCount
		d.mu.Unlock()
		if !initialized || cores == 0 {
			return c, fmt.Errorf("initialized %v, %d cores in the topology", initialized, cores)
		}
		if info, err := os.Lstat(config.StdoutPath); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
			return c, fmt.Errorf("the host has created %s for a driver that collects the output itself", config.StdoutPath)
		}
		logs := filepath.Join(config.AllocDir, "alloc", "logs", config.Name)
		c.StdoutPath, c.StderrPath = logs+".stdout.0", logs+".stderr.0"
		for _, path := range []string{c.StdoutPath, c.StderrPath} {
			file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
			if err != nil {
				return c, err
			}
			file.Close()
		}
	}
	return c, nil
}

// commandInTask returns a command with the work directory, the root directory and the user of a task. The caller sets the
// files for the output.
func (d *protocolDialectDriver) commandInTask(config *driverpb.TaskConfig, args []string) (taskCommand, error) {
	c := taskCommand{Args: args, WorkDir: filepath.Join(config.AllocDir, config.Name), Env: config.Env}
	switch d.dialect {
	case Chroot:
		c.RootDir, c.WorkDir = c.WorkDir, "/"
	case Newest:
		c.WorkDir = config.Env["NOMAD_TASK_DIR"]
		if _, err := fmt.Sscanf(config.User, "nomad-%d", &c.UID); err != nil {
			return c, fmt.Errorf("user %q has not the form nomad-UID: %w", config.User, err)
		}
	}
	return c, nil
}

// trySendEvent sends an event of a task to the host. Old drivers send neither a time nor annotations.
func (d *protocolDialectDriver) trySendEvent(t *driverTask, message string) {
	e := &driverpb.DriverTaskEvent{TaskId: t.config.Id, AllocId: t.config.AllocId, TaskName: t.config.Name, Message: message}
	if d.dialect != Old {
		e.Timestamp = timestamppb.Now()
		e.Annotations = map[string]string{"dialect": string(d.dialect)}
	}
	select {
	case d.pendingEvents <- e:
	default: // without a reader, events are lost
	}
}

// msgpackV1Handle returns the msgpack codec that drivers use. It reads strings of the old and of the new version of
// MessagePack, and writes those of the old version.
func msgpackV1Handle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	h.TimeNotBuiltin = true
	return h
}

func encodeHandleState(state taskHandleState) (encoded []byte, err error) {
	var buffer bytes.Buffer
	err = codec.NewEncoder(&buffer, msgpackV1Handle()).Encode(state)
	return buffer.Bytes(), err
}

func (d *protocolDialectDriver) RecoverTask(_ context.Context, r *driverpb.RecoverTaskRequest) (*driverpb.RecoverTaskResponse, error) {
	config := r.GetHandle().GetConfig()
	if _, err := d.findTask(config.GetId()); err == nil {
		return &driverpb.RecoverTaskResponse{}, nil
	}
	if v := r.GetHandle().GetVersion(); v != 1 && v != 1<<30 {
		return nil, fmt.Errorf("unknown handle version %d", v)
	}
	if _, set := d.faultFile.faultArgs("recover-nothing"); set {
		return nil, errors.New("refused by the driver")
	}
	t := &driverTask{config: config}
	if err := codec.NewDecoderBytes(r.Handle.DriverState, msgpackV1Handle()).Decode(&t.state); err != nil {
		return nil, err
	}
	var err error
	if d.dialect == Skeleton {
		t.process, err = t.state.Executor.dial()
	} else {
		t.process, err = adoptProcess(t.state.PID)
	}
	if _, set := d.faultFile.faultArgs("recover-anything"); set {
		t.process, err = nonexistentProcess{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to reattach: %w", err)
	}
	d.addAndWatchTask(t)
	return &driverpb.RecoverTaskResponse{}, nil
}

// InspectTask is missing in old drivers.
func (d *protocolDialectDriver) InspectTask(ctx context.Context, r *driverpb.InspectTaskRequest) (*driverpb.InspectTaskResponse, error) {
	if d.dialect == Old {
		return d.UnimplementedDriverServer.InspectTask(ctx, r)
	}
	t, err := d.findTask(r.TaskId)
	if err != nil {
		return nil, err
	}
	status := &driverpb.TaskStatus{Id: t.config.Id, Name: t.config.Name, State: driverpb.TaskState_RUNNING, StartedAt: timestamppb.New(t.state.StartedAt)}
	select {
	case <-t.exited:
		status.State = driverpb.TaskState_EXITED
	default:
	}
	return &driverpb.InspectTaskResponse{Task: status, Driver: &driverpb.TaskDriverStatus{Attributes: map[string]string{"pid": fmt.Sprint(t.state.PID)}}}, nil
}

func (d *protocolDialectDriver) WaitTask(ctx context.Context, r *driverpb.WaitTaskRequest) (*driverpb.WaitTaskResponse, error) {
	t, err := d.findTask(r.TaskId)
	if err != nil {
		return nil, err
	}
	if response, err := d.faultyWaitResponseOrNil(); response != nil || err != nil {
		return response, err
	}
	select {
	case <-t.exited:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if _, set := d.faultFile.faultArgs("runs-forever"); set { // the driver claims that a task that has ended still runs
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if t.result.Unknown {
		return &driverpb.WaitTaskResponse{Err: "the exit code of a recovered task is unknown"}, nil
	}
	return &driverpb.WaitTaskResponse{Result: &driverpb.ExitResult{ExitCode: int32(t.result.ExitCode), Signal: int32(t.result.Signal)}}, nil
}

func (d *protocolDialectDriver) StopTask(_ context.Context, r *driverpb.StopTaskRequest) (*driverpb.StopTaskResponse, error) {
	t, err := d.findTask(r.TaskId)
	if err != nil {
		return nil, err
	}
	if _, set := d.faultFile.faultArgs("recover-anything"); set {
		return &driverpb.StopTaskResponse{}, nil
	}
	signal := syscall.SIGTERM
	if r.Signal != "" {
		signal = unix.SignalNum(r.Signal)
	}
	if err := t.process.signal(signal); err != nil {
		return nil, err
	}
	select {
	case <-t.exited:
	case <-time.After(r.Timeout.AsDuration()):
		_ = t.process.signal(syscall.SIGKILL) // the process can have exited
		<-t.exited
	}
	if d.dialect == Old {
		return nil, errExecutorDown
	}
	return &driverpb.StopTaskResponse{}, nil
}

func (d *protocolDialectDriver) DestroyTask(_ context.Context, r *driverpb.DestroyTaskRequest) (*driverpb.DestroyTaskResponse, error) {
	t, err := d.findTask(r.TaskId)
	if err != nil {
		return nil, err
	}
	for _, fault := range []string{"destroy-nothing", "recover-anything"} {
		if _, set := d.faultFile.faultArgs(fault); set {
			return &driverpb.DestroyTaskResponse{}, nil
		}
	}
	select {
	case <-t.exited:
	default:
		if !r.Force {
			return nil, errors.New("cannot destroy running task")
		}
		_ = t.process.signal(syscall.SIGKILL) // the process can have exited
		<-t.exited
	}
	t.process.releaseExecutor()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.taskByID, r.TaskId)
	return &driverpb.DestroyTaskResponse{}, nil
}

func (d *protocolDialectDriver) TaskStats(r *driverpb.TaskStatsRequest, stream grpc.ServerStreamingServer[driverpb.TaskStatsResponse]) error {
	t, err := d.findTask(r.TaskId)
	if err != nil {
		return err
	}
	if err := d.injectStatsFaults(stream); err != nil {
		return err
	}
	for {
		response := &driverpb.TaskStatsResponse{}
		if d.dialect != Old { // an old driver sends neither a time nor a usage
			response.Stats = &driverpb.TaskStats{
				Timestamp: timestamppb.Now(),
				AggResourceUsage: &driverpb.TaskResourceUsage{
					Cpu:    &driverpb.CPUUsage{Percent: 1, MeasuredFields: []driverpb.CPUUsage_Fields{driverpb.CPUUsage_PERCENT}},
					Memory: &driverpb.MemoryUsage{Rss: 1 << 20, MeasuredFields: []driverpb.MemoryUsage_Fields{driverpb.MemoryUsage_RSS}},
				},
			}
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-time.After(max(r.CollectionInterval.AsDuration(), 100*time.Millisecond)):
		case <-t.exited:
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (d *protocolDialectDriver) TaskEvents(_ *driverpb.TaskEventsRequest, stream grpc.ServerStreamingServer[driverpb.DriverTaskEvent]) error {
	if err := d.injectUnknownTaskEvents(stream); err != nil {
		return err
	}
	for {
		select {
		case e := <-d.pendingEvents:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (d *protocolDialectDriver) SignalTask(_ context.Context, r *driverpb.SignalTaskRequest) (*driverpb.SignalTaskResponse, error) {
	t, err := d.findTask(r.TaskId)
	if err != nil {
		return nil, err
	}
	signal := unix.SignalNum(r.Signal)
	if signal == 0 {
		return nil, fmt.Errorf("invalid signal: %q", r.Signal)
	}
	return &driverpb.SignalTaskResponse{}, t.process.signal(signal)
}

// ExecTaskStreaming runs a command without a terminal in the task.
func (d *protocolDialectDriver) ExecTaskStreaming(stream grpc.BidiStreamingServer[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.Setup == nil {
		return errors.New("first message should always be setup")
	}
	t, err := d.findTask(first.Setup.TaskId)
	if err != nil {
		return err
	}
	if len(first.Setup.Command) == 0 {
		return errors.New("command is required but was empty")
	}
	command, err := d.commandInTask(t.config, first.Setup.Command)
	if err != nil {
		return err
	}
	cmd := command.newCmd()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	result, err := runCommandToEnd(cmd)
	if err != nil {
		return err
	}
	closing := &driverpb.ExecTaskStreamingIOOperation{Close: true}
	for _, response := range []*driverpb.ExecTaskStreamingResponse{
		{Stdout: &driverpb.ExecTaskStreamingIOOperation{Data: stdout.Bytes()}}, {Stderr: &driverpb.ExecTaskStreamingIOOperation{Data: stderr.Bytes()}},
		{Stderr: closing}, {Stdout: closing},
		{Exited: true, Result: &driverpb.ExitResult{ExitCode: int32(result.ExitCode), Signal: int32(result.Signal)}},
	} {
		if err := stream.Send(response); err != nil {
			return err
		}
	}
	return nil
}
