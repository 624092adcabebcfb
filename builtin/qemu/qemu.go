package qemu

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// Name is the name of the driver in a job.
const Name = "qemu"

// Driver is the driver qemu. Its zero value is ready for use.
type Driver struct {
	versionCache hostprocess.ProgramVersionCache[string]

	mu     sync.Mutex
	config pluginConfig // guarded by mu
}

var (
	_ sdk.Driver[*task]    = (*Driver)(nil)
	_ sdk.Recoverer[*task] = (*Driver)(nil)
	_ sdk.Adopter[*task]   = (*Driver)(nil)
	_ sdk.Configurer       = (*Driver)(nil)
	_ sdk.Fingerprinter    = (*Driver)(nil)
	_ sdk.OrphanKiller     = (*Driver)(nil)
	_ sdk.Stopper          = (*task)(nil)
	_ sdk.StateProvider    = (*task)(nil)
)

// pluginConfig is the `plugin "qemu" { config { … } }` block.
type pluginConfig struct {
	ImagePaths         []string `codec:"image_paths"`
	ArgsAllowlist      []string `codec:"args_allowlist"`      // empty means that all arguments are allowed
	EmulatorsAllowlist []string `codec:"emulators_allowlist"` // empty means that all emulators are allowed
}

var configSchema = hclspec.Object(map[string]*hclspec.Spec{
	"image_paths":         hclspec.Attr("image_paths", "list(string)", false),
	"args_allowlist":      hclspec.Attr("args_allowlist", "list(string)", false),
	"emulators_allowlist": hclspec.Attr("emulators_allowlist", "list(string)", false),
})

// taskConfig is the `config` block of a task.
type taskConfig struct {
	ImagePath        string           `codec:"image_path"`
	Emulator         string           `codec:"emulator"`
	Accelerator      string           `codec:"accelerator"`
	MachineType      string           `codec:"machine_type"`
	DriveInterface   string           `codec:"drive_interface"`
	GracefulShutdown bool             `codec:"graceful_shutdown"`
	GuestAgent       bool             `codec:"guest_agent"`
	Args             []string         `codec:"args"`
	PortMap          []map[string]int `codec:"port_map"` // guest ports by the labels of host ports
}

var taskSchema = hclspec.Object(map[string]*hclspec.Spec{
	"image_path":        hclspec.Attr("image_path", "string", true),
	"emulator":          hclspec.Attr("emulator", "string", false),
	"accelerator":       hclspec.Attr("accelerator", "string", false),
	"machine_type":      hclspec.Attr("machine_type", "string", false),
	"drive_interface":   hclspec.Attr("drive_interface", "string", false),
	"graceful_shutdown": hclspec.Attr("graceful_shutdown", "bool", false),
	"guest_agent":       hclspec.Attr("guest_agent", "bool", false),
	"args":              hclspec.Attr("args", "list(string)", false),
	// list(map(number)), because an HCL block is decoded as a list with one element
	"port_map": hclspec.Attr("port_map", "list(map(number))", false),
})

// Info describes the driver.
func (d *Driver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         Name,
		Version:      "0.1.0",
		ConfigSchema: configSchema,
		TaskSchema:   taskSchema,
		Capabilities: driver.Capabilities{
			FSIsolation:           driver.FSIsolationNone,
			NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup},
			MountConfigs:          driver.MountConfigsAny,
		},
	}
}

// Configure stores the plugin's configuration.
func (d *Driver) Configure(_ context.Context, c *sdk.Config) error {
	var newConfig pluginConfig
	if err := c.Decode(&newConfig); err != nil {
		return err
	}
	if err := newConfig.validate(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config = newConfig
	return nil
}

func (c *pluginConfig) validate() error {
	for _, path := range c.ImagePaths {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("image_paths: %q is not an absolute path", path)
		}
	}
	for _, emulator := range c.EmulatorsAllowlist {
		if err := checkEmulatorName(emulator); err != nil {
			return fmt.Errorf("emulators_allowlist: %w", err)
		}
	}
	return nil
}

func (d *Driver) currentConfig() pluginConfig {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config
}

