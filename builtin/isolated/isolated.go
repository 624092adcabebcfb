package isolated

import (
	"context"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// defaultUser is the user of tasks that name no user.
const defaultUser = "nobody"

// Driver is embedded by a driver whose tasks are isolated processes of the machine. The driver adds
// the methods Info, Fingerprint, Start and Adopt, for which there are NewDriverInfo, sandbox.Fingerprint, StartCommand
// and AdoptCommand. The zero value is ready for use.
type Driver struct {
	config atomic.Pointer[Config] // nil until the first Configure
}

var (
	_ sdk.Configurer   = (*Driver)(nil)
	_ sdk.OrphanKiller = (*Driver)(nil)
)

// NewDriverInfo returns the description of a driver.
func NewDriverInfo(name string, taskSchema *hclspec.Spec) sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         name,
		Version:      "0.1.0",
		ConfigSchema: configSchema,
		TaskSchema:   taskSchema,
		Capabilities: driver.Capabilities{
			SendSignals:           true,
			Exec:                  true,
			FSIsolation:           driver.FSIsolationChroot,
			NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup, driver.NetworkNone},
			MountConfigs:          driver.MountConfigsAny,
		},
	}
}

// Configure stores the plugin's configuration.
func (d *Driver) Configure(_ context.Context, c *sdk.Config) error {
	var newConfig Config
	if err := c.Decode(&newConfig); err != nil {
		return err
	}
	if err := d.SetConfig(newConfig); err != nil {
		return err
	}
	for _, g := range newConfig.extraPermissions() {
		hclog.Default().Warn("the operator gives tasks more than the defaults", "option", g.optionName, "gives", g.description)
	}
	return nil
}

// SetConfig validates and stores a configuration, for tasks that start afterwards.
func (d *Driver) SetConfig(c Config) error {
	if err := c.validate(); err != nil {
		return err
	}
	d.config.Store(&c)
	return nil
}

func (d *Driver) currentConfig() *Config {
	if c := d.config.Load(); c != nil {
		return c
	}
	return &Config{}
}

// StartCommand starts an isolated command as a task. It sets the fields Dir, PidsLimit and Launcher
// of the command from the options of the task and of the driver.
func (d *Driver) StartCommand(ctx context.Context, start *sdk.StartRequest, tc *TaskConfig, command process.Command) (*Task, error) {
	if err := sandbox.CheckIsolationAvailable(); err != nil {
		return nil, err
	}
	c := d.currentConfig()
	t, err := newTaskWithoutProcess(c, start, tc)
	if err != nil {
		return nil, err
	}
	command.Dir = tc.WorkDir
	command.PidsLimit = c.PidsLimit
	command.Launcher = sandbox.New(start, t.sandboxOptions)
	t.Process, err = process.Start(ctx, start, command)
	return t, err
}

// newTaskWithoutProcess returns a task without its process. It returns an error for options that the operator does not permit.
func newTaskWithoutProcess(c *Config, start *sdk.StartRequest, tc *TaskConfig) (*Task, error) {
	cred, err := sandbox.TaskCredential(start.User, defaultUser)
	if err != nil {
		return nil, err
	}
	if err := c.CheckCredentialNotDenied(cred); err != nil {
		return nil, err
	}
	t := &Task{}
	t.sandboxOptions, err = c.sandboxOptions(tc, cred)
	return t, err
}

// AdoptCommand finds the process of a start whose plugin process has died in StartCommand. The
// function decodeTaskConfig returns the options of the task, and is called only if the process was found.
func (d *Driver) AdoptCommand(ctx context.Context, start *sdk.StartRequest, decodeTaskConfig func() (*TaskConfig, error)) (*Task, error) {
	return process.AdoptTask(ctx, start, func(p *process.ProcessWithoutExec) (*Task, error) {
		tc, err := decodeTaskConfig()
		if err != nil {
			return nil, err
		}
		t, err := newTaskWithoutProcess(d.currentConfig(), start, tc)
		if err != nil {
			return nil, err // the operator has changed the configuration since, or the user was not found
		}
		t.Process = process.NewProcess(p, sandbox.New(start, t.sandboxOptions))
		return t, nil
	})
}

// Recover recovers the process of a task.
func (d *Driver) Recover(ctx context.Context, start *sdk.StartRequest) (*Task, error) {
	var s taskState
	if err := start.DecodeState(&s); err != nil {
		return nil, err
	}
	t := &Task{sandboxOptions: s.Sandbox}
	var err error
	t.Process, err = process.RecoverWithLauncher(ctx, start, s.Process, sandbox.New(start, s.Sandbox))
	return t, err
}

// Sweep kills the processes of a task for which the driver has no task object, and reports whether
// there were any.
func (d *Driver) Sweep(ctx context.Context, req sdk.SweepRequest) (bool, error) {
	return process.Sweep(ctx, req)
}

// Task is an isolated process.
type Task struct {
	*process.Process
	sandboxOptions sandbox.Options
}

// taskState is the data for Recover.
type taskState struct {
	Process process.State   `codec:"process"`
	Sandbox sandbox.Options `codec:"sandbox"`
}

// State returns the data for Recover.
func (t *Task) State() any { return taskState{Process: t.Snapshot(), Sandbox: t.sandboxOptions} }
