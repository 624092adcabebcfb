package mock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Name is the name of the driver in a job.
const Name = "mock_driver"

// Driver is the driver mock_driver. Its zero value is ready for use.
type Driver struct {
	mu            sync.Mutex
	config        pluginConfig
	configuredAt  time.Time      // time of the configuration
	startFailures map[string]int // number of failed starts, by allocation and task
}

var (
	_ sdk.Driver[*task]    = (*Driver)(nil)
	_ sdk.Recoverer[*task] = (*Driver)(nil)
	_ sdk.Adopter[*task]   = (*Driver)(nil)
	_ sdk.Configurer       = (*Driver)(nil)
	_ sdk.Fingerprinter    = (*Driver)(nil)
	_ sdk.Initializer      = (*Driver)(nil)
)

// Info describes the driver.
func (d *Driver) Info() sdk.DriverInfo {
	c, _ := d.currentConfig()
	info := sdk.DriverInfo{
		Name:         Name,
		Version:      "0.1.0",
		ConfigSchema: configSchema,
		TaskSchema:   taskSchema,
		Capabilities: driver.Capabilities{
			SendSignals:          true,
			Exec:                 true,
			FSIsolation:          fsIsolationByName[c.FSIsolation],
			DisableLogCollection: c.DisableLogCollection,
		},
		// The interval is short, because tests change the health and need a new
		// fingerprint quickly.
		FingerprintInterval: 20 * time.Millisecond,
	}
	if c.NoMounts {
		info.Capabilities.MountConfigs = driver.MountConfigsNone
	}
	return info
}

// Configure stores the plugin's configuration.
func (d *Driver) Configure(_ context.Context, c *sdk.Config) error {
	var newConfig pluginConfig
	if err := c.Decode(&newConfig); err != nil {
		return err
	}
	if err := newConfig.check(); err != nil {
		return err
	}
	if newConfig.ConfigError != "" {
		return errors.New(newConfig.ConfigError)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config, d.configuredAt = newConfig, time.Now()
	return nil
}

func (d *Driver) currentConfig() (pluginConfig, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config, d.configuredAt
}

// Init fails if the configuration has init_error.
func (d *Driver) Init(context.Context) error {
	if c, _ := d.currentConfig(); c.InitError != "" {
		return errors.New(c.InitError)
	}
	return nil
}

// Fingerprint returns the health that the configuration describes.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint {
	c, since := d.currentConfig()
	f := driver.Fingerprint{
		Health:            driver.HealthHealthy,
		HealthDescription: c.HealthDescription,
		Attributes:        map[string]driver.Attribute{"driver.mock": {Value: true}},
	}
	if h, ok := healthByName[c.Health]; ok {
		f.Health = h
	}
	if after := c.UnhealthyAfter.duration(); after > 0 {
		past := time.Since(since) - after
		if past >= 0 && (c.UnhealthyFor == "" || past < c.UnhealthyFor.duration()) {
			f.Health, f.HealthDescription = driver.HealthUnhealthy, "unhealthy as configured"
		}
	}
	return f
}

// Start starts a simulated task.
func (d *Driver) Start(ctx context.Context, start *sdk.StartRequest) (*task, error) {
	t := newTask(start)
	if err := start.Config(&t.Config); err != nil {
		return nil, err
	}
	c := &t.Config
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := wait.Sleep(ctx, c.StartBlockFor.duration()); err != nil {
		return nil, err
	}
	if c.StartError != "" && d.shouldFailStart(start, c.StartErrors) {
		err := errors.New(c.StartError)
		if c.StartErrorRecoverable {
			return nil, sdk.Recoverable(err)
		}
		return nil, err
	}
	for _, message := range c.Events {
		start.Event(message, map[string]string{"driver": Name})
	}
	t.Started = time.Now()
	// The marker file shows another process of the driver that the task was started.
	t.MarkerPath = markerPath(start)
	if err := os.WriteFile(t.MarkerPath, nil, 0o600); err != nil {
		return nil, sdk.Recoverable(fmt.Errorf("mark the task as started: %w", err))
	}
	t.schedulePluginExit()
	return t, nil
}

