package jobs

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// operationsConfig has a bridge that no other test uses.
const operationsConfig = `
plugin "exec" {}
client {
  bridge_network_name   = "nlcounts"
  bridge_network_subnet = "172.27.192.0/24"
}
`

var operationsLine = regexp.MustCompile(`(?m)^nomad_lite_operations_total\{operation="(\w+)"[^}]*\} (\S+)$`)

// operationCounts has the number of operations by the names of their kinds.
type operationCounts map[string]int

// readOperations returns the operations of the agent and of its plugins together.
func readOperations(t *testing.T, a *systemtest.TestAgent) operationCounts {
	t.Helper()
	r := a.SendGet("/v1/metrics?format=prometheus")
	if r.StatusCode != http.StatusOK {
		t.Fatal(r)
	}
	total := operationCounts{}
	for _, line := range operationsLine.FindAllStringSubmatch(r.Body, -1) {
		n, err := strconv.ParseFloat(line[2], 64)
		if err != nil {
			t.Fatal(line[0])
		}
		total[line[1]] += int(n)
	}
	if total["fork"] == 0 || total["sync"] == 0 {
		t.Fatalf("the agent has started plugins, and reports %v", total)
	}
	return total
}

// TestOperationsPerStart checks the number of expensive operations of a start that is not the first. docs/performance.md has
// the same numbers.
func TestOperationsPerStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to isolate tasks and for a bridge")
	}
	newGroup := func(edit ...func(*api.Task)) *api.TaskGroup {
		script := "cat /proc/self/mountinfo; echo complete; " + systemtest.SleepForeverScript
		return api.NewTaskGroup("g", 1).AddTask(systemtest.NewRawExecShellTask("t", script, edit...))
	}
	inBridge := newGroup(systemtest.WithExecDriver)
	inBridge.Networks = []*api.NetworkResource{{Mode: "bridge", DynamicPorts: []api.Port{{Label: "http", To: 8080}}}}
	for _, c := range []struct {
		name        string
		group       *api.TaskGroup
		fixedMounts int // mount operations that do not depend on the machine
		netlink     int
		v1Cgroup    int // cgroup operations with cgroups v1
		maxSync     int
	}{
		{name: "raw_exec", group: newGroup(), fixedMounts: 2, v1Cgroup: 12, maxSync: 6},
		{name: "exec", group: newGroup(systemtest.WithExecDriver), fixedMounts: 26, v1Cgroup: 12, maxSync: 6},
		{name: "exec-bridge", group: inBridge, fixedMounts: 29, netlink: 18, v1Cgroup: 12, maxSync: 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := systemtest.StartTestAgent(t, false, operationsConfig)
			start := func(i int) *api.Allocation {
				return a.RunGroupUntilStatus(fmt.Sprint(c.name, i), api.JobTypeService, api.AllocClientStatusRunning, c.group)
			}
			first := start(0) // also makes the bridge and the parents of cgroups
			// Each 10 s the agent repairs the bridge. The repair is not a part of the start with the fewest operations.
			fewest := operationCounts{}
			for i := range 4 {
				before := readOperations(t, a)
				start(i + 1)
				for kind, n := range readOperations(t, a) {
					if n -= before[kind]; i == 0 || n < fewest[kind] {
						fewest[kind] = n
					}
				}
			}
			// The keeper and the log collector get one request each, and the log collector another one from readOperations.
			want := operationCounts{"fork": 1, "mount": c.fixedMounts, "request": 2 + 1}
			if c.fixedMounts > 2 {
				want["mount"] += machineMounts(a, first)
			}
			if c.netlink == 0 || !hasIptablesRules(t) {
				want["netlink"] = c.netlink
			}
			if hasAllV1Cgroups() {
				want["cgroup"] = c.v1Cgroup
			}
			for kind, n := range want {
				if fewest[kind] != n {
					t.Errorf("%d operations of the kind %s, want %d", fewest[kind], kind, n)
				}
			}
			if fewest["sync"] == 0 || fewest["sync"] > c.maxSync {
				t.Errorf("%d operations of the kind sync, want 1 to %d", fewest["sync"], c.maxSync)
			}

			const burst = 10
			before := readOperations(t, a)
			group := *c.group
			group.Count = new(burst)
			a.RegisterJobWithGroup("burst", api.JobTypeService, &group)
			a.WaitUntil("all run", func() (string, bool) {
				stubs, _, err := a.Jobs().Allocations("burst", false, nil)
				running := 0
				for _, stub := range stubs {
					if stub.ClientStatus == api.AllocClientStatusRunning {
						running++
					}
				}
				return fmt.Sprint(running, err), running == burst
			})
			now := readOperations(t, a)
			if got := now["sync"] - before["sync"]; got > burst*c.maxSync {
				t.Errorf("%d operations of the kind sync for %d starts at the same time, want at most %d", got, burst, burst*c.maxSync)
			}
			if got := now["fork"] - before["fork"]; got != burst {
				t.Errorf("%d operations of the kind fork for %d starts at the same time", got, burst)
			}
		})
	}
}

// Paths that drivers with isolation mount for each task only if the machine has them: paths of the host, and paths
// below /proc that are read-only for tasks.
var (
	chrootPaths       = []string{"/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/run/systemd/resolve", "/sbin", "/usr"}
	readOnlyProcPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// machineMounts returns the number of mount operations for the paths of the machine that an isolated task sees. The task
// prints its mount table.
func machineMounts(a *systemtest.TestAgent, alloc *api.Allocation) (operations int) {
	a.T.Helper()
	table := ""
	a.WaitUntil("the task prints its mounts", func() (string, bool) {
		text, err := a.ReadStoredLog(alloc, "t", "stdout", "start", 0)
		table = text
		return fmt.Sprint(text, err), strings.HasSuffix(text, "complete\n")
	})
	hidesFile := false
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		const root, mountPoint = 3, 4
		if len(fields) <= mountPoint {
			continue
		}
		switch at := fields[mountPoint]; {
		case slices.Contains(chrootPaths, at):
			operations += 3 // copy, make read-only, attach
		case slices.Contains(readOnlyProcPaths, at): // the mount is tried on each machine
		case strings.HasPrefix(at, "/proc/") && fields[root] == "/null" && !hidesFile:
			hidesFile = true
			operations += 3 // copy /dev/null, make it read-only, attach it
		case strings.HasPrefix(at, "/proc/"), strings.HasPrefix(at, "/sys/"):
			operations++
		}
	}
	return operations
}

// hasAllV1Cgroups reports whether drivers use cgroups v1 here, with all limits.
func hasAllV1Cgroups() bool {
	for _, controller := range []string{"freezer", "memory", "pids", "cpu"} {
		var fs unix.Statfs_t
		if unix.Statfs("/sys/fs/cgroup/"+controller, &fs) != nil || fs.Type != unix.CGROUP_SUPER_MAGIC {
			return false
		}
	}
	return true
}

// hasIptablesRules reports whether the machine has a table of iptables that filters packets. The agent then looks for its own
// rules in it at each start in a bridge.
func hasIptablesRules(t *testing.T) bool {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(tables, func(table *nftables.Table) bool {
		return table.Name == "filter" && (table.Family == nftables.TableFamilyIPv4 || table.Family == nftables.TableFamilyIPv6)
	})
}
