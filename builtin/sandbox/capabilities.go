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

// DefaultCapabilities are the names of the capabilities that a task has by default, which are also
// those that it can add by default.
var DefaultCapabilities = []string{
	"audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod",
	"net_bind_service", "setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
}

// Capabilities is a set of capabilities, with bit n for capability n.
type Capabilities uint64

// ParseCapabilities returns the set of the named capabilities. A name can have the prefix "cap_" and
// capital letters; "all" names all capabilities.
func ParseCapabilities(names []string) (Capabilities, error) {
	var set Capabilities
	for _, name := range names {
		normal := strings.TrimPrefix(strings.ToLower(name), "cap_")
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

// CapabilityRequest is the cap_add and cap_drop of a task, with the allow_caps of its driver.
type CapabilityRequest struct{ Allowed, Add, Drop []string }

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
func (r CapabilityRequest) Resolve() (Privileges, error) {
	allowed, err := ParseCapabilities(r.Allowed)
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
	defaults, err := ParseCapabilities(DefaultCapabilities)
	if err != nil {
		return Privileges{}, err
	}
	defaults &= allowed
	if drop == AllCapabilities {
		defaults, drop = 0, 0
	}
	p := Privileges{Bounding: (defaults | add) &^ drop}
	p.Ambient = p.Bounding & (add | 1<<unix.CAP_NET_BIND_SERVICE)
	return p, nil
}

// added returns the capabilities of cap_add, of which "all" means all that are allowed.
func (r CapabilityRequest) added(allowed Capabilities) (Capabilities, error) {
	add, err := ParseCapabilities(r.Add)
	if err != nil || add == AllCapabilities {
		return add & allowed, err
	}
	if denied := add &^ allowed; denied != 0 {
		return 0, fmt.Errorf("driver does not allow the following capabilities: %s; the operator must name them in allow_caps of the driver", denied)
	}
	return add, nil
}
