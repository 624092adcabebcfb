package driverwire

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
)

// fakePluginProcess is a plugin process whose server runs in the test.
type fakePluginProcess struct {
	server  *grpc.Server
	conn    *grpc.ClientConn
	done    chan struct{}
	dieOnce sync.Once
}

// die ends the connections first and the process shortly after, like a kill.
func (p *fakePluginProcess) die() {
	p.dieOnce.Do(func() {
		p.server.Stop()
		time.Sleep(10 * time.Millisecond)
		close(p.done)
	})
}

// serveOnSocket runs a server on a unix socket until the test ends.
func serveOnSocket(t testing.TB, register func(grpc.ServiceRegistrar)) *fakePluginProcess {
	t.Helper()
	dir, err := os.MkdirTemp("", "wire")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	listener, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	return serveListener(t, listener, "unix://"+listener.Addr().String(), register)
}

// serveInMemory runs a server on an in-memory connection until the test ends, for a test
// with a fake clock.
func serveInMemory(t testing.TB, register func(grpc.ServiceRegistrar)) *fakePluginProcess {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	return serveListener(t, listener, "passthrough:memory", register,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
}

func serveListener(t testing.TB, listener net.Listener, target string, register func(grpc.ServiceRegistrar), opts ...grpc.DialOption) *fakePluginProcess {
	t.Helper()
	p := &fakePluginProcess{server: basewire.NewServerWithoutSizeLimits(nil), done: make(chan struct{})}
	register(p.server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = p.server.Serve(listener)
	}()
	var err error
	p.conn, err = grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.conn.Close()
		p.die()
		<-served
	})
	return p
}

// TestMain checks that the tests leave no goroutine of this package running.
func TestMain(m *testing.M) {
	if os.Getenv(envServePlugin) != "" {
		servePlugin()
		return
	}
	code := m.Run()
	if left := waitForGoroutinesToEnd(); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", strings.Join(left, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// waitForGoroutinesToEnd waits for the last goroutines to end, and returns the stacks of the
// goroutines that still run.
func waitForGoroutinesToEnd() []string {
	var remainingStacks []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		buf := make([]byte, 1<<20)
		remainingStacks = remainingStacks[:0]
		for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(stack, "plugins/driver/driverwire.") && !strings.Contains(stack, "plugins/driver/driverwire.TestMain") {
				remainingStacks = append(remainingStacks, stack)
			}
		}
		if len(remainingStacks) == 0 {
			return nil
		}
	}
	return remainingStacks
}

func newClientOf(t testing.TB, impl driver.Driver) (driver.Driver, *fakePluginProcess) {
	t.Helper()
	p := serveOnSocket(t, func(s grpc.ServiceRegistrar) { RegisterServer(s, impl) })
	return NewClient(p.conn, p.done), p
}

// fakeDriver is a driver that records its calls, and returns the values of its fields.
type fakeDriver struct {
	mu    sync.Mutex
	calls []any

	spec             *hclspec.Spec
	capabilities     *driver.Capabilities
	fingerprints     chan driver.Fingerprint
	handle           *driver.Handle
	networkOverride  *driver.NetworkOverride
	exitResult       *driver.ExitResult
	status           *driver.TaskStatus
	stats            chan *driver.TaskStats
	events           chan *driver.TaskEvent
	execResult       *driver.ExecResult
	networkIsolation *driver.NetworkIsolation
	networkCreated   bool
	execFunc         func(context.Context, driver.Exec) (*driver.ExitResult, error)
	waitFunc         func(context.Context) (*driver.ExitResult, error)
	err              error
}

func (f *fakeDriver) recordCall(call ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	return f.err
}

func (f *fakeDriver) lastCall() any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[len(f.calls)-1]
}

func (f *fakeDriver) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	return f.spec, f.recordCall("TaskConfigSchema")
}

func (f *fakeDriver) Capabilities(context.Context) (*driver.Capabilities, error) {
	return f.capabilities, f.recordCall("Capabilities")
}

func (f *fakeDriver) Init(context.Context) error { return f.recordCall("Init") }

func (f *fakeDriver) Shutdown(context.Context) error { return f.recordCall("Shutdown") }

func (f *fakeDriver) Fingerprint(context.Context) (<-chan driver.Fingerprint, error) {
	return f.fingerprints, f.recordCall("Fingerprint")
}

