package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// Name is the name of the driver in a job.
const Name = "exec"

// defaultUser runs tasks that name no user.
const defaultUser = "nobody"

// Driver is the driver exec. Its zero value is ready for use.
type Driver struct {
	mu     sync.Mutex
	config pluginConfig
}

var (
	_ sdk.Driver[*task]    = (*Driver)(nil)
	_ sdk.Recoverer[*task] = (*Driver)(nil)
	_ sdk.Configurer       = (*Driver)(nil)
	_ sdk.Fingerprinter    = (*Driver)(nil)
	_ sdk.OrphanKiller     = (*Driver)(nil)
)

// Info describes the driver.
func (d *Driver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         Name,
		Version:      "0.1.0",
		ConfigSchema: configSchema,
		TaskSchema:   taskSchema,
		Capabilities: driver.Capabilities{
			SendSignals:           true,
			Exec:                  true,
			FSIsolation:           driver.FSIsolationChroot,
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

func (d *Driver) currentConfig() pluginConfig {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config
}

// errNotRoot is returned where the driver cannot isolate tasks.
var errNotRoot = errors.New("only root can isolate tasks: run the agent as root")

// Fingerprint reports whether tasks can run.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint {
	if os.Geteuid() != 0 {
		return driver.Fingerprint{Health: driver.HealthUndetected, HealthDescription: errNotRoot.Error()}
	}
	return driver.Fingerprint{
		Health:     driver.HealthHealthy,
		Attributes: map[string]driver.Attribute{"driver.exec": {Value: true}},
	}
}

// Start starts the command of a task.
func (d *Driver) Start(ctx context.Context, start *sdk.StartRequest) (*task, error) {
	if os.Geteuid() != 0 {
		return nil, errNotRoot
	}
	c := d.currentConfig()
	var tc taskConfig
	if err := start.Config(&tc); err != nil {
		return nil, err
	}
	if err := c.checkUser(start.User); err != nil {
		return nil, err
	}
	t := &task{}
	var err error
	if t.options, err = c.sandboxOptions(&tc); err != nil {
		return nil, err
	}
	t.Process, err = process.Start(ctx, start, process.Command{
		Path:        tc.Command,
		Args:        tc.Args,
		Dir:         tc.WorkDir,
		OOMScoreAdj: tc.OOMScoreAdj,
		PidsLimit:   c.PidsLimit,
		Launcher:    sandbox.New(start, t.options),
	})
	return t, err
}

// Recover recovers the process of a task.
func (d *Driver) Recover(ctx context.Context, start *sdk.StartRequest) (*task, error) {
	var s taskState
	if err := start.State(&s); err != nil {
		return nil, err
	}
	t := &task{options: s.Sandbox}
	var err error
	t.Process, err = process.RecoverWithLauncher(ctx, start, s.Process, sandbox.New(start, s.Sandbox))
	return t, err
}

// Sweep kills the processes of a task that is not known to the driver.
func (d *Driver) Sweep(ctx context.Context, allocID, taskName string) (bool, error) {
	return process.Sweep(ctx, allocID, taskName)
}

// checkUser returns an error if the operator denies the user of a task.
func (c *pluginConfig) checkUser(name string) error {
	if name == "" {
		name = defaultUser
	}
	cred, err := process.Credential(name)
	if err != nil {
		return err
	}
	if c.deniedUIDs.Contains(cred.Uid) {
		return fmt.Errorf("running as uid %d is denied by denied_host_uids of the driver", cred.Uid)
	}
	for _, gid := range append(cred.Groups, cred.Gid) {
		if c.deniedGIDs.Contains(gid) {
			return fmt.Errorf("running with gid %d is denied by denied_host_gids of the driver", gid)
		}
	}
	return nil
}

// task is an isolated process.
type task struct {
	*process.Process
	options sandbox.Options
}

// taskState is the data for Recover.
type taskState struct {
	Process process.State   `codec:"process"`
	Sandbox sandbox.Options `codec:"sandbox"`
}

func (t *task) State() any { return taskState{Process: t.Snapshot(), Sandbox: t.options} }

// DecodeProcessState returns the process of a task from the driver state in the task's
// handle.
func DecodeProcessState(driverState []byte) (process.State, error) {
	var s taskState
	if err := hclspec.UnmarshalState(driverState, &s); err != nil {
		return process.State{}, fmt.Errorf("decode the state of a task: %w", err)
	}
	return s.Process, nil
}
