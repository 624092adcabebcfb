package taskenv

import (
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Node has the data of the node for tasks.
type Node struct {
	model.NodeFacts
	ParentCgroup string // parent cgroup of tasks; empty if the node has no cgroups
}

// Alloc has the data of the allocation for its tasks.
type Alloc struct {
	ID          string
	Name        string // "<job>.<group>[<index>]"
	Namespace   string
	JobID       string
	JobName     string
	ParentJobID string // parent of a child of a periodic or parameterized job; otherwise empty
	Group       string

	// OptionalMeta are the meta keys that the dispatch of a parameterized job may omit: their
	// variables are set to "".
	OptionalMeta []string
	JobMeta      map[string]string
	GroupMeta    map[string]string

	Ports     []Port            // ports of the group
	Network   *NetworkStatus    // network of the allocation; nil unless it has its own network namespace
	TaskPorts map[string][]Port // ports of the task-level networks, by task; deprecated in job files
}

// Task has the data of one task from the job and the placement. The zero value means no task: the
// environment of the allocation.
type Task struct {
	Name        string
	Meta        map[string]string
	Env         map[string]string
	CPU         int64  // MHz
	Cores       string // reserved cores as a cpuset list
	MemoryMB    int64
	MemoryMaxMB int64 // memory_max in MB: -1 for no limit, 0 if not set or oversubscription is off
}

// Port is one port of a network.
type Port struct {
	Label  string
	Value  int    // port on the host
	To     int    // port in the allocation's network; 0 or less means the same as Value
	HostIP string // address on the host
}

// NetworkStatus is the network namespace of an allocation.
type NetworkStatus struct {
	Interface string
	Address   string
}

// HostEnv returns the variables of environ ("key=value") that tasks may inherit: the names in
// allow, and none in deny. A nil allow means all, a nil deny [base.EnvDenylist]. The result is
// computed once and shared by all builders.
func HostEnv(environ, deny, allow []string) map[string]string {
	if deny == nil {
		deny = base.EnvDenylist()
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
