package peertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// probeVariants are the driver plugins of the tests: the names of their programs and drivers, and how they differ.
var probeVariants = map[string]func(*probeDriver){
	"probe": func(d *probeDriver) {
		d.capabilities = driver.Capabilities{
			SendSignals: true, Exec: true,
			NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup},
		}
		d.fingerprint = driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy", Attributes: map[string]driver.Attribute{
			"driver.probe.text":   {Value: "some text"},
			"driver.probe.yes":    {Value: true},
			"driver.probe.whole":  {Value: 2048, Unit: "MiB"},
			"driver.probe.broken": {Value: 1.5, Unit: "GHz"},
		}}
	},
	"probe_network": func(d *probeDriver) {
		d.capabilities = driver.Capabilities{
			MustCreateNetwork: true, FSIsolation: driver.FSIsolationImage,
			NetworkIsolationModes: []driver.NetworkMode{driver.NetworkGroup},
		}
	},
	"probe_limited": func(d *probeDriver) {
		d.capabilities = driver.Capabilities{
			MountConfigs: driver.MountConfigsNone, DisableLogCollection: true, DynamicWorkloadUsers: true,
		}
	},
	"probe_unhealthy": func(d *probeDriver) {
		d.fingerprint = driver.Fingerprint{Health: driver.HealthUnhealthy, HealthDescription: "has a cold"}
	},
	"probe_failing": func(d *probeDriver) {
		d.later = errors.New("thermometer is broken") // Nomad's start waits for a first fingerprint without an error
	},
}

// probeDriver is a task driver made with the SDK. It records each call of the host with its arguments in a file, as lines of
// JSON. Its tasks have no processes: they write their TaskConfig to their standard output, and end when they are killed or
// receive a signal.
type probeDriver struct {
	callRecorder
	name         string
	capabilities driver.Capabilities

	fingerprint   driver.Fingerprint
	fingerprinted atomic.Bool
	later         error // result of the second and later fingerprints
}

