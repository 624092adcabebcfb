package systemtest

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
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// hostileDriver is a driver plugin without the SDK that misbehaves in one of its methods:
// `hostile-driver NAME FAULT METHOD`. The faults are panic, hang (regardless of the
// context, until a file "answer" exists), and goroutine: a panic in a goroutine that
// outlives the call. Its tasks run in the process, until they are stopped.
func hostileDriver() {
	d := &badDriver{name: os.Args[1], fault: os.Args[2], method: os.Args[3], tasks: map[string]*badTask{}}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Plugins: plugin.PluginSet{
			base.PluginName:   &base.GRPCPlugin{Impl: d},
			driver.PluginName: &driver.GRPCPlugin{Impl: d},
		},
		GRPCServer: base.NewServer,
		Logger:     hclog.NewNullLogger(),
	})
}

type badDriver struct {
	driver.Driver // methods that hosts do not call in these tests
	name, fault   string
	method        string

	mu    sync.Mutex
	tasks map[string]*badTask
}

type badTask struct {
	config  *driver.TaskConfig
	endOnce sync.Once
	ended   chan struct{}
}

// enter runs at the start of every method.
func (d *badDriver) enter(method string) {
	if method != d.method {
		return
	}
	switch d.fault {
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

func (d *badDriver) find(id string) (*badTask, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.tasks[id]; t != nil {
		return t, nil
	}
	return nil, driver.ErrTaskNotFound
}

func (d *badDriver) PluginInfo(context.Context) (*base.Info, error) {
	d.enter("PluginInfo")
	return &base.Info{Type: base.TypeDriver, Name: d.name, Version: "1.0.0", APIVersions: []string{driver.APIVersion}}, nil
}

func (d *badDriver) ConfigSchema(context.Context) (*hclspec.Spec, error) {
	d.enter("ConfigSchema")
	return hclspec.Object(nil), nil
}

func (d *badDriver) SetConfig(context.Context, *base.Config) error {
	d.enter("SetConfig")
	return nil
}

func (d *badDriver) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	d.enter("TaskConfigSchema")
	return hclspec.Object(nil), nil
}

func (d *badDriver) Capabilities(context.Context) (*driver.Capabilities, error) {
	d.enter("Capabilities")
	return &driver.Capabilities{SendSignals: true, Exec: true}, nil
}

func (d *badDriver) Init(context.Context) error { d.enter("Init"); return nil }

func (d *badDriver) Shutdown(context.Context) error { d.enter("Shutdown"); return nil }

func (d *badDriver) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	d.enter("Fingerprint")
	c := make(chan driver.Fingerprint, 1)
	c <- driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy"}
	return c, nil
}

func (d *badDriver) TaskEvents(context.Context) (<-chan *driver.TaskEvent, error) {
	d.enter("TaskEvents")
	return nil, nil
}

func (d *badDriver) StartTask(_ context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	d.enter("StartTask")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tasks[config.ID] != nil {
		return nil, nil, errors.New("started already")
	}
	d.tasks[config.ID] = &badTask{config: config, ended: make(chan struct{})}
	return &driver.Handle{Version: 1, Config: config, State: driver.TaskRunning}, nil, nil
}

func (d *badDriver) RecoverTask(_ context.Context, handle *driver.Handle) error {
	d.enter("RecoverTask")
	_, err := d.find(handle.Config.ID)
	return err
}

func (d *badDriver) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	d.enter("WaitTask")
	t, err := d.find(id)
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

func (d *badDriver) StopTask(_ context.Context, id string, _ time.Duration, _ string) error {
	d.enter("StopTask")
	t, err := d.find(id)
	if err != nil {
		return err
	}
	t.endOnce.Do(func() { close(t.ended) })
	return nil
}

func (d *badDriver) DestroyTask(ctx context.Context, id string, force bool) error {
	d.enter("DestroyTask")
	t, err := d.find(id)
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

func (d *badDriver) InspectTask(_ context.Context, id string) (*driver.TaskStatus, error) {
	d.enter("InspectTask")
	t, err := d.find(id)
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

func (d *badDriver) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	d.enter("TaskStats")
	return nil, driver.ErrStatsNotImplemented
}

func (d *badDriver) SignalTask(_ context.Context, id, _ string) error {
	d.enter("SignalTask")
	_, err := d.find(id)
	return err
}

func (d *badDriver) ExecTask(_ context.Context, id string, _ []string, _ time.Duration) (*driver.ExecResult, error) {
	d.enter("ExecTask")
	if _, err := d.find(id); err != nil {
		return nil, err
	}
	return &driver.ExecResult{Stdout: []byte("hello")}, nil
}

func (d *badDriver) ExecTaskStreaming(context.Context, string, driver.Exec) (*driver.ExitResult, error) {
	d.enter("ExecTaskStreaming")
	return &driver.ExitResult{}, nil
}

// hostileSDKDriver is the same with the SDK: `hostile-sdk-driver NAME FAULT METHOD`. Its
// method Start can also return nothing, and lack a field of its schema.
func hostileSDKDriver() {
	sdk.ServeDriver(&badSDKDriver{name: os.Args[1], bad: &badDriver{fault: os.Args[2], method: os.Args[3]}})
}

type badSDKDriver struct {
	name string
	bad  *badDriver
}

func (d *badSDKDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         d.name,
		TaskSchema:   hclspec.Object(map[string]*hclspec.Spec{"message": hclspec.Attr("message", "string", false)}),
		Capabilities: driver.Capabilities{SendSignals: true},
	}
}

func (d *badSDKDriver) Start(_ context.Context, start *sdk.StartRequest) (*badSDKTask, error) {
	d.bad.enter("Start")
	var config struct {
		Massage string `codec:"massage"`
	}
	switch d.bad.fault {
	case "misspell":
		if err := start.Config(&config); err != nil {
			return nil, err
		}
	case "nothing":
		return nil, nil
	}
	return &badSDKTask{bad: d.bad, ended: make(chan struct{})}, nil
}

type badSDKTask struct {
	bad     *badDriver
	endOnce sync.Once
	ended   chan struct{}
}

func (t *badSDKTask) Wait(ctx context.Context) (driver.ExitResult, error) {
	t.bad.enter("Wait")
	select {
	case <-t.ended:
	case <-ctx.Done():
	}
	return driver.ExitResult{}, nil
}

func (t *badSDKTask) Kill(context.Context) error {
	t.bad.enter("Kill")
	t.endOnce.Do(func() { close(t.ended) })
	return nil
}

func (t *badSDKTask) Stop(ctx context.Context, _ time.Duration, signal string) error {
	t.bad.enter("Stop")
	if strings.HasSuffix(signal, "KILL") {
		return t.Kill(ctx)
	}
	t.endOnce.Do(func() { close(t.ended) })
	return nil
}

func (t *badSDKTask) Signal(context.Context, string) error { t.bad.enter("Signal"); return nil }

func (t *badSDKTask) Stats(context.Context) (driver.TaskStats, error) {
	t.bad.enter("Stats")
	return driver.TaskStats{}, nil
}
