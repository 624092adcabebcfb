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
const AllCapabilities CapabilitySet = 1<<(unix.CAP_LAST_CAP+1) - 1

const (
	// userCapabilities are the capabilities that a task of a user other than root can have if the operator grants none. With
	// these capabilities a task gets neither another identity nor the files of other users.
	userCapabilities CapabilitySet = 1<<unix.CAP_AUDIT_WRITE | 1<<unix.CAP_KILL | 1<<unix.CAP_NET_BIND_SERVICE

	// rootCapabilities are the capabilities of a task of root if the operator grants none: the task
	// has full access to the files in its root directory.
	rootCapabilities = userCapabilities | 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_SYS_CHROOT

	// nomadCapabilities are the default of Nomad's allow_caps. If the operator sets allow_caps, a
	// task has by default the nomadCapabilities that allow_caps includes.
	nomadCapabilities = rootCapabilities | 1<<unix.CAP_FSETID | 1<<unix.CAP_MKNOD | 1<<unix.CAP_SETFCAP |
		1<<unix.CAP_SETGID | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_SETUID

	// hostModeCapabilities are the capabilities of a task in a namespace of the host. All other
	// capabilities would give the task rights on the processes, the shared memory or the kernel of
	// the host.
	hostModeCapabilities CapabilitySet = 1 << unix.CAP_NET_BIND_SERVICE

	// neverGranted is a capability that no task gets, so that tasks cannot trace processes of the
	// agent, which have it: the kernel denies tracing of a process with more capabilities.
	neverGranted CapabilitySet = 1 << unix.CAP_BLOCK_SUSPEND
)

// CapabilitySet is a set of capabilities, with bit n for capability n.
type CapabilitySet uint64

// ParseCapabilities returns the set of the named capabilities. A name can have the prefix "cap_" and
// capital letters; "all" names all capabilities.
func ParseCapabilities(names []string) (CapabilitySet, error) {
	var set CapabilitySet
	for _, name := range names {
		normal := normalizeCapabilityName(name)
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

func normalizeCapabilityName(name string) string {
	return strings.TrimPrefix(strings.ToLower(name), "cap_")
}

// String returns the names, sorted.
func (c CapabilitySet) String() string {
	var names []string
	for n, name := range capabilityNames {
		if c&(1<<n) != 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// ParseAllowCaps returns the set of the capabilities that an operator grants in allow_caps.
func ParseAllowCaps(names []string) (CapabilitySet, error) {
	allowed, err := ParseCapabilities(names)
	if err != nil {
		return 0, err
	}
	named, err := ParseCapabilities(withoutAllKeyword(names))
	if err == nil && named&neverGranted != 0 {
		return 0, fmt.Errorf("the capability %s cannot be granted, because it protects the processes of the agent from tasks", neverGranted)
	}
	return allowed &^ neverGranted, err
}

// withoutAllKeyword returns the names without the name "all".
func withoutAllKeyword(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return normalizeCapabilityName(name) == "all" })
}

// BeyondNonRootDefaults returns the granted capabilities that a task of a user other than root cannot have by default.
func (c CapabilitySet) BeyondNonRootDefaults() CapabilitySet { return c &^ userCapabilities }

// CapabilityRequest is the cap_add and cap_drop of a task, with the allow_caps of its driver.
type CapabilityRequest struct {
	AllowCaps           []string // nil means that the operator has not set allow_caps
	Add, Drop           []string
	IsRoot              bool // true if the task runs as root
	SharesHostNamespace bool // true if the task is in the PID or IPC namespace of the host
}

// Privileges are the capabilities of a task.
type Privileges struct {
	// Bounding are the capabilities that a program can have at most. A task of root has all of
	// them.
	Bounding CapabilitySet

	// Ambient are the capabilities that a task of another user has.
	Ambient CapabilitySet
}

// ResolvePrivileges returns the privileges of a task: the default capabilities that are allowed, with those that
// the task adds, without those that it drops. To drop "all" drops the defaults and keeps what the task
// adds. A user other than root has only the capabilities that the task adds, and net_bind_service.
//
// A task in a namespace of the host has no others than hostModeCapabilities, except those that both the operator and
// the task name: "all" and defaults do not count there.
func (r CapabilityRequest) ResolvePrivileges() (Privileges, error) {
	defaults, allowed, err := r.defaultAndAllowedCaps()
	if err != nil {
		return Privileges{}, fmt.Errorf("allow_caps: %w", err)
	}
	add, err := r.resolveCapAdd(allowed)
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

// defaultAndAllowedCaps returns the capabilities that the task has by default, and those that it can add.
func (r CapabilityRequest) defaultAndAllowedCaps() (defaults, allowed CapabilitySet, err error) {
	switch {
	case r.AllowCaps != nil:
		allowed, err = ParseAllowCaps(r.AllowCaps)
		defaults = nomadCapabilities & allowed
	case r.IsRoot:
		defaults, allowed = rootCapabilities, rootCapabilities
	default:
		defaults, allowed = userCapabilities, userCapabilities
	}
	if err != nil || !r.SharesHostNamespace {
		return defaults, allowed, err
	}
	defaults &= hostModeCapabilities
	allowed, err = ParseCapabilities(withoutAllKeyword(r.AllowCaps))
	return defaults, allowed | defaults, err
}

// resolveCapAdd returns the capabilities that cap_add names. "all" means all allowed capabilities.
func (r CapabilityRequest) resolveCapAdd(allowed CapabilitySet) (CapabilitySet, error) {
	if r.SharesHostNamespace {
		r.Add = withoutAllKeyword(r.Add)
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