func (f *fakeDriver) StartTask(_ context.Context, c *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	return f.handle, f.networkOverride, f.recordCall("StartTask", c)
}

func (f *fakeDriver) RecoverTask(_ context.Context, h *driver.Handle) error {
	return f.recordCall("RecoverTask", h)
}

func (f *fakeDriver) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	err := f.recordCall("WaitTask", id)
	if f.waitFunc != nil {
		return f.waitFunc(ctx)
	}
	return f.exitResult, err
}

func (f *fakeDriver) StopTask(_ context.Context, id string, timeout time.Duration, signal string) error {
	return f.recordCall("StopTask", id, timeout, signal)
}

func (f *fakeDriver) DestroyTask(_ context.Context, id string, force bool) error {
	return f.recordCall("DestroyTask", id, force)
}

func (f *fakeDriver) InspectTask(_ context.Context, id string) (*driver.TaskStatus, error) {
	return f.status, f.recordCall("InspectTask", id)
}

func (f *fakeDriver) TaskStats(_ context.Context, id string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	return f.stats, f.recordCall("TaskStats", id, interval)
}

func (f *fakeDriver) TaskEvents(context.Context) (<-chan *driver.TaskEvent, error) {
	return f.events, f.recordCall("TaskEvents")
}

func (f *fakeDriver) SignalTask(_ context.Context, id, signal string) error {
	return f.recordCall("SignalTask", id, signal)
}

func (f *fakeDriver) ExecTask(_ context.Context, id string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	return f.execResult, f.recordCall("ExecTask", id, command, timeout)
}

func (f *fakeDriver) ExecTaskStreaming(ctx context.Context, id string, exec driver.Exec) (*driver.ExitResult, error) {
	if err := f.recordCall("ExecTaskStreaming", id, exec.Command, exec.TTY); err != nil {
		return nil, err
	}
	return f.execFunc(ctx, exec)
}

func (f *fakeDriver) CreateNetwork(_ context.Context, allocID, hostname string) (*driver.NetworkIsolation, bool, error) {
	return f.networkIsolation, f.networkCreated, f.recordCall("CreateNetwork", allocID, hostname)
}

func (f *fakeDriver) DestroyNetwork(_ context.Context, allocID string, isolation *driver.NetworkIsolation) error {
	return f.recordCall("DestroyNetwork", allocID, isolation)
}

// newFilledValue returns a value in which no field is zero, so that a test detects a field that
// is missing in the conversion to a message.
func newFilledValue[T any](t testing.TB) T {
	t.Helper()
	var v T
	n := 0
	fillFields(t, reflect.ValueOf(&v).Elem(), &n)
	return v
}

func fillFields(t testing.TB, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(int64(*n), 5).UTC()))
		return
	case error:
		return
	case driver.FSIsolation, driver.MountConfigs, driver.Health, driver.TaskState, driver.NetworkMode:
		v.SetInt(1)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillFields(t, v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fillFields(t, v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fillFields(t, v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fillFields(t, key, n)
			fillFields(t, value, n)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(uint64(*n % 256))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	case reflect.Interface:
		if v.Type() != reflect.TypeFor[error]() {
			v.Set(reflect.ValueOf(int64(*n)))
		}
	default:
		t.Fatalf("no way to fill a %s", v.Type())
	}
}

func expectEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\ngot  %+v\nwant %+v", what, got, want)
	}
}

