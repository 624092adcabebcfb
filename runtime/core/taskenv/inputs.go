package taskenv

import (
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Node is the node data for building environments.
type Node struct {
	model.NodeFacts
	ParentCgroup string // parent cgroup of tasks; empty if the node has no cgroups
}

// Alloc is the allocation data for building its tasks' environments.
type Alloc struct {
	ID          string
	Name        string // "<job>.<group>[<index>]"
	Namespace   string
	JobID       string
	JobName     string
	ParentJobID string // the parent's id if the job is a child of a periodic or parameterized job; otherwise empty
	Group       string

	// OptionalMetaKeys are the meta keys that a parameterized job's dispatch may omit. Their variables are
	// set to "" if no meta block sets them.
	OptionalMetaKeys []string
	JobMeta          map[string]string
	GroupMeta        map[string]string

	Ports       []Port            // the group's ports
	Network     *NetworkStatus    // the allocation's network; nil unless it has its own network namespace
	PortsByTask map[string][]Port // ports in the networks of single tasks, by task name; such networks are deprecated in job files
}

// Task is one task's data, from the job and the placement, for building its environment. The zero
// value means the environment is the allocation's, not a task's.
type Task struct {
	Name                string
	Meta                map[string]string
	EnvBlock            map[string]string
	CPUMHz              int64
	ReservedCoresCPUSet string // reserved cores as a cpuset list
	MemoryMB            int64
	MemoryMaxMB         int64 // memory_max in MB: -1 for no limit, 0 if not set or oversubscription is off
}

// Port is a port assigned to a group or a task.
type Port struct {
	Label     string
	HostPort  int    // port on the host
	AllocPort int    // port in the allocation's network; 0 or less means the same as HostPort
	HostIP    string // address on the host
}

// NetworkStatus is the interface and address in an allocation's network namespace.
type NetworkStatus struct {
	Interface string
	Address   string
}

// FilterHostEnv returns the variables from environ ("key=value") that tasks may inherit: those with a name in
// allow and not in deny. A nil allow means all names, a nil deny means [base.DefaultEnvDenylist]. The agent calls
// FilterHostEnv once, and all builders share the result.
func FilterHostEnv(environ, deny, allow []string) map[string]string {
	if deny == nil {
		deny = base.DefaultEnvDenylist()
	}
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		key, value, ok := strings.Cut(kv, "=")
		if ok && key != "" && !slices.Contains(deny, key) && (allow == nil || slices.Contains(allow, key)) {
			env[key] = value
		}
	}
	return env
}
