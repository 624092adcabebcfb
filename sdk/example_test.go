package sdk_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// kettleDriver is the driver of the examples. Each of its tasks, a pot, boils water.
type kettleDriver struct{ heaterWatts int }

// kettleTask is one task of a kettle.
type kettleTask struct {
	startRequest *sdk.StartRequest
	done         chan struct{}
}

var (
	_ sdk.Driver[*kettleTask]    = (*kettleDriver)(nil)
	_ sdk.Recoverer[*kettleTask] = (*kettleDriver)(nil)
	_ sdk.Configurer             = (*kettleDriver)(nil)
	_ sdk.Fingerprinter          = (*kettleDriver)(nil)
	_ sdk.Task                   = (*kettleTask)(nil)
	_ sdk.StateProvider          = (*kettleTask)(nil)
	_ sdk.Execer                 = (*kettleTask)(nil)
	_ sdk.StatsProvider          = (*kettleTask)(nil)
)

func (k *kettleDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{Name: "kettle", ConfigSchema: kettleSchema, TaskSchema: taskConfigSchema, Capabilities: driver.Capabilities{Exec: true}}
}

// The main function of a driver has one line.
func ExampleServeDriver() {
	main := func() { sdk.ServeDriver(&kettleDriver{}) }
	_ = main
}

var taskConfigSchema = hclspec.Object(map[string]*hclspec.Spec{
	"litres": hclspec.Attr("litres", "number", true),
	"tea":    hclspec.Block("tea", hclspec.Object(map[string]*hclspec.Spec{"kind": hclspec.Attr("kind", "string", true)}), false),
})

// Start decodes the job's config, and reports progress with events.
func ExampleStartRequest() {
	start := func(ctx context.Context, start *sdk.StartRequest) (*kettleTask, error) {
		var config struct {
			Litres float64 `codec:"litres"`
			Tea    *struct {
				Kind string `codec:"kind"`
			} `codec:"tea"`
		}
		if err := start.DecodeConfig(&config); err != nil {
			return nil, err
		}
		if config.Litres > 2 {
			return nil, errors.New("the kettle holds 2 litres")
		}
		start.Event("filling the kettle")
		return &kettleTask{startRequest: start, done: make(chan struct{})}, nil
	}
	_ = start
}

func (k *kettleDriver) Start(context.Context, *sdk.StartRequest) (*kettleTask, error) {
	// Recoverable: the restart policy may start the task again, because a socket
	// may become free.
	return nil, sdk.Recoverable(errors.New("no socket is free"))
}

// For recovery, a task has the method State, and its driver has the method Recover.
func ExampleRecoverer() {
	recover := func(ctx context.Context, start *sdk.StartRequest) (*kettleTask, error) {
		var s kettleTaskState
		if err := start.DecodeState(&s); err != nil {
			return nil, err
		}
		if time.Since(s.StartedAt) > time.Hour {
			return nil, errors.New("the water has long gone cold")
		}
		return &kettleTask{startRequest: start, done: make(chan struct{})}, nil
	}
	_ = recover
}

type kettleTaskState struct {
	StartedAt time.Time `codec:"began"`
}

func (k *kettleTask) State() any { return kettleTaskState{StartedAt: time.Now()} }

func (k *kettleDriver) Recover(context.Context, *sdk.StartRequest) (*kettleTask, error) {
	return nil, errors.New("gone")
}

var kettleSchema = hclspec.Object(map[string]*hclspec.Spec{
	"watts": hclspec.Default(hclspec.Attr("watts", "number", false), hclspec.Literal("2000")),
})

// The driver's own configuration is in the host's plugin block. Hosts may call
// Configure more than once, also only for validation.
func ExampleConfigurer() {
	k := &kettleDriver{}
	configure := func(_ context.Context, c *sdk.Config) error {
		var config struct {
			Watts int `codec:"watts"`
		}
		if err := c.Decode(&config); err != nil {
			return err
		}
		if config.Watts > 3500 {
			return errors.New("watts: the fuse is for 3500")
		}
		k.heaterWatts = config.Watts
		return nil
	}
	_ = configure
}

func (k *kettleDriver) Configure(context.Context, *sdk.Config) error { return nil }

// Fingerprint is called periodically; a host only receives changes.
func ExampleFingerprinter() {
	plugged := func() bool { return true }
	fingerprint := func(context.Context) driver.Fingerprint {
		if !plugged() {
			return driver.Fingerprint{Health: driver.HealthUnhealthy, HealthDescription: "the kettle is not plugged in"}
		}
		return driver.Fingerprint{
			Health:     driver.HealthHealthy,
			Attributes: map[string]driver.Attribute{"driver.kettle.litres": {Value: 2.0}},
		}
	}
	_ = fingerprint
}

func (k *kettleDriver) Fingerprint(context.Context) driver.Fingerprint {
	return driver.Fingerprint{Health: driver.HealthHealthy}
}