// TestEveryFieldSurvivesBothDirections sends values in which every field is set.
func TestEveryFieldSurvivesBothDirections(t *testing.T) {
	stats := newFilledValue[driver.TaskStats](t)
	for _, usage := range stats.ByPID {
		copy(usage.CPU.Measured, driver.MeasurableCPUFields())
		copy(usage.Memory.Measured, driver.MeasurableMemoryFields())
	}
	stats.Total.CPU.Measured, stats.Total.Memory.Measured = driver.MeasurableCPUFields(), driver.MeasurableMemoryFields()
	event := newFilledValue[driver.TaskEvent](t)
	exitResult := newFilledValue[driver.ExitResult](t)
	exitResult.Err = errors.New("the driver's own")
	handle, override, inspect := newFilledValue[driver.Handle](t), newFilledValue[driver.NetworkOverride](t), newFilledValue[driver.TaskStatus](t)
	inspect.StartStatus.Phase = driver.StartReturned // the only phase with a handle
	capabilities, isolation, result := newFilledValue[driver.Capabilities](t), newFilledValue[driver.NetworkIsolation](t), newFilledValue[driver.ExecResult](t)
	fingerprint := driver.Fingerprint{
		Attributes: map[string]driver.Attribute{
			"bool": {Value: true}, "int": {Value: int64(5), Unit: "GiB"}, "float": {Value: 1.5, Unit: "MHz"}, "string": {Value: "s"},
		},
		Health:            driver.HealthHealthy,
		HealthDescription: "Healthy",
		Err:               errors.New("but not quite"),
	}
	f := &fakeDriver{
		spec:             hclspec.Object(map[string]*hclspec.Spec{"x": hclspec.Attr("x", "string", true)}),
		capabilities:     &capabilities,
		fingerprints:     make(chan driver.Fingerprint, 1),
		handle:           &handle,
		networkOverride:  &override,
		exitResult:       &exitResult,
		status:           &inspect,
		stats:            make(chan *driver.TaskStats, 1),
		events:           make(chan *driver.TaskEvent, 1),
		execResult:       &result,
		networkIsolation: &isolation,
		networkCreated:   true,
	}
	f.fingerprints <- fingerprint
	f.stats <- &stats
	close(f.stats)
	f.events <- &event

	d, _ := newClientOf(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	spec, err := d.TaskConfigSchema(ctx)
	expectEqual(t, "TaskConfigSchema", []any{spec, err}, []any{f.spec, nil})
	gotCapabilities, err := d.Capabilities(ctx)
	expectEqual(t, "Capabilities", []any{gotCapabilities, err}, []any{&capabilities, nil})
	expectEqual(t, "Init", d.Init(ctx), nil)
	expectEqual(t, "Init's call", f.lastCall(), []any{"Init"})

	fingerprints, err := d.Fingerprint(ctx)
	if err != nil {
		t.Fatal(err)
	}
	expectEqual(t, "Fingerprint", <-fingerprints, fingerprint)

	config := newFilledValue[driver.TaskConfig](t)
	gotHandle, gotOverride, err := d.StartTask(ctx, &config)
	expectEqual(t, "StartTask", []any{gotHandle, gotOverride, err}, []any{&handle, &override, nil})
	expectEqual(t, "StartTask's call", f.lastCall(), []any{"StartTask", &config})

	expectEqual(t, "RecoverTask", d.RecoverTask(ctx, &handle), nil)
	expectEqual(t, "RecoverTask's call", f.lastCall(), []any{"RecoverTask", &handle})

	gotExit, err := d.WaitTask(ctx, "id")
	expectEqual(t, "WaitTask", []any{gotExit, err}, []any{&exitResult, nil})
	expectEqual(t, "WaitTask's call", f.lastCall(), []any{"WaitTask", "id"})

	expectEqual(t, "StopTask", d.StopTask(ctx, "id", 5*time.Second, "SIGHUP"), nil)
	expectEqual(t, "StopTask's call", f.lastCall(), []any{"StopTask", "id", 5 * time.Second, "SIGHUP"})

	expectEqual(t, "DestroyTask", d.DestroyTask(ctx, "id", true), nil)
	expectEqual(t, "DestroyTask's call", f.lastCall(), []any{"DestroyTask", "id", true})

	gotStatus, err := d.InspectTask(ctx, "id")
	expectEqual(t, "InspectTask", []any{gotStatus, err}, []any{&inspect, nil})

	statsStream, err := d.TaskStats(ctx, "id", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	expectEqual(t, "TaskStats", <-statsStream, &stats)
	expectEqual(t, "TaskStats' call", f.lastCall(), []any{"TaskStats", "id", time.Second})
	if _, ok := <-statsStream; ok {
		t.Error("the stats stream goes on after its end")
	}

	events, err := d.TaskEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	expectEqual(t, "TaskEvents", <-events, &event)

	expectEqual(t, "SignalTask", d.SignalTask(ctx, "id", "SIGUSR1"), nil)
	expectEqual(t, "SignalTask's call", f.lastCall(), []any{"SignalTask", "id", "SIGUSR1"})

	gotResult, err := d.ExecTask(ctx, "id", []string{"a", "b"}, time.Minute)
	expectEqual(t, "ExecTask", []any{gotResult, err}, []any{&result, nil})
	expectEqual(t, "ExecTask's call", f.lastCall(), []any{"ExecTask", "id", []string{"a", "b"}, time.Minute})

	gotIsolation, created, err := d.CreateNetwork(ctx, "alloc", "host")
	expectEqual(t, "CreateNetwork", []any{gotIsolation, created, err}, []any{&isolation, true, nil})
	expectEqual(t, "CreateNetwork's call", f.lastCall(), []any{"CreateNetwork", "alloc", "host"})
	expectEqual(t, "DestroyNetwork", d.DestroyNetwork(ctx, "alloc", &isolation), nil)
	expectEqual(t, "DestroyNetwork's call", f.lastCall(), []any{"DestroyNetwork", "alloc", &isolation})

	expectEqual(t, "Shutdown", d.Shutdown(ctx), nil)

	cancel()
	if _, ok := <-events; ok {
		t.Error("an event after the end")
	}
	if f, ok := <-fingerprints; ok {
		t.Errorf("a fingerprint after the end: %v", f)
	}
}

// TestZeroValuesSurviveBothDirections sends zero values in requests and responses, through
// client and server.
func TestZeroValuesSurviveBothDirections(t *testing.T) {
	f := &fakeDriver{stats: make(chan *driver.TaskStats, 1)}
	f.stats <- nil
	close(f.stats)
	d, _ := newClientOf(t, f)
	ctx := t.Context()

	spec, err := d.TaskConfigSchema(ctx)
	expectEqual(t, "TaskConfigSchema", []any{spec, err}, []any{hclspec.Object(map[string]*hclspec.Spec{}), nil})
	capabilities, err := d.Capabilities(ctx)
	expectEqual(t, "Capabilities", []any{capabilities, err}, []any{&driver.Capabilities{}, nil})

	config := &driver.TaskConfig{ID: "id"}
	handle, override, err := d.StartTask(ctx, config)
	expectEqual(t, "StartTask", []any{handle, override, err}, []any{&driver.Handle{Version: 1, Config: config, State: driver.TaskRunning}, (*driver.NetworkOverride)(nil), nil})
	if handle.Config != config {
		t.Error("the handle has a second copy of the config")
	}

	expectEqual(t, "RecoverTask", d.RecoverTask(ctx, &driver.Handle{}), nil)
	expectEqual(t, "RecoverTask's call", f.lastCall(), []any{"RecoverTask", &driver.Handle{Config: &driver.TaskConfig{}}})
	if err := d.RecoverTask(ctx, nil); err == nil {
		t.Error("RecoverTask takes no handle for one")
	}

	exitResult, err := d.WaitTask(ctx, "id")
	if err != nil || exitResult.Err == nil || exitResult.Successful() {
		t.Errorf("WaitTask: got %+v, %v, want no success", exitResult, err)
	}
	status, err := d.InspectTask(ctx, "id")
	expectEqual(t, "InspectTask", []any{status, err}, []any{&driver.TaskStatus{ExitResult: &driver.ExitResult{}}, nil})
	stats, err := d.TaskStats(ctx, "id", 0)
	if err != nil {
		t.Fatal(err)
	}
	expectEqual(t, "TaskStats", <-stats, &driver.TaskStats{})
	if _, err := d.ExecTask(ctx, "id", nil, 0); err == nil {
		t.Error("ExecTask takes no result for one")
	}
	isolation, created, err := d.CreateNetwork(ctx, "", "")
	expectEqual(t, "CreateNetwork", []any{isolation, created, err}, []any{(*driver.NetworkIsolation)(nil), false, nil})
	before := f.lastCall()
	expectEqual(t, "DestroyNetwork", d.DestroyNetwork(ctx, "alloc", nil), nil)
	expectEqual(t, "DestroyNetwork makes no call", f.lastCall(), before)
}

func TestSentMessagesAreComplete(t *testing.T) {
	// Existing drivers and hosts read these nested messages without checking for nil.
	config := taskConfigProto(&driver.TaskConfig{})
	if r := config.Resources; r == nil || r.AllocatedResources == nil || r.AllocatedResources.Cpu == nil ||
		r.AllocatedResources.Memory == nil || r.LinuxResources == nil {
		t.Errorf("the resources have holes: %v", r)
	}
	stats := taskStatsProto("id", &driver.TaskStats{})
	if u := stats.AggResourceUsage; u == nil || u.Cpu == nil || u.Memory == nil || stats.Timestamp == nil {
		t.Errorf("the stats have holes: %v", stats)
	}
	inspect, err := taskStatusProto(&driver.TaskStatus{})
	if err != nil {
		t.Fatal(err)
	}
	if s := inspect.Task; s.StartedAt == nil || s.CompletedAt == nil || s.Result == nil {
		t.Errorf("the status has holes: %v", s)
	}
	if got, want := inspect.Task.CompletedAt.Seconds, int64(-62135596800); got != want {
		t.Errorf("not completed is %d, want %d", got, want)
	}
	if !timeFromProto(inspect.Task.CompletedAt).IsZero() {
		t.Error("not completed does not come back as the zero time")
	}
}

// envChangingDriver is a driver that changes the environment of a task that it starts.
type envChangingDriver struct{ fakeDriver }

func (d *envChangingDriver) StartTask(ctx context.Context, c *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	c.Env["ADDED"] = "by the driver"
	return &driver.Handle{Version: 1, Config: c}, nil, d.recordCall("StartTask", c)
}

func TestHandleConfigIsOmittedOnlyOnRequest(t *testing.T) {
	p := serveOnSocket(t, func(s grpc.ServiceRegistrar) { RegisterServer(s, new(envChangingDriver)) })
	request := &driverpb.StartTaskRequest{Task: &driverpb.TaskConfig{Id: "id", Env: map[string]string{"A": "b"}}}
	c := driverpb.NewDriverClient(p.conn)
	if start, err := c.StartTask(t.Context(), request); err != nil || !proto.Equal(start.Handle.Config, request.Task) {
		t.Errorf("got %v, %v, want the configuration as sent", start, err)
	}
	if start, err := c.StartTask(OmitHandleConfig(t.Context()), request); err != nil || start.Handle == nil || start.Handle.Config != nil {
		t.Errorf("got %v, %v, want a handle without configuration", start, err)
	}

	sent := &driver.TaskConfig{ID: "id", Env: map[string]string{"A": "b"}}
	if handle, _, err := NewClient(p.conn, p.done).StartTask(OmitHandleConfig(t.Context()), sent); err != nil || handle.Config != sent {
		t.Errorf("got %+v, %v, want a handle with the sent configuration", handle, err)
	}

	other := &driver.TaskConfig{ID: "other"}
	d, _ := newClientOf(t, &fakeDriver{handle: &driver.Handle{Version: 1, Config: other}})
	if handle, _, err := d.StartTask(OmitHandleConfig(t.Context()), sent); err != nil || handle.Config.ID != other.ID {
		t.Errorf("got %+v, %v, want the driver's own configuration", handle, err)
	}
}

func TestErrorsOverTheWire(t *testing.T) {
	plain := errors.New("plain failure")
	tests := []struct {
		name        string
		err         error
		text        string
		code        codes.Code
		recoverable bool
		is          error
	}{
		{"a plain error", plain, "plain failure", codes.Unknown, false, nil},
		{"a recoverable error", driver.Recoverable(plain), "plain failure", codes.FailedPrecondition, true, nil},
		{"a wrapped recoverable error", fmt.Errorf("pull: %w", driver.Recoverable(plain)), "pull: plain failure", codes.FailedPrecondition, true, nil},
		{"a declared unrecoverable error", &driver.Error{Err: plain}, "plain failure", codes.FailedPrecondition, false, nil},
		{"task not found", driver.ErrTaskNotFound, "task not found for given id", codes.Unknown, false, driver.ErrTaskNotFound},
		{"task not found, with words", fmt.Errorf("stop: %w", driver.ErrTaskNotFound), "stop: task not found for given id", codes.Unknown, false, driver.ErrTaskNotFound},
		{"a recoverable task not found", driver.Recoverable(driver.ErrTaskNotFound), "task not found for given id", codes.FailedPrecondition, true, driver.ErrTaskNotFound},
		{"no stats", driver.ErrStatsNotImplemented, "stats not implemented for driver", codes.Unknown, false, driver.ErrStatsNotImplemented},
		{"a status of something behind the driver", status.Error(codes.NotFound, "no such image"), "no such image", codes.NotFound, false, nil},
	}
	f := &fakeDriver{}
	d, _ := newClientOf(t, f)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f.err = tt.err
			_, _, startErr := d.StartTask(t.Context(), &driver.TaskConfig{})
			_, statsErr := d.TaskStats(t.Context(), "id", time.Second)
			recoverErr := d.RecoverTask(t.Context(), &driver.Handle{})
			for call, err := range map[string]error{"StartTask": startErr, "TaskStats": statsErr, "RecoverTask": recoverErr} {
				if err == nil {
					t.Fatalf("%s: no error", call)
				}
				if err.Error() != tt.text {
					t.Errorf("%s: got text %q, want %q", call, err, tt.text)
				}
				if got := status.Code(err); got != tt.code {
					t.Errorf("%s: got code %v, want %v", call, got, tt.code)
				}
				if driver.IsRecoverable(err) != tt.recoverable {
					t.Errorf("%s: got recoverable %v, want %v", call, !tt.recoverable, tt.recoverable)
				}
				if tt.is != nil && !errors.Is(err, tt.is) {
					t.Errorf("%s: %v is not %v", call, err, tt.is)
				}
				if errors.Is(err, driver.ErrPluginDown) {
					t.Errorf("%s: a live plugin is said to be down", call)
				}
			}
		})
	}
	t.Run("every call tells a missing task", func(t *testing.T) {
		f.err = driver.ErrTaskNotFound
		ctx := t.Context()
		_, waitErr := d.WaitTask(ctx, "id")
		_, inspectErr := d.InspectTask(ctx, "id")
		_, execErr := d.ExecTask(ctx, "id", nil, 0)
		_, streamErr := d.ExecTaskStreaming(ctx, "id", driver.Exec{})
		for call, err := range map[string]error{
			"WaitTask": waitErr, "InspectTask": inspectErr, "ExecTask": execErr, "ExecTaskStreaming": streamErr,
			"StopTask":    d.StopTask(ctx, "id", 0, ""),
			"DestroyTask": d.DestroyTask(ctx, "id", false),
			"SignalTask":  d.SignalTask(ctx, "id", "SIGHUP"),
			"RecoverTask": d.RecoverTask(ctx, &driver.Handle{}),
		} {
			if !errors.Is(err, driver.ErrTaskNotFound) {
				t.Errorf("%s: got %v", call, err)
			}
		}
	})
	t.Run("a recovery that has not found out", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // the client waits for the exit of the plugin after some of the errors
			f := &fakeDriver{}
			p := serveInMemory(t, func(s grpc.ServiceRegistrar) { RegisterServer(s, f) })
			d := NewClient(p.conn, p.done)
			for _, c := range []struct {
				err  error
				open bool
			}{
				{status.Error(codes.Unavailable, "no connection to the engine"), true},
				{context.DeadlineExceeded, true},
				{context.Canceled, true},
				{driver.ErrTaskNotFound, false},
				{status.Error(codes.NotFound, "no such container"), false},
			} {
				f.err = c.err
				if err := d.RecoverTask(t.Context(), &driver.Handle{}); err == nil || driver.IsRecoverable(err) != c.open {
					t.Errorf("%v: got %v, recoverable %v, want %v", c.err, err, !c.open, c.open)
				}
			}
		})
	})
	t.Run("a port that is none", func(t *testing.T) {
		f.err, f.networkOverride = nil, &driver.NetworkOverride{PortMap: map[string]int{"http": math.MaxInt32 + 1}}
		_, _, err := d.StartTask(t.Context(), &driver.TaskConfig{})
		if err == nil || !strings.Contains(err.Error(), "port map out of bounds") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an environment that cannot be sent", func(t *testing.T) {
		_, _, err := d.StartTask(t.Context(), &driver.TaskConfig{Env: map[string]string{"BAD": "\xff"}})
		if err == nil || !strings.Contains(err.Error(), `environment variable "BAD" is not valid UTF-8`) {
			t.Errorf("got %v", err)
		}
	})
}

