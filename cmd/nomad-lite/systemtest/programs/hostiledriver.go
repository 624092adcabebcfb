package programs

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// serveFaultyDriver serves a driver without the SDK that has a fault in one of its methods: `hostile-driver NAME FAULT
// METHOD`. With the fault panic the method panics. With hang it blocks, even when the context ends, until a file
// "answer" exists. With goroutine a goroutine that outlives the call panics. Tasks have no process: they exist only in
// the plugin process, until they are stopped.
func serveFaultyDriver() {
	d := &faultyDriver{name: os.Args[1], faultKind: os.Args[2], faultyMethod: os.Args[3], tasks: map[string]*faultyDriverTask{}}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName:   &basewire.GRPCPlugin{Impl: d},
			driverwire.PluginName: &driverwire.GRPCPlugin{Impl: d},
		},
		GRPCServer: basewire.NewServerWithoutSizeLimits,
		Logger:     hclog.NewNullLogger(),
	})
}

type faultyDriver struct {
	driver.Driver   // implements the methods that hosts do not call in these tests
	name, faultKind string
	faultyMethod    string

	mu    sync.Mutex
	tasks map[string]*faultyDriverTask
}

type faultyDriverTask struct {
	config  *driver.TaskConfig
	endOnce sync.Once
	ended   chan struct{}
}

// injectFaultIfChosen is called at the start of every method, and causes the fault in the chosen method.
func (d *faultyDriver) injectFaultIfChosen(method string) {
	if method != d.faultyMethod {
		return
	}
	switch d.faultKind {
	case "panic":
		panic("not today")
	case "hang":
		for {
			if _, err := os.Stat("answer"); err == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	case "goroutine":
		go panic("not today")
	}
}

func (d *faultyDriver) findTask(id string) (*faultyDriverTask, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.tasks[id]; t != nil {
		return t, nil
	}
	return nil, driver.ErrTaskNotFound
}

func (d *faultyDriver) PluginInfo(context.Context) (*base.Info, error) {
	d.injectFaultIfChosen("PluginInfo")
	return &base.Info{Type: base.TypeDriver, Name: d.name, Version: "1.0.0", APIVersions: []string{driver.APIVersion}}, nil
}

func (d *faultyDriver) ConfigSchema(context.Context) (*hclspec.Spec, error) {
	d.injectFaultIfChosen("ConfigSchema")
	return hclspec.Object(nil), nil
}

func (d *faultyDriver) SetConfig(context.Context, *base.Config) error {
	d.injectFaultIfChosen("SetConfig")
	return nil
}

func (d *faultyDriver) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	d.injectFaultIfChosen("TaskConfigSchema")
	return hclspec.Object(nil), nil
}

func (d *faultyDriver) Capabilities(context.Context) (*driver.Capabilities, error) {
	d.injectFaultIfChosen("Capabilities")
	return &driver.Capabilities{SendSignals: true, Exec: true}, nil
}

func (d *faultyDriver) Init(context.Context) error { d.injectFaultIfChosen("Init"); return nil }

func (d *faultyDriver) Shutdown(context.Context) error { d.injectFaultIfChosen("Shutdown"); return nil }

func (d *faultyDriver) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	d.injectFaultIfChosen("Fingerprint")
	c := make(chan driver.Fingerprint, 1)
	c <- driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy"}
	return c, nil
}

func (d *faultyDriver) TaskEvents(context.Context) (<-chan *driver.TaskEvent, error) {
	d.injectFaultIfChosen("TaskEvents")
	return nil, nil
}

func (d *faultyDriver) StartTask(_ context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	d.injectFaultIfChosen("StartTask")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tasks[config.ID] != nil {
		return nil, nil, errors.New("started already")
	}
	d.tasks[config.ID] = &faultyDriverTask{config: config, ended: make(chan struct{})}
	return &driver.Handle{Version: 1, Config: config, State: driver.TaskRunning}, nil, nil
}

func (d *faultyDriver) RecoverTask(_ context.Context, handle *driver.Handle) error {
	d.injectFaultIfChosen("RecoverTask")
	_, err := d.findTask(handle.Config.ID)
	return err
}