// Start starts the virtual machine of a task.
func (d *Driver) Start(ctx context.Context, start *sdk.StartRequest) (*task, error) {
	c := d.currentConfig()
	var tc taskConfig
	if err := start.DecodeConfig(&tc); err != nil {
		return nil, err
	}
	command, err := c.buildEmulatorCommand(&tc, start)
	if err != nil {
		return nil, err
	}
	defer closeFiles(command.ExtraFiles)
	for _, m := range start.Mounts {
		if m.RequestName != "" {
			start.EventOnce(fmt.Sprintf("volume %q is not mounted: a virtual machine has only its image and what args name", m.RequestName))
		}
	}
	p, err := process.StartWithoutExec(ctx, start, command)
	if err != nil {
		return nil, err
	}
	return newTask(p, start, tc.GracefulShutdown), nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Adopt finds the virtual machine of a start whose plugin process has died.
func (d *Driver) Adopt(ctx context.Context, start *sdk.StartRequest) (*task, error) {
	return process.AdoptTask(ctx, start, func(p *process.ProcessWithoutExec) (*task, error) {
		var tc taskConfig
		if err := start.DecodeConfig(&tc); err != nil {
			return nil, err
		}
		return newTask(p, start, tc.GracefulShutdown), nil
	})
}

// Recover recovers the virtual machine of a task.
func (d *Driver) Recover(ctx context.Context, start *sdk.StartRequest) (*task, error) {
	var s taskState
	if err := start.DecodeState(&s); err != nil {
		return nil, err
	}
	p, err := process.RecoverWithoutExec(ctx, start, s.Process)
	if err != nil {
		return nil, err
	}
	return newTask(p, start, s.HasMonitor), nil
}

// Sweep kills the emulator of a task for which the driver has no task object, and reports whether
// there was one.
func (d *Driver) Sweep(ctx context.Context, req sdk.SweepRequest) (bool, error) {
	return process.Sweep(ctx, req)
}

// task is a running virtual machine.
type task struct {
	*process.ProcessWithoutExec
	taskDir    string
	hasMonitor bool // true if the emulator has a monitor socket, because the task has graceful_shutdown
	logger     hclog.Logger
}

func newTask(p *process.ProcessWithoutExec, start *sdk.StartRequest, hasMonitor bool) *task {
	return &task{ProcessWithoutExec: p, taskDir: start.TaskDir(), hasMonitor: hasMonitor, logger: start.Logger()}
}

// taskState is the data for Recover.
type taskState struct {
	Process    process.State `codec:"process"`
	HasMonitor bool          `codec:"has_monitor"`
}

func (t *task) State() any { return taskState{Process: t.Snapshot(), HasMonitor: t.hasMonitor} }

// Stop shuts down the virtual machine with its power button if the task has graceful_shutdown. Otherwise, and
// shortly before the timeout passes, it sends the signal to the emulator, which then closes its images and exits.
// It kills an emulator that has not exited after the timeout.
func (t *task) Stop(ctx context.Context, req sdk.StopRequest) error {
	return t.StopWith(ctx, req.Timeout, func(ctx context.Context) error {
		if t.hasMonitor {
			pressing, cancel := context.WithTimeout(ctx, req.Timeout-min(req.Timeout/4, emulatorExitTime))
			defer cancel()
			err := t.pressPowerButtonUntilExit(pressing)
			switch {
			case ctx.Err() != nil, err == nil && pressing.Err() == nil:
				return nil // the emulator has exited, or has closed its monitor, which it does when it exits
			case err != nil:
				t.logger.Warn("power button not pressed, sending the signal", "error", err)
			}
		}
		return t.Signal(ctx, cmp.Or(req.Signal, "SIGINT"))
	})
}

// emulatorExitTime is the part of kill_timeout in which the emulator of a virtual machine that has not shut down can close its
// images.
const emulatorExitTime = 2 * time.Second

// findEmulator returns the path of an emulator.
func findEmulator(name string) (string, error) {
	if err := checkEmulatorName(name); err != nil {
		return "", err
	}
	return hostprocess.FindProgramInPath("qemu-system-" + name)
}

// checkEmulatorName returns an error if the name cannot be the end of the file name
// qemu-system-NAME.
func checkEmulatorName(name string) error {
	if name == "" || strings.ContainsRune(name, filepath.Separator) {
		return fmt.Errorf("%q is not the name of an emulator; x86_64 is the name of qemu-system-x86_64", name)
	}
	return nil
}
