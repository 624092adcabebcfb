package isolated

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
)

// Values of pid_mode and ipc_mode.
const modePrivate, modeHost = "private", "host"

// Config is the `config` block of the driver's `plugin` block. Its zero value has the meaning of the defaults in the
// schema, because a host can send no configuration.
type Config struct {
	hostprocess.Config
	NoPivotRoot    bool     `codec:"no_pivot_root"`
	DefaultPIDMode string   `codec:"default_pid_mode"`
	DefaultIPCMode string   `codec:"default_ipc_mode"`
	AllowCaps      []string `codec:"allow_caps"` // nil means the defaults of package sandbox, which give a task no further rights on files and ids
	Seccomp        *bool    `codec:"seccomp"`    // true filters the system calls of tasks; nil means true

	AllowHostPIDMode      bool `codec:"allow_pid_mode"`       // true allows tasks to have pid_mode "host"
	AllowHostIPCMode      bool `codec:"allow_ipc_mode"`       // true allows tasks to have ipc_mode "host"
	AllowHostModesForRoot bool `codec:"allow_host_mode_root"` // true allows these modes also for tasks of root
	AllowSetuidSetgidBits bool `codec:"allow_setid_bits"`     // true allows tasks to set set-user-ID and set-group-ID bits of files

	// DeniedUsers are users that no task becomes by its capabilities; nil means defaultDeniedUsers.
	// The agent itself rejects a job whose user is denied.
	DeniedUsers []string `codec:"denied_users"`
}

// defaultDeniedUsers is the default of the agent's user.denylist.
var defaultDeniedUsers = []string{"root", "Administrator"}

var configSchema = hostprocess.ConfigSchema(map[string]*hclspec.Spec{
	"no_pivot_root":    hclspec.Default(hclspec.Attr("no_pivot_root", "bool", false), hclspec.Literal("false")),
	"default_pid_mode": hclspec.Default(hclspec.Attr("default_pid_mode", "string", false), hclspec.Literal(strconv.Quote(modePrivate))),
	"default_ipc_mode": hclspec.Default(hclspec.Attr("default_ipc_mode", "string", false), hclspec.Literal(strconv.Quote(modePrivate))),
	"allow_caps":       hclspec.Attr("allow_caps", "list(string)", false), // no default in the schema, because an explicit list also changes which capabilities a task has by default
	"seccomp":          hclspec.Default(hclspec.Attr("seccomp", "bool", false), hclspec.Literal("true")),

	"allow_pid_mode":       hclspec.Attr("allow_pid_mode", "bool", false),
	"allow_ipc_mode":       hclspec.Attr("allow_ipc_mode", "bool", false),
	"allow_host_mode_root": hclspec.Attr("allow_host_mode_root", "bool", false),
	"allow_setid_bits":     hclspec.Attr("allow_setid_bits", "bool", false),
	"denied_users":         hclspec.Attr("denied_users", "list(string)", false),
})

func (c *Config) validate() error {
	if err := checkNamespaceMode("default_pid_mode", c.DefaultPIDMode); err != nil {
		return err
	}
	if err := checkNamespaceMode("default_ipc_mode", c.DefaultIPCMode); err != nil {
		return err
	}
	if _, err := sandbox.ParseAllowCaps(c.AllowCaps); err != nil {
		return fmt.Errorf("allow_caps: %w", err)
	}
	return c.Config.ValidateAndParseIDRanges()
}

func checkNamespaceMode(option, mode string) error {
	if mode != "" && mode != modePrivate && mode != modeHost {
		return fmt.Errorf("%s is %q; it must be %q or %q", option, mode, modePrivate, modeHost)
	}
	return nil
}

// TaskConfig has the options that the `config` blocks of all isolated tasks share. A driver embeds it in
// the configuration of its tasks.
type TaskConfig struct {
	PIDMode string   `codec:"pid_mode"` // empty means default_pid_mode of the plugin
	IPCMode string   `codec:"ipc_mode"`
	CapAdd  []string `codec:"cap_add"`
	CapDrop []string `codec:"cap_drop"`
	WorkDir string   `codec:"work_dir"` // path in the root directory of the task; empty means the root directory
}

// TaskSchema returns the schema of the `config` block of a task with the options of TaskConfig and the
// options of the driver itself.
func TaskSchema(driverAttributes map[string]*hclspec.Spec) *hclspec.Spec {
	attributes := map[string]*hclspec.Spec{
		"pid_mode": hclspec.Attr("pid_mode", "string", false),
		"ipc_mode": hclspec.Attr("ipc_mode", "string", false),
		"cap_add":  hclspec.Attr("cap_add", "list(string)", false),
		"cap_drop": hclspec.Attr("cap_drop", "list(string)", false),
		"work_dir": hclspec.Attr("work_dir", "string", false),
	}
	maps.Copy(attributes, driverAttributes)
	return hclspec.Object(attributes)
}

// extraPermission is an option with which the operator gives tasks more than the defaults.
type extraPermission struct {
	optionName  string
	isSet       bool
	description string
}