func (k *kettleTask) Wait(ctx context.Context) (driver.ExitResult, error) {
	select {
	case <-k.done:
		return driver.ExitResult{}, nil
	case <-ctx.Done():
		return driver.ExitResult{}, ctx.Err()
	}
}

func (k *kettleTask) Kill(context.Context) error { return nil }

func (k *kettleTask) Exec(_ context.Context, e driver.Exec) (driver.ExitResult, error) {
	if _, err := e.Stdout.Write([]byte("stirring\n")); err != nil {
		return driver.ExitResult{}, err
	}
	return driver.ExitResult{ExitCode: 0}, nil
}

func (k *kettleTask) Stats(context.Context) (driver.TaskStats, error) {
	return driver.TaskStats{Total: driver.Usage{Memory: driver.MemoryUsage{RSS: 1 << 20, Measured: []string{"RSS"}}}}, nil
}

// bouncerHook is a hook with two hook points.
type bouncerHook struct{ host hook.Host }

var (
	_ sdk.HostSetter    = (*bouncerHook)(nil)
	_ hook.TaskPrestart = (*bouncerHook)(nil)
	_ hook.TaskExited   = (*bouncerHook)(nil)
)

func (*bouncerHook) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:             "bouncer",
		AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{"guests": hclspec.Attr("guests", "list(string)", true)}),
		Timeouts:         map[hook.Point]time.Duration{hook.Prestart: 5 * time.Second},
	}
}

func (b *bouncerHook) SetHost(host hook.Host, _ hook.Node) { b.host = host }

// The main function of a hook has one line.
func ExampleServeHook() {
	main := func() { sdk.ServeHook(&bouncerHook{}) }
	_ = main
}

// Prestart can fail a task, and change its environment. The next Prestart of the task
// gets the returned State as PreviousState.
func (b *bouncerHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	var config struct {
		Guests []string `codec:"guests"`
	}
	if err := req.DecodeConfig(&config); err != nil {
		return hook.TaskPrestartResponse{}, err
	}
	if !slices.Contains(config.Guests, req.Task.Name) {
		return hook.TaskPrestartResponse{}, errors.New("not on the list")
	}
	return hook.TaskPrestartResponse{
		Env:   map[string]string{"SEEN": req.PreviousState["seen"]},
		State: map[string]string{"seen": "yes"},
	}, nil
}

// Exited calls the host. The scope that it passes identifies the task of the
// request.
func (b *bouncerHook) Exited(ctx context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, b.host.EmitEvent(ctx, req.Scope(), hook.Event{Message: "see you"})
}

// An author can test a hook with a fake host.
func ExampleHostSetter() {
	b := &bouncerHook{}
	b.SetHost(stubHost{}, hook.Node{Name: "here"})
	if _, err := b.Exited(context.Background(), hook.TaskExitedRequest{}); err != nil {
		panic(err)
	}
}

// stubHost implements the methods that the hook calls.
type stubHost struct{ hook.Host }

func (stubHost) EmitEvent(context.Context, hook.Scope, hook.Event) error { return nil }

// dongleDevice is a device plugin with one device.
type dongleDevice struct{}

var (
	_ sdk.Device              = dongleDevice{}
	_ sdk.DeviceStatsProvider = dongleDevice{}
)

var dongleGroup = device.GroupID{Vendor: "acme", Type: "dongle", Name: "mark 2"}

func (dongleDevice) Info() sdk.DeviceInfo { return sdk.DeviceInfo{Name: "dongle"} }

func (dongleDevice) Fingerprint(context.Context) ([]device.Group, error) {
	return []device.Group{{
		ID:         dongleGroup,
		Devices:    []device.Device{{ID: "serial-1", Healthy: true}},
		Attributes: map[string]device.Attribute{"memory": {Value: 64, Unit: "MiB"}},
	}}, nil
}

func (dongleDevice) Reserve(_ context.Context, req *sdk.ReserveRequest) (*device.Reservation, error) {
	r := &device.Reservation{Env: map[string]string{}}
	for _, d := range req.Devices {
		r.Env["DONGLE"] = d.ID
		r.Devices = append(r.Devices, device.HostDevice{TaskPath: "/dev/dongle0", HostPath: "/dev/dongle0", Permissions: "rw"})
	}
	return r, nil
}

func (dongleDevice) Stats(context.Context) ([]device.GroupStats, error) {
	used := device.StatValue{Value: 12, Max: 64, Unit: "MiB", Description: "used memory"}
	return []device.GroupStats{{ID: dongleGroup, Instances: map[string]device.DeviceStats{"serial-1": {Summary: used}}}}, nil
}

// The main function of a device plugin has one line.
func ExampleServeDevice() {
	main := func() { sdk.ServeDevice(dongleDevice{}) }
	_ = main
}
