package sandbox

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// capabilityNames has the names of the capabilities, in the order of their numbers.
var capabilityNames = [unix.CAP_LAST_CAP + 1]string{
	"chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "linux_immutable",
	"net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner", "sys_module", "sys_rawio", "sys_chroot",
	"sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice", "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease",
	"audit_write", "audit_control", "setfcap", "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read",
	"perfmon", "bpf", "checkpoint_restore",
}

// AllCapabilities is the set of all capabilities.
const AllCapabilities Capabilities = 1<<(unix.CAP_LAST_CAP+1) - 1

const (
	// userCapabilities are the capabilities that a task of a user other than root can have if the operator grants none. With
	// these capabilities a task gets neither another identity nor the files of other users.
	userCapabilities Capabilities = 1<<unix.CAP_AUDIT_WRITE | 1<<unix.CAP_KILL | 1<<unix.CAP_NET_BIND_SERVICE

	// rootCapabilities are the capabilities of a task of root if the operator grants none: the task can work with the files that it sees.
	rootCapabilities = userCapabilities | 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_SYS_CHROOT

	// nomadCapabilities are the default of Nomad's allow_caps. A task has the nomadCapabilities that the operator grants.
	nomadCapabilities = rootCapabilities | 1<<unix.CAP_FSETID | 1<<unix.CAP_MKNOD | 1<<unix.CAP_SETFCAP |
		1<<unix.CAP_SETGID | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_SETUID

	// hostModeCapabilities are the capabilities of a task in a namespace of the host. All other capabilities are rights on the processes, the
	// shared memory or the kernel of the host there, or lead to them.
	hostModeCapabilities Capabilities = 1 << unix.CAP_NET_BIND_SERVICE

	// neverGranted protects processes of the agent from tasks: the kernel lets no process with fewer capabilities trace
	// another one, so that these processes need one that no task has.
	neverGranted Capabilities = 1 << unix.CAP_BLOCK_SUSPEND
)

// Capabilities is a set of capabilities, with bit n for capability n.
type Capabilities uint64

// ParseCapabilities returns the set of the named capabilities. A name can have the prefix "cap_" and
// capital letters; "all" names all capabilities.
func ParseCapabilities(names []string) (Capabilities, error) {
	var set Capabilities
	for _, name := range names {
		normal := normalName(name)
		if normal == "all" {
			set |= AllCapabilities
			continue
		}
		n := slices.Index(capabilityNames[:], normal)
		if n < 0 {
			return 0, fmt.Errorf("there is no capability %q; the names are %s", name, strings.Join(capabilityNames[:], ", "))
		}
		set |= 1 << n
	}
	return set, nil
}

func normalName(name string) string { return strings.TrimPrefix(strings.ToLower(name), "cap_") }

// String returns the names, sorted.
func (c Capabilities) String() string {
	var names []string
	for n, name := range capabilityNames {
		if c&(1<<n) != 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// ParseAllowed returns the set of the capabilities that an operator grants in allow_caps.
func ParseAllowed(names []string) (Capabilities, error) {
	allowed, err := ParseCapabilities(names)
	if err != nil {
		return 0, err
	}
	named, err := ParseCapabilities(withoutAll(names))
	if err == nil && named&neverGranted != 0 {
		return 0, fmt.Errorf("the capability %s cannot be granted, because it protects the processes of the agent from tasks", neverGranted)
	}
	return allowed &^ neverGranted, err
}

// withoutAll returns the names of single capabilities.
func withoutAll(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return normalName(name) == "all" })
}

// BeyondDefault returns the granted capabilities that a task of a user other than root cannot have by default.
func (c Capabilities) BeyondDefault() Capabilities { return c &^ userCapabilities }

// CapabilityRequest is the cap_add and cap_drop of a task, with the allow_caps of its driver.
type CapabilityRequest struct {
	Allowed   []string // nil means that the operator grants none
	Add, Drop []string
	IsRoot    bool // the task runs as root
	HostMode  bool // the task is in the PID or IPC namespace of the host
}

// Privileges are the capabilities of a task.
type Privileges struct {
	// Bounding are the capabilities that a program can have at most. A task of root has all of
	// them.
	Bounding Capabilities

	// Ambient are the capabilities that a task of another user has.
	Ambient Capabilities
}

// Resolve returns the privileges of a task: the default capabilities that are allowed, with those that
// the task adds, without those that it drops. To drop "all" drops the defaults and keeps what the task
// adds. A user other than root has only the capabilities that the task adds, and net_bind_service.
//
// A task in a namespace of the host has no others than hostModeCapabilities, except those that both the operator and
// the task name: "all" and defaults do not count there.
func (r CapabilityRequest) Resolve() (Privileges, error) {
	defaults, allowed, err := r.allowed()
	if err != nil {
		return Privileges{}, fmt.Errorf("allow_caps: %w", err)
	}
	add, err := r.added(allowed)
	if err != nil {
		return Privileges{}, fmt.Errorf("cap_add: %w", err)
	}
	drop, err := ParseCapabilities(r.Drop)
	if err != nil {
		return Privileges{}, fmt.Errorf("cap_drop: %w", err)
	}
	if drop == AllCapabilities {
		defaults, drop = 0, 0
	}
	p := Privileges{Bounding: (defaults | add) &^ drop}
	p.Ambient = p.Bounding & (add | 1<<unix.CAP_NET_BIND_SERVICE)
	return p, nil
}

// allowed returns the capabilities that the task has by default, and those that it can add.
func (r CapabilityRequest) allowed() (defaults, allowed Capabilities, err error) {
	switch {
	case r.Allowed != nil:
		allowed, err = ParseAllowed(r.Allowed)
		defaults = nomadCapabilities & allowed
	case r.IsRoot:
		defaults, allowed = rootCapabilities, rootCapabilities
	default:
		defaults, allowed = userCapabilities, userCapabilities
	}
	if err != nil || !r.HostMode {
		return defaults, allowed, err
	}
	defaults &= hostModeCapabilities
	allowed, err = ParseCapabilities(withoutAll(r.Allowed))
	return defaults, allowed | defaults, err
}

// added returns the capabilities of cap_add, of which "all" means all that are allowed.
func (r CapabilityRequest) added(allowed Capabilities) (Capabilities, error) {
	if r.HostMode {
		r.Add = withoutAll(r.Add)
	}
	add, err := ParseCapabilities(r.Add)
	if err != nil || add == AllCapabilities {
		return add & allowed, err
	}
	if denied := add &^ allowed; denied != 0 {
		return 0, fmt.Errorf("driver does not allow the following capabilities: %s; the operator must name them in allow_caps of the driver", denied)
	}
	return add, nil
}
