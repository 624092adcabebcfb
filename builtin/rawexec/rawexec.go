package rawexec

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// Name is the name of the driver in a job.
const Name = "raw_exec"

// Driver is the driver raw_exec. Its zero value is ready for use.
type Driver struct {
	mu     sync.Mutex
	config pluginConfig
}

var (
	_ sdk.Driver[*task]    = (*Driver)(nil)
	_ sdk.Recoverer[*task] = (*Driver)(nil)
	_ sdk.Adopter[*task]   = (*Driver)(nil)
	_ sdk.Configurer       = (*Driver)(nil)
	_ sdk.Fingerprinter    = (*Driver)(nil)
	_ sdk.OrphanKiller     = (*Driver)(nil)
)

// pluginConfig is the `plugin "raw_exec" { config { … } }` block.
type pluginConfig struct {
	hostprocess.Config
	Enabled       *bool    `codec:"enabled"`
	DeniedEnvvars []string `codec:"denied_envvars"`
}

var configSchema = hostprocess.ConfigSchema(map[string]*hclspec.Spec{
	"enabled":        hclspec.Default(hclspec.Attr("enabled", "bool", false), hclspec.Literal(strconv.FormatBool(enabledByDefault()))),
	"denied_envvars": hclspec.Attr("denied_envvars", "list(string)", false),
})

// taskConfig is the `config` block of a task.
type taskConfig struct {
	Command          string              `codec:"command"`
	Args             []string            `codec:"args"`
	WorkDir          string              `codec:"work_dir"`
	OOMScoreAdj      int                 `codec:"oom_score_adj"`
	CgroupV1Override []map[string]string `codec:"cgroup_v1_override"`
	CgroupV2Override string              `codec:"cgroup_v2_override"`
	DeniedEnvvars    []string            `codec:"denied_envvars"`
}

var taskSchema = hclspec.Object(map[string]*hclspec.Spec{
	"command":       hclspec.Attr("command", "string", true),
	"args":          hclspec.Attr("args", "list(string)", false),
	"work_dir":      hclspec.Attr("work_dir", "string", false),
	"oom_score_adj": hclspec.Attr("oom_score_adj", "number", false),
	// list(map(string)), because an HCL object is decoded as a list with one
	// element
	"cgroup_v1_override": hclspec.Attr("cgroup_v1_override", "list(map(string))", false),
	"cgroup_v2_override": hclspec.Attr("cgroup_v2_override", "string", false),
	"denied_envvars":     hclspec.Attr("denied_envvars", "list(string)", false),
})

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
			FSIsolation:           driver.FSIsolationNone,
			NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup},
			MountConfigs:          driver.MountConfigsNone,
		},
	}
}

// Configure stores the plugin's configuration.
func (d *Driver) Configure(_ context.Context, c *sdk.Config) error {
	var newConfig pluginConfig
	if err := c.Decode(&newConfig); err != nil {
		return err
	}
	if err := newConfig.ValidateAndParseIDRanges(); err != nil {
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

// isEnabled reports whether tasks may run.
func (c *pluginConfig) isEnabled() bool {
	if c.Enabled != nil {
		return *c.Enabled
	}
	return enabledByDefault() // Enabled is nil if the host has sent no configuration
}

// enabledByDefault reports whether the driver is enabled unless the operator decides. If the agent runs as root, the
// operator must enable the driver, because it gives root access to everyone who can submit a job.
func enabledByDefault() bool { return os.Geteuid() != 0 }

const disabledText = `disabled: write plugin "raw_exec" { config { enabled = true } } into the agent's configuration`

// Fingerprint reports whether the driver is enabled.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint {
	c := d.currentConfig()
	if !c.isEnabled() {
		return driver.Fingerprint{Health: driver.HealthUndetected, HealthDescription: disabledText}
	}
	return driver.Fingerprint{
		Health:     driver.HealthHealthy,
		Attributes: map[string]driver.Attribute{"driver.raw_exec": {Value: true}},
	}
}

// Start starts the command of a task.
func (d *Driver) Start(ctx context.Context, start *sdk.StartRequest) (*task, error) {
	c := d.currentConfig()
	// The fingerprint also reports whether the driver is enabled, but a host may ignore the
	// fingerprint.
	if !c.isEnabled() {
		return nil, errors.New("raw_exec is " + disabledText)
	}
	var tc taskConfig
	if err := start.DecodeConfig(&tc); err != nil {
		return nil, err
	}
	if err := c.CheckUserNotDenied(start.User); err != nil {
		return nil, err
	}
	t := newTaskRemovingDeniedVars(&c, &tc, start)
	cgroups := map[string]string{}
	for _, m := range tc.CgroupV1Override {
		for controller, path := range m {
			cgroups[controller] = path
		}
	}
	var err error
	t.Process, err = process.Start(ctx, start, process.Command{
		Path:        tc.Command,
		Args:        tc.Args,
		Dir:         tc.WorkDir,
		OOMScoreAdj: tc.OOMScoreAdj,
		CgroupV1:    cgroups,
		CgroupV2:    tc.CgroupV2Override,
		PidsLimit:   c.PidsLimit,
	})
	return t, err
}

// newTaskRemovingDeniedVars returns a task without its process, and removes the denied variables from the request.
func newTaskRemovingDeniedVars(c *pluginConfig, tc *taskConfig, start *sdk.StartRequest) *task {
	t := &task{deniedEnvvars: slices.Concat(c.DeniedEnvvars, tc.DeniedEnvvars)}
	removeDeniedVars(start.Env, t.deniedEnvvars)
	return t
}

// Adopt finds the process of a start whose plugin process has died.
func (d *Driver) Adopt(ctx context.Context, start *sdk.StartRequest) (*task, error) {
	return process.AdoptTask(ctx, start, func(p *process.ProcessWithoutExec) (*task, error) {
		var tc taskConfig
		if err := start.DecodeConfig(&tc); err != nil {
			return nil, err
		}
		c := d.currentConfig()
		t := newTaskRemovingDeniedVars(&c, &tc, start)
		t.Process = process.NewProcess(p, nil)
		return t, nil
	})
}

// Recover recovers the process of a task.
func (d *Driver) Recover(ctx context.Context, start *sdk.StartRequest) (*task, error) {
	var s taskState
	if err := start.DecodeState(&s); err != nil {
		return nil, err
	}
	t := &task{deniedEnvvars: s.DeniedEnvvars}
	removeDeniedVars(start.Env, t.deniedEnvvars) // commands that are executed in the task get this environment
	var err error
	t.Process, err = process.Recover(ctx, start, s.Process)
	return t, err
}

// Sweep kills the processes of a task for which the driver has no task object, and reports whether
// there were any.
func (d *Driver) Sweep(ctx context.Context, req sdk.SweepRequest) (bool, error) {
	return process.Sweep(ctx, req)
}

// task is a process, with the patterns of variables that are removed from its
// environment.
type task struct {
	*process.Process
	deniedEnvvars []string
}

// taskState is the data for Recover.
type taskState struct {
	Process       process.State `codec:"process"`
	DeniedEnvvars []string      `codec:"denied_envvars"`
}

func (t *task) State() any { return taskState{Process: t.Snapshot(), DeniedEnvvars: t.deniedEnvvars} }
