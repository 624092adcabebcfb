package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

const (
	driverName = "clock"
	version    = "0.1.0"
)

// The compiler reports a missing or wrong method.
var (
	_ sdk.Driver[clockTask]    = (*clock)(nil)
	_ sdk.Recoverer[clockTask] = (*clock)(nil)
	_ sdk.Adopter[clockTask]   = (*clock)(nil)
	_ sdk.OrphanKiller         = (*clock)(nil)
	_ sdk.Configurer           = (*clock)(nil)
	_ sdk.Fingerprinter        = (*clock)(nil)
)

// clockTask is a task: one that runs or that this process can wait for (task), or one of
// which only the exit code is left (endedTask).
type clockTask interface {
	sdk.Task
	sdk.Signaler
	sdk.Execer
	sdk.StatsProvider
	sdk.StateProvider
	sdk.AttributesProvider
	sdk.Destroyer
}

// clock is the driver.
type clock struct {
	zones zoneDirs

	mu      sync.Mutex
	config  pluginConfig
	zone    zone
	zoneErr error // why no task can start: there is no time zone data
	running int   // tasks that count for max_tasks
}

func newClock() *clock {
	c := &clock{zones: systemZones(), config: defaultPluginConfig}
	c.zone, c.zoneErr = c.zones.find(c.config.Timezone)
	return c
}

func (*clock) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:                driverName,
		Version:             version,
		ConfigSchema:        pluginSchema,
		TaskSchema:          taskSchema,
		Capabilities:        driver.Capabilities{SendSignals: true, Exec: true},
		FingerprintInterval: 5 * time.Second,
	}
}

// pluginConfig is the config block of the plugin block.
type pluginConfig struct {
	MaxTasks int    `codec:"max_tasks"`
	Timezone string `codec:"timezone"`
}

var defaultPluginConfig = pluginConfig{MaxTasks: 10, Timezone: "UTC"}

var pluginSchema = hclspec.Object(map[string]*hclspec.Spec{
	"max_tasks": hclspec.Default(hclspec.Attr("max_tasks", "number", false), hclspec.Literal("10")),
	"timezone":  hclspec.Default(hclspec.Attr("timezone", "string", false), hclspec.Literal(`"UTC"`)),
})

// Configure accepts the configuration. A time zone without any time zone data on the
// machine is no error of the configuration: Fingerprint reports it.
func (c *clock) Configure(_ context.Context, config *sdk.Config) error {
	decoded := defaultPluginConfig
	if err := config.Decode(&decoded); err != nil {
		return err
	}
	if decoded.MaxTasks < 1 {
		return fmt.Errorf("max_tasks is %d, and must be 1 or more", decoded.MaxTasks)
	}
	z, err := c.zones.find(decoded.Timezone)
	if err != nil && !errors.Is(err, errNoZoneData) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config, c.zone, c.zoneErr = decoded, z, err
	return nil
}

// Fingerprint looks for the time zone data again, which can be installed or removed
// while the plugin runs.
func (c *clock) Fingerprint(context.Context) driver.Fingerprint {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.zone, c.zoneErr = c.zones.find(c.config.Timezone)
	f := driver.Fingerprint{
		Attributes: map[string]driver.Attribute{
			"driver.clock.version":   {Value: version},
			"driver.clock.timezone":  {Value: c.config.Timezone},
			"driver.clock.max_tasks": {Value: c.config.MaxTasks},
		},
		Health:            driver.HealthHealthy,
		HealthDescription: "Healthy",
	}
	if c.zoneErr != nil {
		f.Health, f.HealthDescription = driver.HealthUnhealthy, c.zoneErr.Error()
	}
	return f
}

// task is a running clock.
type task struct {
	*process.Process
	zone    string
	release func() // ends the count of the task for max_tasks
}

// taskState is what Recover needs.
type taskState struct {
	Process process.State `codec:"process"`
	Zone    string        `codec:"zone"`
}

func (c *clock) newTask(p *process.Process, zone string, release func()) *task {
	return &task{Process: p, zone: zone, release: release}
}

// take counts a task; a limit of 0 is none. The function that it returns ends the count.
func (c *clock) take(limit int) (func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if limit > 0 && c.running >= limit {
		return nil, fmt.Errorf("%d tasks run already, and max_tasks of the plugin is %d", c.running, limit)
	}
	c.running++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running--
	}), nil
}

func (c *clock) current() (pluginConfig, zone, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.config, c.zone, c.zoneErr
}