// TestRecoverableErrorEncoding compares the encoded status with fixed bytes: the encoding is
// part of the protocol.
func TestRecoverableErrorEncoding(t *testing.T) {
	s, _ := status.FromError(statusFromDriverError(driver.Recoverable(errors.New("rec failure"))))
	b, err := proto.Marshal(s.Proto())
	if err != nil {
		t.Fatal(err)
	}
	const want = "0809120b726563206661696c7572651a510a4b747970652e676f6f676c65617069732e636f6d2f6861736869636f72702e6e6f6d61642e706c7567696e732e7368617265642e737472756374732e5265636f76657261626c654572726f7212020801"
	if got := fmt.Sprintf("%x", b); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Nomad reads the first detail of the status, so the second one changes nothing for it.
func TestExhaustedResourcesCrossTheProtocol(t *testing.T) {
	f := &fakeDriver{}
	d, _ := newClientOf(t, f)
	for _, want := range []bool{true, false} {
		f.err = fmt.Errorf("start: %w", &driver.Error{Err: errors.New("too many open files"), Recoverable: true, ResourceExhausted: want})
		_, _, err := d.StartTask(t.Context(), &driver.TaskConfig{})
		if driver.IsResourceExhausted(err) != want || !driver.IsRecoverable(err) || err.Error() != "start: too many open files" {
			t.Errorf("with ResourceExhausted %v: %v, exhausted %v, recoverable %v", want, err, driver.IsResourceExhausted(err), driver.IsRecoverable(err))
		}
	}
}

// TestLargeMessages exceeds gRPC's limit of 4 MiB in both directions.
func TestLargeMessages(t *testing.T) {
	large := strings.Repeat("x", 5<<20)
	f := &fakeDriver{handle: &driver.Handle{Version: 1, DriverState: []byte(large)}}
	d, _ := newClientOf(t, f)
	handle, _, err := d.StartTask(t.Context(), &driver.TaskConfig{Env: map[string]string{"LARGE": large}})
	if err != nil {
		t.Fatal(err)
	}
	if len(handle.DriverState) != len(large) || len(handle.Config.Env["LARGE"]) != len(large) {
		t.Error("something is lost")
	}
}

func TestPluginDown(t *testing.T) {
	block := func(ctx context.Context) (*driver.ExitResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	t.Run("during every kind of call", func(t *testing.T) {
		f := &fakeDriver{
			waitFunc:     block,
			execFunc:     func(ctx context.Context, _ driver.Exec) (*driver.ExitResult, error) { return block(ctx) },
			fingerprints: make(chan driver.Fingerprint, 1),
			stats:        make(chan *driver.TaskStats, 1),
		}
		f.fingerprints <- driver.Fingerprint{Health: driver.HealthHealthy}
		f.stats <- &driver.TaskStats{}
		d, p := newClientOf(t, f)
		ctx := t.Context()
		fingerprints, err := d.Fingerprint(ctx)
		if err != nil {
			t.Fatal(err)
		}
		<-fingerprints
		stats, err := d.TaskStats(ctx, "id", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		<-stats
		events, err := d.TaskEvents(ctx)
		if err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 2)
		go func() { _, err := d.WaitTask(ctx, "id"); errs <- err }()
		go func() { _, err := d.ExecTaskStreaming(ctx, "id", driver.Exec{}); errs <- err }()
		for !f.wasCalled("WaitTask") || !f.wasCalled("ExecTaskStreaming") {
			time.Sleep(time.Millisecond)
		}
		p.die()
		for range 2 {
			if err := <-errs; !errors.Is(err, driver.ErrPluginDown) {
				t.Errorf("got %v", err)
			}
		}
		last := <-fingerprints
		if !errors.Is(last.Err, driver.ErrPluginDown) {
			t.Errorf("fingerprint: got %v", last.Err)
		}
		for range stats {
		}
		for range events {
		}
		if _, _, err := d.StartTask(ctx, &driver.TaskConfig{}); !errors.Is(err, driver.ErrPluginDown) {
			t.Errorf("StartTask afterwards: got %v", err)
		}
		if got, want := d.Init(ctx).Error(), "plugin is shut down"; got != want {
			t.Errorf("got text %q, want %q", got, want)
		}
	})
	t.Run("but not by the caller's own end", func(t *testing.T) {
		f := &fakeDriver{waitFunc: block}
		d, _ := newClientOf(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for !f.wasCalled("WaitTask") {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		if _, err := d.WaitTask(ctx, "id"); err != context.Canceled {
			t.Errorf("got %v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := d.WaitTask(ctx, "id"); err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		if err := d.Init(ctx); err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
	})
}

func (f *fakeDriver) wasCalled(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if call.([]any)[0] == name {
			return true
		}
	}
	return false
}

func TestFingerprintEnds(t *testing.T) {
	t.Run("when the driver closes its channel", func(t *testing.T) {
		f := &fakeDriver{fingerprints: make(chan driver.Fingerprint)}
		close(f.fingerprints)
		d, p := newClientOf(t, f)
		ch, err := d.Fingerprint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go p.die()
		if last := <-ch; !errors.Is(last.Err, driver.ErrPluginDown) {
			t.Errorf("the end of a dying plugin: got %v", last.Err)
		}
		if _, ok := <-ch; ok {
			t.Error("the channel goes on")
		}
	})
	t.Run("when an attribute is of no known type", func(t *testing.T) {
		f := &fakeDriver{fingerprints: make(chan driver.Fingerprint, 1)}
		f.fingerprints <- driver.Fingerprint{Attributes: map[string]driver.Attribute{"x": {Value: []int{1}}}}
		d, _ := newClientOf(t, f)
		ch, err := d.Fingerprint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if last := <-ch; last.Err == nil || !strings.Contains(last.Err.Error(), `fingerprint attribute "x"`) {
			t.Errorf("got %v", last.Err)
		}
	})
	t.Run("an abandoned stream", func(t *testing.T) {
		f := &fakeDriver{fingerprints: make(chan driver.Fingerprint, 2)}
		f.fingerprints <- driver.Fingerprint{}
		f.fingerprints <- driver.Fingerprint{}
		d, _ := newClientOf(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := d.Fingerprint(ctx); err != nil {
			t.Fatal(err)
		}
		cancel() // the client's goroutine must end although the channel has no reader
	})
}

// TestTaskEventsStayOpen checks that the stream of a driver without events stays open,
// because a host reopens an ended stream immediately.
func TestTaskEventsStayOpen(t *testing.T) {
	for name, events := range map[string]chan *driver.TaskEvent{"closed": make(chan *driver.TaskEvent), "nil": nil} {
		t.Run(name, func(t *testing.T) {
			if events != nil {
				close(events)
			}
			d, _ := newClientOf(t, &fakeDriver{events: events})
			ch, err := d.TaskEvents(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-ch:
				t.Error("the stream ended before its context")
			case <-time.After(50 * time.Millisecond):
			}
		})
	}
}

// TestUnknownMeasuredFieldIsAnError checks that an unknown field name in Measured is an
// error: without the check the server would silently drop the name.
func TestUnknownMeasuredFieldIsAnError(t *testing.T) {
	for _, c := range []struct {
		name  string
		stats driver.TaskStats
		want  string // part of the error; empty means no error
	}{
		{"all fields", driver.TaskStats{Total: driver.Usage{CPU: driver.CPUUsage{Measured: driver.MeasurableCPUFields()}, Memory: driver.MemoryUsage{Measured: driver.MeasurableMemoryFields()}}}, ""},
		{"a CPU field", driver.TaskStats{Total: driver.Usage{CPU: driver.CPUUsage{Measured: []string{"Percent", "percent"}}}}, `Total.CPU.Measured: no field is named "percent"`},
		{"a memory field", driver.TaskStats{Total: driver.Usage{Memory: driver.MemoryUsage{Measured: []string{"Rss"}}}}, `Total.Memory.Measured: no field is named "Rss"`},
		{"a field of a process", driver.TaskStats{ByPID: map[string]driver.Usage{"7": {Memory: driver.MemoryUsage{Measured: []string{"Percent"}}}}}, `ByPID["7"].Memory.Measured: no field is named "Percent"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeDriver{stats: make(chan *driver.TaskStats, 1)}
			f.stats <- &c.stats
			d, _ := newClientOf(t, f)
			stats, err := d.TaskStats(t.Context(), "id", time.Second)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want == "":
				expectEqual(t, "TaskStats", (<-stats).Total, c.stats.Total)
			case err == nil || !strings.Contains(err.Error(), c.want):
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// The environment that the client encodes itself is the one that protobuf encodes.
func TestEncodedEnvIsThatOfProtobuf(t *testing.T) {
	for _, env := range []map[string]string{nil, {}, {"": ""}, {"A": ""}, {"A": "1", "B": strings.Repeat("x", 300), "ü": "é"}} {
		want := &driverpb.TaskConfig{Id: "id", Env: env, DeviceEnv: map[string]string{"D": "1"}}
		task := proto.CloneOf(want)
		encodeEnv(task)
		wire, err := proto.Marshal(task)
		if err != nil {
			t.Fatal(err)
		}
		got := new(driverpb.TaskConfig)
		if err := proto.Unmarshal(wire, got); err != nil {
			t.Fatal(err)
		}
		if size := proto.Size(want); !proto.Equal(got, want) || len(wire) != size || len(task.Env) > 0 {
			t.Errorf("%v: %v in %d bytes, want %v in %d", env, got, len(wire), want, size)
		}
	}
}