// extraPermissions returns the options that are set.
func (c *Config) extraPermissions() []extraPermission {
	allowed, _ := sandbox.ParseAllowCaps(c.AllowCaps) // cannot fail: the configuration was validated
	caps := allowed.BeyondNonRootDefaults()
	const (
		processes = "see, signal and trace the processes of their user"
		memory    = "the shared memory of the machine"
		programs  = "leave set-user-ID programs in their directories and volumes"
	)
	return slices.DeleteFunc([]extraPermission{
		{"allow_caps", caps != 0, "tasks of all users can have the capabilities " + caps.String()},
		{"allow_host_mode_root", c.AllowHostModesForRoot, "tasks of root can share namespaces of the machine"},
		{"allow_ipc_mode", c.AllowHostIPCMode, "tasks can share " + memory},
		{"allow_pid_mode", c.AllowHostPIDMode, "tasks can " + processes},
		{"allow_setid_bits", c.AllowSetuidSetgidBits, "tasks can " + programs},
		{"default_ipc_mode", c.DefaultIPCMode == modeHost, "tasks share " + memory},
		{"default_pid_mode", c.DefaultPIDMode == modeHost, "tasks can " + processes},
		{"seccomp", c.isSyscallFilterDisabled(), "tasks can make all system calls, and " + programs},
	}, func(g extraPermission) bool { return !g.isSet })
}

func (c *Config) isSyscallFilterDisabled() bool { return c.Seccomp != nil && !*c.Seccomp }

// sandboxOptions returns how a task with these ids is isolated.
func (c *Config) sandboxOptions(t *TaskConfig, cred *syscall.Credential) (sandbox.Options, error) {
	o := sandbox.Options{NoPivotRoot: c.NoPivotRoot, NoSyscallFilter: c.isSyscallFilterDisabled(), AllowSetuidSetgidBits: c.AllowSetuidSetgidBits, DefaultUser: defaultUser}
	for _, m := range []struct {
		option, mode, byDefault string
		host                    *bool
	}{{"pid_mode", t.PIDMode, c.DefaultPIDMode, &o.HostPID}, {"ipc_mode", t.IPCMode, c.DefaultIPCMode, &o.HostIPC}} {
		if err := checkNamespaceMode(m.option, m.mode); err != nil {
			return o, err
		}
		*m.host = cmp.Or(m.mode, m.byDefault) == modeHost
	}
	if t.WorkDir != "" && !filepath.IsAbs(t.WorkDir) {
		return o, fmt.Errorf("work_dir %q is not an absolute path in the root directory of the task", t.WorkDir)
	}
	request := sandbox.CapabilityRequest{AllowCaps: c.AllowCaps, Add: t.CapAdd, Drop: t.CapDrop, IsRoot: cred.Uid == 0, SharesHostNamespace: o.HostPID || o.HostIPC}
	if !sandbox.IsRoot() {
		return o, o.UseUserNamespace(request)
	}
	if err := c.checkHostNamespacesAllowed(&o, cred); err != nil {
		return o, err
	}
	var err error
	if o.Privileges, err = request.ResolvePrivileges(); err != nil {
		return o, err
	}
	c.setDeniedIDs(&o, cred)
	return o, nil
}

// checkHostNamespacesAllowed returns an error if the operator does not allow the namespaces of the host that
// the task shares. A default mode of "host" counts as a permission of the operator.
func (c *Config) checkHostNamespacesAllowed(o *sandbox.Options, cred *syscall.Credential) error {
	for _, m := range []struct {
		host, allowed          bool
		option, allowingOption string
	}{
		{o.HostPID, c.AllowHostPIDMode || c.DefaultPIDMode == modeHost, "pid_mode", "allow_pid_mode"},
		{o.HostIPC, c.AllowHostIPCMode || c.DefaultIPCMode == modeHost, "ipc_mode", "allow_ipc_mode"},
	} {
		switch {
		case !m.host:
		case !m.allowed:
			return fmt.Errorf("%s = %q is refused: the operator must set %s = true in the configuration of the driver", m.option, modeHost, m.allowingOption)
		case cred.Uid == 0 && !c.AllowHostModesForRoot:
			return fmt.Errorf("%s = %q is refused for a task of root: the operator must set allow_host_mode_root = true in the configuration of the driver, or the task must have another user", m.option, modeHost)
		}
	}
	return nil
}

const idCapabilities = sandbox.CapabilitySet(1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID)

// setDeniedIDs sets the denied ids of a task that has a capability to change its ids.
func (c *Config) setDeniedIDs(o *sandbox.Options, cred *syscall.Credential) {
	if o.Privileges.Bounding&idCapabilities == 0 {
		return
	}
	users := c.DeniedUsers
	if users == nil {
		users = defaultDeniedUsers
	}
	o.SetuidDeniedUIDs, o.SetgidDeniedGIDs = c.DeniedIDsForTask(cred, users)
	if (o.HostPID || o.HostIPC) && !c.AllowHostModesForRoot {
		o.SetuidDeniedUIDs = append(o.SetuidDeniedUIDs, idrange.Range{First: 0, Last: 0})
	}
}
