package taskenv

import (
	"maps"
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/promises"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const promisesFile = "task-environment.txt"

// promiseLines returns the variable names for a task with every environment input on the node. LABEL, KEY, IDENTITY and TASK
// stand for parts that a job chooses.
func promiseLines(node Node) []string {
	alloc := testAlloc()
	alloc.ParentJobID = "parent"
	alloc.JobMeta = map[string]string{"KEY": "v"}
	alloc.Ports = []Port{{Label: "LABEL", HostPort: 20001, AllocPort: 8080, HostIP: "192.0.2.2"}}
	alloc.Network = &NetworkStatus{Interface: "eth0", Address: "172.26.64.2"}
	alloc.PortsByTask = map[string][]Port{
		"app":  {{Label: "LABEL4", HostPort: 20002, HostIP: "192.0.2.2"}, {Label: "LABEL6", HostPort: 20003, HostIP: "2001:db8::1"}},
		"TASK": {{Label: "LABEL", HostPort: 20004, HostIP: "192.0.2.2"}},
	}
	b := NewBuilder(node, alloc, Task{Name: "app", CPUMHz: 500, MemoryMB: 256, MemoryMaxMB: 512, ReservedCoresCPUSet: "0"})
	b.SetDirs(testDir(), driver.FSIsolationNone)
	b.SetIdentityTokens(map[string]string{model.DefaultIdentity: "token", "IDENTITY": "token"})
	return slices.Sorted(maps.Keys(b.Build().Vars()))
}

func TestReferenceTaskEnvironmentPromises(t *testing.T) {
	promises.Check(t, promisesFile, promiseLines(testNode()))
}

func TestRemovedVariableBreaksPromise(t *testing.T) {
	node := testNode()
	node.ParentCgroup = ""
	promises.CheckOnly(t, promisesFile, promiseLines(node), "NOMAD_PARENT_CGROUP")
}
