package isolated

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/hclspec"
)

// Values of pid_mode and ipc_mode.
const modePrivate, modeHost = "private", "host"

// Config is the `config` block of the driver's `plugin` block. Its zero value has the meaning of the defaults in the
// schema, because a host can send no configuration.
type Config struct {
	hostprocess.Config
	NoPivotRoot bool     `codec:"no_pivot_root"`
	PIDMode     string   `codec:"default_pid_mode"`
	IPCMode     string   `codec:"default_ipc_mode"`
	AllowCaps   []string `codec:"allow_caps"` // nil means sandbox.DefaultCapabilities
	Seccomp     *bool    `codec:"seccomp"`    // filter the system calls of tasks; nil means true
}

var configSchema = hostprocess.ConfigSchema(map[string]*hclspec.Spec{
	"no_pivot_root":    hclspec.Default(hclspec.Attr("no_pivot_root", "bool", false), hclspec.Literal("false")),
	"default_pid_mode": hclspec.Default(hclspec.Attr("default_pid_mode", "string", false), hclspec.Literal(strconv.Quote(modePrivate))),
	"default_ipc_mode": hclspec.Default(hclspec.Attr("default_ipc_mode", "string", false), hclspec.Literal(strconv.Quote(modePrivate))),
	"allow_caps":       hclspec.Default(hclspec.Attr("allow_caps", "list(string)", false), hclspec.Literal(defaultAllowCaps())),
	"seccomp":          hclspec.Default(hclspec.Attr("seccomp", "bool", false), hclspec.Literal("true")),
})

// defaultAllowCaps returns sandbox.DefaultCapabilities as an HCL expression, in capital letters as Nomad writes them.
func defaultAllowCaps() string {
	return `["` + strings.ToUpper(strings.Join(sandbox.DefaultCapabilities, `", "`)) + `"]`
}

func (c *Config) validate() error {
	if err := checkMode("default_pid_mode", c.PIDMode); err != nil {
		return err
	}
	if err := checkMode("default_ipc_mode", c.IPCMode); err != nil {
		return err
	}
	if _, err := sandbox.ParseCapabilities(c.AllowCaps); err != nil {
		return fmt.Errorf("allow_caps: %w", err)
	}
	return c.Config.Validate()
}

func checkMode(option, mode string) error {
	if mode != "" && mode != modePrivate && mode != modeHost {
		return fmt.Errorf("%s is %q; it must be %q or %q", option, mode, modePrivate, modeHost)
	}
	return nil
}

// TaskConfig has the options that the `config` blocks of all isolated tasks share. A driver embeds it in
// the configuration of its tasks.
type TaskConfig struct {
	PIDMode string   `codec:"pid_mode"` // empty means the default of the plugin
	IPCMode string   `codec:"ipc_mode"`
	CapAdd  []string `codec:"cap_add"`
	CapDrop []string `codec:"cap_drop"`
	WorkDir string   `codec:"work_dir"` // as the task sees it; empty means its root directory
}

// TaskSchema returns the schema of the `config` block of a task with the options of TaskConfig and the
// options of the driver itself.
func TaskSchema(own map[string]*hclspec.Spec) *hclspec.Spec {
	attributes := map[string]*hclspec.Spec{
		"pid_mode": hclspec.Attr("pid_mode", "string", false),
		"ipc_mode": hclspec.Attr("ipc_mode", "string", false),
		"cap_add":  hclspec.Attr("cap_add", "list(string)", false),
		"cap_drop": hclspec.Attr("cap_drop", "list(string)", false),
		"work_dir": hclspec.Attr("work_dir", "string", false),
	}
	maps.Copy(attributes, own)
	return hclspec.Object(attributes)
}

// sandboxOptions returns how a task is isolated.
func (c *Config) sandboxOptions(t *TaskConfig) (sandbox.Options, error) {
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
	request := sandbox.CapabilityRequest{Allowed: allowed, Add: t.CapAdd, Drop: t.CapDrop}
	if !sandbox.IsRoot() {
		return o, o.UseUserNamespace(request)
	}
	var err error
	o.Privileges, err = request.Resolve()
	return o, err
}