// shouldFailStart reports whether a start must fail: the first times starts of each
// task, or every start if times is 0.
func (d *Driver) shouldFailStart(start *sdk.StartRequest, times int) bool {
	if times == 0 {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.startFailures == nil {
		d.startFailures = map[string]int{}
	}
	key := start.AllocID + "/" + start.Name
	d.startFailures[key]++
	return d.startFailures[key] <= times
}

func markerPath(start *sdk.StartRequest) string {
	return filepath.Join(start.TaskDir(), ".mock_driver-"+filepath.Base(start.ID))
}

// Adopt restores a task whose start another process has not finished.
func (d *Driver) Adopt(_ context.Context, start *sdk.StartRequest) (*task, error) {
	t := newTask(start)
	t.MarkerPath = markerPath(start)
	info, err := os.Stat(t.MarkerPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, sdk.ErrNotExecuted
	}
	if err != nil {
		return nil, sdk.Recoverable(err)
	}
	if err := start.Config(&t.Config); err != nil {
		return nil, err
	}
	t.Started, t.recovered = info.ModTime(), true
	return t, nil
}

// Recover restores a task that another process has started.
func (d *Driver) Recover(_ context.Context, start *sdk.StartRequest) (*task, error) {
	t := newTask(start)
	if err := start.State(&t.taskState); err != nil {
		return nil, err
	}
	t.recovered = true
	if t.Config.RecoverError != "" {
		return nil, errors.New(t.Config.RecoverError)
	}
	if _, err := os.Stat(t.MarkerPath); err != nil {
		return nil, fmt.Errorf("the task is gone: %w", err)
	}
	if !t.Config.PluginExitOnce {
		t.schedulePluginExit()
	}
	return t, nil
}

// task is a simulated task. It runs for the configured time, or until it is
// stopped.
type task struct {
	taskState
	startRequest *sdk.StartRequest
	recovered    bool

	mu           sync.Mutex
	stopFailures int // number of failed stops

	forcedExit chan driver.ExitResult // has the exit result of Kill or Stop, at most one
	exited     chan struct{}          // closed when the task has exited
}

// taskState is the data that another process needs for Recover.
type taskState struct {
	Config     taskConfig `codec:"config"`
	Started    time.Time  `codec:"started"`
	MarkerPath string     `codec:"marker"`
}

func newTask(start *sdk.StartRequest) *task {
	return &task{startRequest: start, forcedExit: make(chan driver.ExitResult, 1), exited: make(chan struct{})}
}

// schedulePluginExit schedules the exit of this process with an error code, as
// after a crash.
func (t *task) schedulePluginExit() {
	if after := t.Config.PluginExitAt.duration(); after > 0 {
		time.AfterFunc(time.Until(t.Started.Add(after)), func() { os.Exit(1) })
	}
}

// Wait runs the task, and blocks until it has exited.
func (t *task) Wait(ctx context.Context) (driver.ExitResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	var outputWriters sync.WaitGroup
	defer close(t.exited)
	defer outputWriters.Wait()
	defer cancel()
	c := &t.Config
	outputWriters.Go(func() {
		writeOutput(ctx, t.startRequest.StdoutPath, c.StdoutString, c.StdoutRepeat, c.StdoutRepeatDuration.duration())
	})
	outputWriters.Go(func() {
		writeOutput(ctx, t.startRequest.StderrPath, c.StderrString, c.StderrRepeat, c.StderrRepeatDuration.duration())
	})
	if t.recovered && c.FailAfterRecover {
		return driver.ExitResult{}, errors.New("the task is lost, as configured by bad_recover")
	}
	timer := time.NewTimer(time.Until(t.Started.Add(c.RunFor.duration())))
	defer timer.Stop()
	select {
	case <-timer.C:
		if c.RunFor == "" {
			outputWriters.Wait() // the task exits when all its output is written
		}
		result := driver.ExitResult{ExitCode: c.ExitCode, Signal: c.ExitSignal, OOMKilled: c.OOMKilled}
		if c.ExitErrMsg != "" {
			result.Err = errors.New(c.ExitErrMsg)
		}
		return result, nil
	case result := <-t.forcedExit:
		return result, nil
	case <-ctx.Done():
		return driver.ExitResult{}, ctx.Err()
	}
}

// writeOutput writes text to the output file, and repeats it the given number of
// times.
func writeOutput(ctx context.Context, path, text string, repeat int, every time.Duration) {
	if text == "" || path == "" {
		return
	}
	out, err := openFIFO(ctx, path)
	if err != nil {
		return
	}
	defer out.Close()
	for i := 0; ; i++ {
		if _, err := io.WriteString(out, text); err != nil || i >= repeat {
			return
		}
		if wait.Sleep(ctx, every) != nil {
			return
		}
	}
}

// openFIFO opens a FIFO for writing. It blocks until the FIFO has a reader or ctx
// ends.
func openFIFO(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if !errors.Is(err, unix.ENXIO) {
			return f, err
		}
		if err := wait.Sleep(ctx, 2*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// forceExit makes the task exit; only the first call has an effect.
func (t *task) forceExit(result driver.ExitResult) {
	select {
	case t.forcedExit <- result:
	default:
	}
}

// Kill makes the task exit as with SIGKILL.
func (t *task) Kill(context.Context) error {
	t.forceExit(driver.ExitResult{ExitCode: 128 + int(unix.SIGKILL), Signal: int(unix.SIGKILL)})
	return nil
}

// Stop makes the task exit successfully after kill_after, or as with SIGKILL
// after the timeout.
func (t *task) Stop(ctx context.Context, timeout time.Duration, _ string) error {
	if t.Config.StopError != "" && t.shouldFailStop() {
		return errors.New(t.Config.StopError)
	}
	after := t.Config.KillAfter.duration()
	timer := time.NewTimer(min(after, timeout))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	if after > timeout {
		return t.Kill(ctx)
	}
	t.forceExit(driver.ExitResult{})
	return nil
}

func (t *task) shouldFailStop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopFailures++
	return t.Config.StopErrors == 0 || t.stopFailures <= t.Config.StopErrors
}

// Signal emits an event with the signal.
func (t *task) Signal(_ context.Context, name string) error {
	if t.Config.SignalError != "" {
		return errors.New(t.Config.SignalError)
	}
	t.startRequest.Event("got signal "+name, map[string]string{"signal": name})
	return nil
}

// Exec simulates a command as exec_command describes.
func (t *task) Exec(ctx context.Context, e driver.Exec) (driver.ExitResult, error) {
	c := &t.Config.Exec
	for _, out := range []struct {
		to   io.Writer
		text string
	}{{e.Stdout, c.StdoutString}, {e.Stderr, c.StderrString}} {
		if out.to == nil || out.text == "" {
			continue
		}
		if _, err := io.WriteString(out.to, out.text); err != nil {
			return driver.ExitResult{}, fmt.Errorf("write the output of %q: %w", e.Command, err)
		}
	}
	if err := wait.Sleep(ctx, c.RunFor.duration()); err != nil {
		return driver.ExitResult{}, err
	}
	if c.ExitErrMsg != "" {
		return driver.ExitResult{}, errors.New(c.ExitErrMsg)
	}
	return driver.ExitResult{ExitCode: c.ExitCode, Signal: c.ExitSignal}, nil
}

// Stats returns the statistics of the config.
func (t *task) Stats(context.Context) (driver.TaskStats, error) {
	return driver.TaskStats{Total: driver.Usage{
		CPU:    driver.CPUUsage{Percent: t.Config.StatsCPUPercent, Measured: []string{"Percent"}},
		Memory: driver.MemoryUsage{RSS: t.Config.StatsRSS, Measured: []string{"RSS"}},
	}}, nil
}

// State returns the data for Recover.
func (t *task) State() any { return t.taskState }

// Network returns the network of the config.
func (t *task) Network() *driver.NetworkOverride {
	c := &t.Config
	if c.DriverIP == "" && c.DriverPortMap == "" {
		return nil
	}
	ports, _ := c.portMap() // no error: Start has checked the ports
	return &driver.NetworkOverride{Addr: c.DriverIP, AutoAdvertise: c.DriverAdvertise, PortMap: ports}
}

// Destroy removes the task, or fails if the config has destroy_error.
func (t *task) Destroy(context.Context) error {
	if err := os.Remove(t.MarkerPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if t.Config.DestroyError != "" {
		return errors.New(t.Config.DestroyError)
	}
	return nil
}