func (c *clock) Start(ctx context.Context, start *sdk.StartRequest) (clockTask, error) {
	var t taskConfig
	if err := start.DecodeConfig(&t); err != nil {
		return nil, err
	}
	plan, err := t.plan()
	if err != nil {
		return nil, err
	}
	config, z, err := c.current()
	if err != nil {
		return nil, sdk.Recoverable(err) // the data can be installed
	}
	plan.Zone, plan.ZoneFile, plan.ExitFile = z.name, z.file, filepath.Join(start.TaskDir(), exitName)
	arg, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	release, err := c.take(config.MaxTasks)
	if err != nil {
		return nil, sdk.Recoverable(err) // another task can end
	}
	p, err := process.Start(ctx, start, process.Command{
		// The link leads to this program also when its file was replaced, and for a user who
		// cannot enter the plugin directory.
		Path: "/proc/self/exe",
		Args: []string{tickerArg, string(arg)},
	})
	if err != nil {
		release()
		return nil, err
	}
	start.EventWithDetails("clock started: "+plan.summary(), map[string]string{"timezone": z.name})
	return c.newTask(p, z.name, release), nil
}

// Recover finds a task again after this program was replaced while it ran.
func (c *clock) Recover(ctx context.Context, start *sdk.StartRequest) (clockTask, error) {
	var state taskState
	if err := start.DecodeState(&state); err != nil {
		return nil, err
	}
	p, err := process.Recover(ctx, start, state.Process)
	if err != nil {
		if code, ok := readExit(start.TaskDir(), state.Process.PID); ok && errors.Is(err, process.ErrExitStatusUnknown) {
			start.Logger().Info("the task has ended", "pid", state.Process.PID, "exit_code", code)
			return &endedTask{state: state, code: code}, nil
		}
		return nil, err
	}
	release, err := c.take(0)
	if err != nil {
		return nil, err
	}
	start.Logger().Info("recovered", "pid", p.PID())
	return c.newTask(p, state.Zone, release), nil
}

// Adopt finds a task again if this program died while it started the task.
func (c *clock) Adopt(ctx context.Context, start *sdk.StartRequest) (clockTask, error) {
	return process.AdoptTask(ctx, start, func(p *process.ProcessWithoutExec) (clockTask, error) {
		release, err := c.take(0)
		if err != nil {
			return nil, err
		}
		config, _, _ := c.current()
		return c.newTask(process.NewProcess(p, nil), config.Timezone, release), nil
	})
}

// Sweep kills what a start has left that nobody knows.
func (*clock) Sweep(ctx context.Context, req sdk.SweepRequest) (bool, error) {
	return process.Sweep(ctx, req)
}

func (t *task) Wait(ctx context.Context) (driver.ExitResult, error) {
	defer t.release()
	return t.Process.Wait(ctx)
}

func (t *task) State() any { return taskState{Process: t.Snapshot(), Zone: t.zone} }

func (t *task) Attributes() map[string]string {
	attributes := t.Process.Attributes()
	attributes["timezone"] = t.zone
	return attributes
}

func (t *task) Destroy(ctx context.Context) error {
	if err := t.Process.Destroy(ctx); err != nil {
		return err
	}
	t.release()
	return nil
}

// zone is a time zone, and the file with its data; the file of UTC is "".
type zone struct{ name, file string }

func (z zone) load() (*time.Location, error) {
	if z.file == "" {
		return time.UTC, nil
	}
	data, err := os.ReadFile(z.file)
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(z.name, data)
}

// zoneDirs are the directories that can have time zone data.
type zoneDirs []string

var errNoZoneData = errors.New("no time zone data on this machine; install the package tzdata")

func systemZones() zoneDirs {
	if dir := os.Getenv("ZONEINFO"); dir != "" {
		return zoneDirs{dir}
	}
	return zoneDirs{"/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/etc/zoneinfo"}
}

// find returns a time zone whose data can be read. UTC needs no data. The error is
// errNoZoneData if the machine has no data for any zone.
func (dirs zoneDirs) find(name string) (zone, error) {
	if name == "UTC" {
		return zone{name: name}, nil
	}
	if name == "" || !filepath.IsLocal(name) {
		return zone{}, fmt.Errorf("timezone %q is no name of a time zone", name)
	}
	found := false
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		found = true
		z := zone{name: name, file: filepath.Join(dir, name)}
		if _, err := z.load(); err == nil {
			return z, nil
		}
	}
	if !found {
		return zone{}, fmt.Errorf("timezone %q: %w", name, errNoZoneData)
	}
	return zone{}, fmt.Errorf("timezone %q is unknown", name)
}
