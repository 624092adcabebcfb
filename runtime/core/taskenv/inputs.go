package taskenv

import (
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Node is the data of the node from which environments are built.
type Node struct {
	model.NodeFacts
	ParentCgroup string // parent cgroup of tasks; empty if the node has no cgroups
}

// Alloc is the data of an allocation from which the environments of its tasks are built.
type Alloc struct {
	ID          string
	Name        string // "<job>.<group>[<index>]"
	Namespace   string
	JobID       string
	JobName     string
	ParentJobID string // id of the parent if the job is a child of a periodic or parameterized job; otherwise empty
	Group       string

	// OptionalMetaKeys are the meta keys that the dispatch of a parameterized job may omit. Their variables
	// are set to "" if no meta block sets them.
	OptionalMetaKeys []string
	JobMeta          map[string]string
	GroupMeta        map[string]string

	Ports       []Port            // ports of the group
	Network     *NetworkStatus    // network of the allocation; nil unless it has its own network namespace
	PortsByTask map[string][]Port // ports of the networks of single tasks, by task name; such networks are deprecated in job files
}

// Task is the data of one task, from the job and the placement, from which its environment is built.
// The zero value means that the environment is that of the allocation, and not of a task.
type Task struct {
	Name                string
	Meta                map[string]string
	EnvBlock            map[string]string
	CPUMHz              int64
	ReservedCoresCPUSet string // reserved cores as a cpuset list
	MemoryMB            int64
	MemoryMaxMB         int64 // memory_max in MB: -1 for no limit, 0 if not set or oversubscription is off
}

// Port is a port that was assigned to a group or a task.
type Port struct {
	Label     string
	HostPort  int    // port on the host
	AllocPort int    // port in the allocation's network; 0 or less means the same as HostPort
	HostIP    string // address on the host
}

// NetworkStatus is the interface and the address in the network namespace of an allocation.
type NetworkStatus struct {
	Interface string
	Address   string
}

// FilterHostEnv returns the variables of environ ("key=value") that tasks may inherit: those whose names are in
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
