package exec

import (
	"cmp"
	"fmt"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/idrange"
)

// Values of pid_mode and ipc_mode.
const modePrivate, modeHost = "private", "host"

// pluginConfig is the `plugin "exec" { config { … } }` block.
type pluginConfig struct {
	NoPivotRoot bool     `codec:"no_pivot_root"`
	PIDMode     string   `codec:"default_pid_mode"`
	IPCMode     string   `codec:"default_ipc_mode"`
	AllowCaps   []string `codec:"allow_caps"`
	DeniedUIDs  string   `codec:"denied_host_uids"`
	DeniedGIDs  string   `codec:"denied_host_gids"`
	PidsLimit   int64    `codec:"pids_limit"` // processes and threads of each task; 0 means no limit
	Seccomp     *bool    `codec:"seccomp"`    // filter the system calls of tasks; nil means true

	deniedUIDs, deniedGIDs idrange.Set
}

// The attributes have no defaults in the schema: the zero value of pluginConfig is the default,
// because a host can send no configuration.
var configSchema = hclspec.Object(map[string]*hclspec.Spec{
	"no_pivot_root":    hclspec.Attr("no_pivot_root", "bool", false),
	"default_pid_mode": hclspec.Attr("default_pid_mode", "string", false),
	"default_ipc_mode": hclspec.Attr("default_ipc_mode", "string", false),
	"allow_caps":       hclspec.Attr("allow_caps", "list(string)", false),
	"denied_host_uids": hclspec.Attr("denied_host_uids", "string", false),
	"denied_host_gids": hclspec.Attr("denied_host_gids", "string", false),
	"pids_limit":       hclspec.Attr("pids_limit", "number", false),
	"seccomp":          hclspec.Attr("seccomp", "bool", false),
})

// validate checks the configuration, and parses its ranges.
func (c *pluginConfig) validate() error {
	var err error
	if err := checkMode("default_pid_mode", c.PIDMode); err != nil {
		return err
	}
	if err := checkMode("default_ipc_mode", c.IPCMode); err != nil {
		return err
	}
	if _, err := sandbox.ParseCapabilities(c.AllowCaps); err != nil {
		return fmt.Errorf("allow_caps: %w", err)
	}
	if c.deniedUIDs, err = idrange.Parse(c.DeniedUIDs); err != nil {
		return fmt.Errorf("denied_host_uids: %w", err)
	}
	if c.deniedGIDs, err = idrange.Parse(c.DeniedGIDs); err != nil {
		return fmt.Errorf("denied_host_gids: %w", err)
	}
	if c.PidsLimit < 0 {
		return fmt.Errorf("pids_limit is %d; it cannot be negative", c.PidsLimit)
	}
	return nil
}

func checkMode(option, mode string) error {
	if mode != "" && mode != modePrivate && mode != modeHost {
		return fmt.Errorf("%s is %q; it must be %q or %q", option, mode, modePrivate, modeHost)
	}
	return nil
}

// taskConfig is the `config` block of a task.
type taskConfig struct {
	Command     string   `codec:"command"`
	Args        []string `codec:"args"`
	PIDMode     string   `codec:"pid_mode"` // empty means the default of the plugin
	IPCMode     string   `codec:"ipc_mode"`
	CapAdd      []string `codec:"cap_add"`
	CapDrop     []string `codec:"cap_drop"`
	WorkDir     string   `codec:"work_dir"` // as the task sees it; empty means its root directory
	OOMScoreAdj int      `codec:"oom_score_adj"`
}

var taskSchema = hclspec.Object(map[string]*hclspec.Spec{
	"command":       hclspec.Attr("command", "string", true),
	"args":          hclspec.Attr("args", "list(string)", false),
	"pid_mode":      hclspec.Attr("pid_mode", "string", false),
	"ipc_mode":      hclspec.Attr("ipc_mode", "string", false),
	"cap_add":       hclspec.Attr("cap_add", "list(string)", false),
	"cap_drop":      hclspec.Attr("cap_drop", "list(string)", false),
	"work_dir":      hclspec.Attr("work_dir", "string", false),
	"oom_score_adj": hclspec.Attr("oom_score_adj", "number", false),
})

// sandboxOptions returns how a task is isolated.
func (c *pluginConfig) sandboxOptions(t *taskConfig) (sandbox.Options, error) {
	o := sandbox.Options{NoPivotRoot: c.NoPivotRoot, NoFilter: c.Seccomp != nil && !*c.Seccomp, DefaultUser: defaultUser}
	for _, m := range []struct {
		option, mode, byDefault string
		host                    *bool
	}{{"pid_mode", t.PIDMode, c.PIDMode, &o.HostPID}, {"ipc_mode", t.IPCMode, c.IPCMode, &o.HostIPC}} {
		if err := checkMode(m.option, m.mode); err != nil {
			return o, err
		}
		*m.host = cmp.Or(m.mode, m.byDefault) == modeHost
	}
	if t.WorkDir != "" && !filepath.IsAbs(t.WorkDir) {
		return o, fmt.Errorf("work_dir %q is not an absolute path in the root directory of the task", t.WorkDir)
	}
	allowed := c.AllowCaps
	if allowed == nil { // an empty list allows none
		allowed = sandbox.DefaultCapabilities
	}
	var err error
	o.Privileges, err = sandbox.CapabilityRequest{Allowed: allowed, Add: t.CapAdd, Drop: t.CapDrop}.Resolve()
	return o, err
}