// serveProbe is the program `probe FILE`, where FILE is the file with the recorded calls. The name of the program is a key of
// probeVariants.
func serveProbe() {
	d := &probeDriver{name: programName(), fingerprint: driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy"}}
	probeVariants[d.name](d)
	d.open()
	sdk.ServeDriver(d)
}

// callRecorder records calls in the file that the first argument of the program names.
type callRecorder struct {
	file *os.File
	mu   sync.Mutex // serializes the writes of a process
}

// open opens the file. Without an argument, such as for plugin inspect, nothing is recorded.
func (r *callRecorder) open() {
	if len(os.Args) < 2 {
		return
	}
	var err error
	if r.file, err = os.OpenFile(os.Args[1], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		panic(err)
	}
}

// probeCall is one line of the file with the recorded calls.
type probeCall struct {
	Method  string
	PID     int // process of the plugin
	AllocID string
	Task    string
	Args    json.RawMessage
}

// called records a call.
func (r *callRecorder) called(method, allocID, task string, args any) {
	text, err := json.Marshal(args)
	if err == nil {
		text, err = json.Marshal(probeCall{method, os.Getpid(), allocID, task, text})
	}
	if err != nil {
		panic(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.file.Write(append(text, '\n')); err != nil {
		panic(err)
	}
}

const probeStateVersion = 7

func (d *probeDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name: d.name, Version: "4.5.6", StateVersion: probeStateVersion, Capabilities: d.capabilities, FingerprintInterval: time.Second,
		ConfigSchema: hclspec.Object(map[string]*hclspec.Spec{"greeting": hclspec.Default(hclspec.Attr("greeting", "string", false), hclspec.Literal(`"hello"`))}),
		TaskSchema:   probeTaskSchema,
	}
}

var probeNumberSchema = hclspec.Object(map[string]*hclspec.Spec{"n": hclspec.Attr("n", "number", true)})

// probeTaskSchema has each kind of part that a schema can have.
var probeTaskSchema = hclspec.Object(map[string]*hclspec.Spec{
	// How the task behaves.
	"start_error": hclspec.Attr("start_error", "string", false),
	"recoverable": hclspec.Attr("recoverable", "bool", false),
	"exit": hclspec.Block("exit", hclspec.Object(map[string]*hclspec.Spec{
		"code": hclspec.Attr("code", "number", true), "signal": hclspec.Attr("signal", "number", true), "oom": hclspec.Attr("oom", "bool", true),
	}), false),
	"override": hclspec.Block("override", hclspec.Object(map[string]*hclspec.Spec{
		"address": hclspec.Attr("address", "string", true), "port": hclspec.Attr("port", "number", true),
	}), false),
	// Values that the task records.
	"any":        hclspec.Attr("any", "any", false),
	"attributes": hclspec.BlockAttrs("attributes", "string", false),
	"constant":   hclspec.Literal(`"unchangeable"`),
	"list":       hclspec.BlockList("list", probeNumberSchema, 0, 2),
	"set":        hclspec.BlockSet("set", probeNumberSchema, 0, 3),
	"map":        hclspec.BlockMap("map", []string{"label"}, probeNumberSchema),
	"limits": hclspec.Block("limits", hclspec.Object(map[string]*hclspec.Spec{
		"pair":   hclspec.BlockList("pair", probeNumberSchema, 2, 0),
		"couple": hclspec.BlockSet("couple", probeNumberSchema, 2, 0),
		"needed": hclspec.Block("needed", probeNumberSchema, true),
		"labels": hclspec.BlockAttrs("labels", "string", true),
	}), false),
	"tuple": hclspec.Array(hclspec.Attr("first", "string", false), hclspec.Attr("second", "string", false)),
})

// probeTaskConfig is the config block of a task, and the state with which the task is recovered.
type probeTaskConfig struct {
	StartError  string `codec:"start_error"`
	Recoverable bool   `codec:"recoverable"`
	Exit        *struct {
		Code   int  `codec:"code"`
		Signal int  `codec:"signal"`
		OOM    bool `codec:"oom"`
	} `codec:"exit"`
	Override *struct {
		Address string `codec:"address"`
		Port    int    `codec:"port"`
	} `codec:"override"`
	Any        any                    `codec:"any"`
	Attributes map[string]string      `codec:"attributes"`
	Constant   string                 `codec:"constant"`
	List       []probeNumber          `codec:"list"`
	Set        []probeNumber          `codec:"set"`
	Map        map[string]probeNumber `codec:"map"`
	Tuple      []string               `codec:"tuple"`
	Limits     any                    `codec:"limits"`
}

type probeNumber struct {
	N int `codec:"n"`
}

func (d *probeDriver) Configure(_ context.Context, config *sdk.Config) error {
	var body struct {
		Greeting string `codec:"greeting"`
	}
	if err := config.Decode(&body); err != nil {
		return err
	}
	d.called("Configure", "", "", map[string]any{"Greeting": body.Greeting, "MinPort": config.MinPort, "MaxPort": config.MaxPort})
	return nil
}

func (d *probeDriver) Fingerprint(context.Context) driver.Fingerprint {
	if d.fingerprinted.Swap(true) && d.later != nil {
		return driver.Fingerprint{Err: d.later}
	}
	return d.fingerprint
}

func (d *probeDriver) Start(_ context.Context, start *sdk.StartRequest) (*probeTask, error) {
	var config probeTaskConfig
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	request := start.TaskConfig
	request.DriverConfig = nil
	d.called("Start", start.AllocID, start.Name, map[string]any{"TaskConfig": request, "Config": config})
	if config.StartError != "" {
		if err := errors.New(config.StartError); config.Recoverable {
			return nil, sdk.Recoverable(err)
		} else {
			return nil, err
		}
	}
	start.EventWithDetails("the probe has started", map[string]string{"color": "red"})
	task := newProbeTask(d, start, config)
	if config.Exit != nil {
		task.end(driver.ExitResult{ExitCode: config.Exit.Code, Signal: config.Exit.Signal, OOMKilled: config.Exit.OOM})
	}
	if !d.capabilities.DisableLogCollection {
		if err := writeOutput(start.StdoutPath, "output of the probe\n"); err != nil {
			return nil, err
		}
		if err := writeOutput(start.StderrPath, "errors of the probe\n"); err != nil {
			return nil, err
		}
	}
	return task, nil
}

// writeOutput writes a text to a FIFO that the host reads.
func writeOutput(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	return errors.Join(err, f.Close())
}

func (d *probeDriver) Recover(_ context.Context, start *sdk.StartRequest) (*probeTask, error) {
	var config probeTaskConfig
	if err := start.DecodeState(&config); err != nil {
		return nil, err
	}
	d.called("Recover", start.AllocID, start.Name, map[string]any{"TaskConfig": start.TaskConfig, "StateVersion": start.StateVersion, "State": config})
	return newProbeTask(d, start, config), nil
}

func (d *probeDriver) CreateNetwork(_ context.Context, req sdk.CreateNetworkRequest) (sdk.CreateNetworkResponse, error) {
	d.called("CreateNetwork", req.AllocID, "", map[string]any{"Hostname": req.Hostname})
	if out, err := exec.Command("ip", "netns", "add", filepath.Base(networkPath(req.AllocID))).CombinedOutput(); err != nil {
		return sdk.CreateNetworkResponse{}, fmt.Errorf("%w: %s", err, out)
	}
	return sdk.CreateNetworkResponse{Created: true, Isolation: &driver.NetworkIsolation{
		Mode: driver.NetworkGroup, Path: networkPath(req.AllocID), Labels: map[string]string{"taste": "sweet"},
		Hosts: &driver.HostsConfig{Hostname: "probe-host", Address: "192.0.2.7"},
	}}, nil
}

func (d *probeDriver) DestroyNetwork(_ context.Context, req sdk.DestroyNetworkRequest) error {
	d.called("DestroyNetwork", req.AllocID, "", req.Isolation)
	return exec.Command("ip", "netns", "del", filepath.Base(networkPath(req.AllocID))).Run()
}

// networkPath returns the path of the network namespace that the driver makes for an allocation.
func networkPath(allocID string) string { return "/run/netns/peertest-" + allocID }

// probeTask is a task of probeDriver.
type probeTask struct {
	driver *probeDriver
	start  *sdk.StartRequest
	config probeTaskConfig

	once   sync.Once
	exited chan struct{} // closed by end
	result driver.ExitResult
}

func newProbeTask(d *probeDriver, start *sdk.StartRequest, config probeTaskConfig) *probeTask {
	return &probeTask{driver: d, start: start, config: config, exited: make(chan struct{})}
}

func (t *probeTask) end(result driver.ExitResult) {
	t.once.Do(func() {
		t.result = result
		close(t.exited)
	})
}

func (t *probeTask) called(method string, args any) {
	t.driver.called(method, t.start.AllocID, t.start.Name, args)
}

func (t *probeTask) Wait(ctx context.Context) (driver.ExitResult, error) {
	select {
	case <-t.exited:
		return t.result, nil
	case <-ctx.Done():
		return driver.ExitResult{}, ctx.Err()
	}
}

func (t *probeTask) Kill(context.Context) error {
	t.called("Kill", nil)
	t.end(driver.ExitResult{Signal: 9})
	return nil
}

func (t *probeTask) Stop(_ context.Context, req sdk.StopRequest) error {
	t.called("Stop", map[string]any{"Timeout": req.Timeout, "Signal": req.Signal})
	t.end(driver.ExitResult{})
	return nil
}

func (t *probeTask) Signal(_ context.Context, name string) error {
	t.called("Signal", name)
	return nil
}

// Exec writes its standard input and its terminal size to the outputs, and exits with 42.
func (t *probeTask) Exec(ctx context.Context, command driver.Exec) (driver.ExitResult, error) {
	deadline, limited := ctx.Deadline()
	t.called("Exec", map[string]any{"Command": command.Command, "TTY": command.TTY, "Timeout": time.Until(deadline), "Limited": limited})
	if command.Stdin != nil {
		input := make([]byte, len("some input"))
		if _, err := io.ReadFull(command.Stdin, input); err != nil {
			return driver.ExitResult{}, err
		}
		if !command.TTY { // the end of the input of a terminal is a character
			if n, err := command.Stdin.Read(make([]byte, 1)); n > 0 || err != io.EOF {
				return driver.ExitResult{}, fmt.Errorf("the input does not end: %v", err)
			}
		}
		fmt.Fprintf(command.Stdout, "input %q\n", input)
	}
	if command.TTY {
		size := <-command.Resize
		fmt.Fprintf(command.Stdout, "terminal of %d rows, %d columns\n", size.Height, size.Width)
	}
	if command.Stderr != nil {
		fmt.Fprintln(command.Stderr, "an error message")
	}
	return driver.ExitResult{ExitCode: 42}, nil
}

// probeUsage has another value in each field.
var probeUsage = driver.Usage{
	CPU: driver.CPUUsage{
		System: 1.25, User: 2.5, Percent: 3.75, TotalTicks: 4.5, ThrottledPeriods: 5, ThrottledTime: 6,
		Measured: []string{"System Mode", "User Mode", "Percent", "Total Ticks", "Throttled Periods", "Throttled Time"},
	},
	Memory: driver.MemoryUsage{
		RSS: 11, Cache: 12, Swap: 13, Usage: 14, MaxUsage: 15, KernelUsage: 16, KernelMaxUsage: 17,
		Measured: []string{"RSS", "Cache", "Swap", "Usage", "Max Usage", "Kernel Usage", "Kernel Max Usage"},
	},
}

// probeStatsTime is the time of all samples of the probe.
var probeStatsTime = time.Date(2031, 2, 3, 4, 5, 6, 7, time.UTC)

func (t *probeTask) Stats(context.Context) (driver.TaskStats, error) {
	return driver.TaskStats{Timestamp: probeStatsTime, Total: probeUsage, ByPID: map[string]driver.Usage{"4711": probeUsage}}, nil
}

func (t *probeTask) State() any { return t.config }

func (t *probeTask) Network() *driver.NetworkOverride {
	if t.config.Override == nil {
		return nil
	}
	return &driver.NetworkOverride{Addr: t.config.Override.Address, PortMap: map[string]int{"web": t.config.Override.Port}, AutoAdvertise: true}
}