func (d *faultyDriver) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	d.injectFaultIfChosen("WaitTask")
	t, err := d.findTask(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.ended:
		return &driver.ExitResult{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *faultyDriver) StopTask(_ context.Context, id string, _ time.Duration, _ string) error {
	d.injectFaultIfChosen("StopTask")
	t, err := d.findTask(id)
	if err != nil {
		return err
	}
	t.endOnce.Do(func() { close(t.ended) })
	return nil
}

func (d *faultyDriver) DestroyTask(ctx context.Context, id string, force bool) error {
	d.injectFaultIfChosen("DestroyTask")
	t, err := d.findTask(id)
	if err != nil {
		return err
	}
	select {
	case <-t.ended:
	default:
		if !force {
			return errors.New("it runs")
		}
		t.endOnce.Do(func() { close(t.ended) })
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.tasks, id)
	return nil
}

func (d *faultyDriver) InspectTask(_ context.Context, id string) (*driver.TaskStatus, error) {
	d.injectFaultIfChosen("InspectTask")
	t, err := d.findTask(id)
	if err != nil {
		return nil, err
	}
	status := &driver.TaskStatus{ID: id, Name: t.config.Name, State: driver.TaskRunning, StartedAt: time.Now()}
	select {
	case <-t.ended:
		status.State, status.CompletedAt, status.ExitResult = driver.TaskExited, time.Now(), &driver.ExitResult{}
	default:
	}
	return status, nil
}

func (d *faultyDriver) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	d.injectFaultIfChosen("TaskStats")
	return nil, driver.ErrStatsNotImplemented
}

func (d *faultyDriver) SignalTask(_ context.Context, id, _ string) error {
	d.injectFaultIfChosen("SignalTask")
	_, err := d.findTask(id)
	return err
}

func (d *faultyDriver) ExecTask(_ context.Context, id string, _ []string, _ time.Duration) (*driver.ExecResult, error) {
	d.injectFaultIfChosen("ExecTask")
	if _, err := d.findTask(id); err != nil {
		return nil, err
	}
	return &driver.ExecResult{Stdout: []byte("hello")}, nil
}

func (d *faultyDriver) ExecTaskStreaming(context.Context, string, driver.Exec) (*driver.ExitResult, error) {
	d.injectFaultIfChosen("ExecTaskStreaming")
	return &driver.ExitResult{}, nil
}

// serveFaultySDKDriver serves a driver with the SDK that has a fault in one of its methods: `hostile-sdk-driver NAME
// FAULT METHOD`. It has the faults of serveFaultyDriver. With nothing, Start returns nil without an error. With
// misspell, Start decodes its config into a struct that does not match the schema.
func serveFaultySDKDriver() {
	sdk.ServeDriver(&faultySDKDriver{name: os.Args[1], faultInjector: &faultyDriver{faultKind: os.Args[2], faultyMethod: os.Args[3]}})
}

type faultySDKDriver struct {
	name          string
	faultInjector *faultyDriver
}

func (d *faultySDKDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         d.name,
		TaskSchema:   hclspec.Object(map[string]*hclspec.Spec{"message": hclspec.Attr("message", "string", false)}),
		Capabilities: driver.Capabilities{SendSignals: true},
	}
}

func (d *faultySDKDriver) Start(_ context.Context, start *sdk.StartRequest) (*faultySDKTask, error) {
	d.faultInjector.injectFaultIfChosen("Start")
	var config struct {
		Massage string `codec:"massage"`
	}
	switch d.faultInjector.faultKind {
	case "misspell":
		if err := start.DecodeConfig(&config); err != nil {
			return nil, err
		}
	case "nothing":
		return nil, nil
	}
	return &faultySDKTask{faultInjector: d.faultInjector, ended: make(chan struct{})}, nil
}

type faultySDKTask struct {
	faultInjector *faultyDriver
	endOnce       sync.Once
	ended         chan struct{}
}

func (t *faultySDKTask) Wait(ctx context.Context) (driver.ExitResult, error) {
	t.faultInjector.injectFaultIfChosen("Wait")
	select {
	case <-t.ended:
	case <-ctx.Done():
	}
	return driver.ExitResult{}, nil
}

func (t *faultySDKTask) Kill(context.Context) error {
	t.faultInjector.injectFaultIfChosen("Kill")
	t.endOnce.Do(func() { close(t.ended) })
	return nil
}

func (t *faultySDKTask) Stop(ctx context.Context, req sdk.StopRequest) error {
	t.faultInjector.injectFaultIfChosen("Stop")
	if strings.HasSuffix(req.Signal, "KILL") {
		return t.Kill(ctx)
	}
	t.endOnce.Do(func() { close(t.ended) })
	return nil
}

func (t *faultySDKTask) Signal(context.Context, string) error {
	t.faultInjector.injectFaultIfChosen("Signal")
	return nil
}

func (t *faultySDKTask) Stats(context.Context) (driver.TaskStats, error) {
	t.faultInjector.injectFaultIfChosen("Stats")
	return driver.TaskStats{}, nil
}
