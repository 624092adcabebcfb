package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// A fixture has a job with one group and one task.
type jobFixture struct {
	job   *api.Job
	group *api.TaskGroup
	task  *api.Task
}

func newJobFixture(edit func(*jobFixture)) *jobFixture {
	task := &api.Task{Name: "t", Driver: "d"}
	group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{task}}
	f := &jobFixture{&api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{group}}, group, task}
	edit(f)
	model.Canonicalize(f.job)
	return f
}

func TestPlaceWithoutNetworkMode(t *testing.T) {
	for _, c := range []struct {
		name, mode string
		modes      []string // node modes
		want       string
	}{
		{"a bridge", "bridge", []string{"bridge"}, ""},
		{"a network of the operator", "cni/a", []string{"bridge", "cni/a"}, ""},
		{"no bridge", "bridge", []string{}, `network mode "bridge": the log of the agent says why`},
		{"no namespaces", "cni/a", []string{}, `network mode "cni/a": the log of the agent says why`},
		{"no file of the network", "cni/b", []string{"bridge", "cni/a"}, `network mode "cni/b": the directory client.cni_config_dir has no network of that name`},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := newJobFixture(func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{Mode: c.mode}} }).job
			node := testNode()
			node.NetworkModes = c.modes
			_, err := PlaceOnEmptyNode(job, node, testEnv())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func testNode() PlacementNode {
	return PlacementNode{
		NodeFeatures: admission.NodeFeatures{NodeFacts: model.NodeFacts{
			ID: "node", Name: "box", Datacenter: "dc1", Pool: "default",
			Attributes: map[string]string{"kernel.name": "linux", "nomad.version": "2.0.6-dev"},
			Meta:       map[string]string{"rack": "r1"},
		}},
		IP: "10.0.0.1", InterfaceName: "eth0",
	}
}

// testEnv returns an Env with numbered ids, in which every dynamic port search starts at the first port. The ports inUse are
// not free.
func testEnv(inUse ...int) Env {
	ids := 0
	return Env{
		NewID:      func() string { ids++; return fmt.Sprintf("id-%d", ids) },
		IsPortFree: func(port HostPort) bool { return !slices.Contains(inUse, port.Port) },
		RandIntN:   func(int) int { return 0 },
		Now:        func() time.Time { return time.Unix(1, 0) },
	}
}

func TestPlace(t *testing.T) {
	f := newJobFixture(func(f *jobFixture) {
		f.group.Count = new(2)
		f.group.Networks = []*api.NetworkResource{{
			DynamicPorts:  []api.Port{{Label: "http", To: -1}, {Label: "rpc", To: 80}},
			ReservedPorts: []api.Port{{Label: "ssh", Value: 20001, IgnoreCollision: true}},
		}}
		f.task.Resources = &api.Resources{CPU: new(10), MemoryMB: new(20), Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "own"}}}}}
		f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "u", Driver: "d"})
		f.job.TaskGroups = append(f.job.TaskGroups, &api.TaskGroup{Name: new("h"), Tasks: []*api.Task{{Name: "t", Driver: "d"}}})
	})
	allocs, err := PlaceOnEmptyNode(f.job, testNode(), testEnv(20000))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range allocs {
		got = append(got, fmt.Sprintf("%s %s %s %s %s", a.Name, a.ID, a.EvalID, a.TaskGroup, a.ClientStatus))
		if a.Job != f.job || a.NodeID != "node" || a.NodeName != "box" || a.Namespace != "default" || a.JobID != "j" || a.DesiredStatus != "run" || a.CreateTime != int64(time.Second) {
			t.Errorf("allocation %+v", a)
		}
	}
	want := []string{"j.g[0] id-2 id-1 g pending", "j.g[1] id-3 id-1 g pending", "j.h[0] id-4 id-1 h pending"}
	if !slices.Equal(got, want) {
		t.Errorf("allocations\n got %q\nwant %q", got, want)
	}

	// port 20000 is in use on the host, and 20001 is the job's static port
	second := allocs[1].AllocatedResources
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"ports of the first", allocs[0].AllocatedResources.Shared.Ports, []api.PortMapping{
			{Label: "ssh", Value: 20001, HostIP: "10.0.0.1"}, {Label: "http", Value: 20002, To: 20002, HostIP: "10.0.0.1"}, {Label: "rpc", Value: 20003, To: 80, HostIP: "10.0.0.1"}}},
		{"ports of the second", second.Shared.Ports, []api.PortMapping{
			{Label: "ssh", Value: 20001, HostIP: "10.0.0.1"}, {Label: "http", Value: 20005, To: 20005, HostIP: "10.0.0.1"}, {Label: "rpc", Value: 20006, To: 80, HostIP: "10.0.0.1"}}},
		{"ports of the second's task", second.Tasks["t"].Networks[0].DynamicPorts, []api.Port{{Label: "own", Value: 20007, HostNetwork: "default"}}},
		{"network", second.Shared.Networks[0].IP, "10.0.0.1"},
		{"interface of the task's network", second.Tasks["t"].Networks[0].Device, "eth0"},
		{"cpu", second.Tasks["t"].Cpu.CpuShares, 10},
		{"memory", second.Tasks["u"].Memory.MemoryMB, 300},
		{"disk", second.Shared.DiskMB, 300},
		{"sum", []*int{allocs[1].Resources.CPU, allocs[1].Resources.MemoryMB, allocs[1].Resources.DiskMB}, []int{110, 320, 300}},
		{"each", []*int{allocs[1].TaskResources["t"].CPU, allocs[1].TaskResources["t"].MemoryMB}, []int{10, 20}},
		{"metrics", []any{allocs[0].Metrics.NodesEvaluated, allocs[0].Metrics.NodesAvailable, allocs[0].Metrics.NodePool}, []any{1, map[string]int{"dc1": 1}, "default"}},
		{"the job is not changed", f.group.Networks[0].DynamicPorts[0], api.Port{Label: "http", To: -1, HostNetwork: "default"}},
	} {
		g, _ := json.Marshal(c.got)
		w, _ := json.Marshal(c.want)
		if string(g) != string(w) {
			t.Errorf("%s: %s, want %s", c.what, g, w)
		}
	}
}

func TestPlaceRefuses(t *testing.T) {
	constraint := func(left, operand, right string) func(*jobFixture) {
		return func(f *jobFixture) { f.group.Constraints = []*api.Constraint{api.NewConstraint(left, operand, right)} }
	}
	static := func(port int) *api.NetworkResource {
		return &api.NetworkResource{ReservedPorts: []api.Port{{Label: "web", Value: port}}}
	}
	for _, c := range []struct {
		name string
		edit func(*jobFixture)
		want string // placement error; empty if the job can be placed
	}{
		{"a datacenter by pattern", func(f *jobFixture) { f.job.Datacenters = []string{"x", "d*1"} }, ""},
		{"another datacenter", func(f *jobFixture) { f.job.Datacenters = []string{"dc2"} }, `job "j": datacenters ["dc2"]: this node is in datacenter "dc1"`},
		{"the pool of all", func(f *jobFixture) { f.job.NodePool = new("all") }, ""},
		{"another pool", func(f *jobFixture) { f.job.NodePool = new("gpu") }, `job "j": node_pool "gpu": this node is in pool "default"`},
		{"a constraint that holds", constraint("${attr.kernel.name}", "=", "linux"), ""},
		{"a constraint that does not hold", constraint("${attr.kernel.name}", "=", "windows"), `group "g": constraint "${attr.kernel.name} = windows" does not hold: ${attr.kernel.name} is "linux" here`},
		{"a constraint on nothing", constraint("${attr.nope}", "is_set", ""), `group "g": constraint "${attr.nope} is_set" does not hold: ${attr.nope} is not set here`},
		{"a constraint on meta", constraint("${meta.rack}", "regexp", "^r"), ""},
		{"a constraint against a reference", constraint("${node.unique.name}", "!=", "${node.unique.id}"), ""},
		{"a constraint on an empty class", constraint("${node.class}", "is_set", ""), ""},
		{"a constraint on the pool and the datacenter", func(f *jobFixture) {
			f.job.Constraints = []*api.Constraint{api.NewConstraint("${node.pool}", "=", "default"), api.NewConstraint("${node.datacenter}", "=", "dc1")}
		}, ""},
		{"a constraint on a device", constraint("${device.model}", "is_set", ""), `group "g": constraint "${device.model} is_set" does not hold: ${device.model} is not set here`},
		{"constraints on the job and on a task", func(f *jobFixture) {
			f.job.Constraints = []*api.Constraint{api.NewConstraint("${meta.a}", "is_set", "")}
			f.task.Constraints = []*api.Constraint{api.NewConstraint("${meta.b}", "is_set", "")}
		}, "group \"g\": constraint \"${meta.a} is_set\" does not hold: ${meta.a} is not set here\nconstraint \"${meta.b} is_set\" does not hold: ${meta.b} is not set here"},
		{"a service of consul", func(f *jobFixture) { f.group.Services = []*api.Service{{}} }, ""},

		{"a signal that there is not", func(f *jobFixture) { f.task.KillSignal = "SIGFOO" },
			`group "g": constraint "${attr.os.signals} set_contains SIGFOO" does not hold: ${attr.os.signals} is not set here; it follows from the kill_signal or change_signal of a task`},

		{"distinct_hosts, once", constraint("", "distinct_hosts", ""), ""},
		{"distinct_hosts, twice", func(f *jobFixture) { f.group.Count = new(2); constraint("", "distinct_hosts", "yes")(f) },
			`group "g": constraint "distinct_hosts yes" allows 1 on one node, not 2`},
		{"distinct_hosts, switched off", func(f *jobFixture) { f.group.Count = new(2); constraint("", "distinct_hosts", "false")(f) }, ""},
		{"distinct_hosts of the job", func(f *jobFixture) {
			f.job.Constraints = []*api.Constraint{{Operand: "distinct_hosts"}}
			f.group.Count = new(2)
		}, `group "g": constraint "distinct_hosts" allows 1 on one node, not 2`},
		{"distinct_property, as often as allowed", func(f *jobFixture) {
			f.group.Count = new(2)
			constraint("${meta.rack}", "distinct_property", "2")(f)
		}, ""},
		{"distinct_property, too often", func(f *jobFixture) {
			f.group.Count = new(2)
			constraint("${meta.rack}", "distinct_property", "")(f)
		}, `group "g": constraint "${meta.rack} distinct_property" allows 1 on one node, not 2`},
		{"distinct_property of nothing", constraint("${meta.nope}", "distinct_property", ""), `group "g": constraint "${meta.nope} distinct_property" does not hold: ${meta.nope} is not set here`},

		{"a static port", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{static(8080)} }, ""},
		{"a static port in use", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{static(80)} },
			`group "g": port "web": reserved port collision web=80: a process listens there. Stop it, or leave out static`},
		{"a static port, twice", func(f *jobFixture) { f.group.Count, f.group.Networks = new(2), []*api.NetworkResource{static(8080)} },
			`group "g": port "web": another allocation of this job has the static port 8080 on this node: leave out static, or lower the count`},
		{"a port that is none", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{static(-1)} }, `group "g": port "web": -1 is not between 1 and 65535`},
		{"a static port of a task", func(f *jobFixture) { f.task.Resources = &api.Resources{Networks: []*api.NetworkResource{static(80)}} },
			`group "g": task "t": port "web": reserved port collision web=80: a process listens there. Stop it, or leave out static`},
		{"a network of the host that is not there", func(f *jobFixture) {
			f.group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a", HostNetwork: "zz"}}}}
		}, `group "g": missing host network "zz" for port "a": add a block host_network "zz" to the block client of the agent's configuration whose address the machine has, or leave out host_network`},
		{"a network of the host in the network of a task", func(f *jobFixture) {
			f.task.Resources = &api.Resources{Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a", HostNetwork: "zz"}}}}}
		}, `group "g": task "t": port "a": host_network = "zz" works in the network block of the group only: write the port there`},
		{"ports of the second network", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{}, static(80)} }, ""},

		{"all the memory", func(f *jobFixture) { f.task.Resources = &api.Resources{MemoryMB: new(1000)} }, ""},
		{"more than the memory", func(f *jobFixture) { f.task.Resources = &api.Resources{MemoryMB: new(600)}; f.group.Count = new(2) },
			`group "g": memory exhausted: an allocation needs 600 MB and 400 MB are left on this node: ask for less in the resources of its tasks, or lower the count`},
		{"tasks that run one after the other", func(f *jobFixture) {
			f.task.Resources = &api.Resources{MemoryMB: new(600)}
			for _, hook := range []string{"prestart", "poststop"} {
				f.group.Tasks = append(f.group.Tasks, &api.Task{Name: hook, Driver: "d", Lifecycle: &api.TaskLifecycle{Hook: hook}, Resources: &api.Resources{MemoryMB: new(600)}})
			}
		}, ""},
		{"a sidecar that runs beside them", func(f *jobFixture) {
			f.task.Resources = &api.Resources{MemoryMB: new(600)}
			f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "s", Driver: "d", Lifecycle: &api.TaskLifecycle{Hook: "prestart", Sidecar: true}, Resources: &api.Resources{MemoryMB: new(600)}})
		}, `group "g": memory exhausted: an allocation needs 1200 MB and 1000 MB are left on this node: ask for less in the resources of its tasks, or lower the count`},
		{"more tasks than the node has descriptors for", func(f *jobFixture) {
			f.task.Resources, f.group.Count = &api.Resources{MemoryMB: new(10)}, new(6)
		},
			`group "g": descriptors exhausted: an allocation needs 6 descriptors and 2 descriptors are left on this node: stop a job, lower the count, or raise the hard limit of open files of the agent (ulimit -Hn, LimitNOFILE= of its service) and restart it`},
		{"every group that does not fit is named", func(f *jobFixture) {
			constraint("${meta.a}", "is_set", "")(f)
			f.job.TaskGroups = append(f.job.TaskGroups, &api.TaskGroup{Name: new("h"), Networks: []*api.NetworkResource{static(80)}, Tasks: []*api.Task{{Name: "t", Driver: "d"}}})
		}, "group \"g\": constraint \"${meta.a} is_set\" does not hold: ${meta.a} is not set here\ngroup \"h\": port \"web\": reserved port collision web=80: a process listens there. Stop it, or leave out static"},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := testNode()
			node.Attributes["memory.totalbytes"] = "1048576000"
			node.Attributes["nomad-lite.descriptors"] = "32"
			allocs, err := PlaceOnEmptyNode(newJobFixture(c.edit).job, node, testEnv(80))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("error\n got %s\nwant %s", got, c.want)
			}
			if (err == nil) == (len(allocs) == 0) {
				t.Errorf("%d allocations, error %v", len(allocs), err)
			}
		})
	}
}

func TestProcessesAndPipesAreResourcesOfTheNode(t *testing.T) {
	for attribute, want := range map[string]string{
		"nomad-lite.processes": "pids exhausted: an allocation needs 2 processes and 1 processes are left on this node: stop a job, lower the count, or raise kernel.pid_max,",
		"nomad-lite.pipes":     "pipes exhausted: an allocation needs 2 pipes and 1 pipes are left on this node: stop a job, lower the count, or raise fs.pipe-user-pages-hard,",
	} {
		node := testNode()
		node.Attributes[attribute] = "5"
		_, err := PlaceOnEmptyNode(newJobFixture(func(f *jobFixture) { f.group.Count = new(3) }).job, node, testEnv())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestPlaceNamesTheGroup(t *testing.T) {
	f := newJobFixture(func(f *jobFixture) { f.group.Constraints = []*api.Constraint{api.NewConstraint("a", "=", "b")} })
	_, err := PlaceOnEmptyNode(f.job, testNode(), testEnv())
	var groupErr *GroupPlacementError
	if !errors.As(err, &groupErr) || groupErr.Group != "g" {
		t.Errorf("error %v does not lead to the group", err)
	}
}

// The search for a dynamic port can start anywhere and checks every port once.
func TestDynamicPortSearch(t *testing.T) {
	port := func(f *jobFixture) {
		f.group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a"}}}}
	}
	host := testEnv(MaxDynamicPort)
	host.RandIntN = func(n int) int { return n - 1 }
	allocs, err := PlaceOnEmptyNode(newJobFixture(port).job, testNode(), host)
	if err != nil {
		t.Fatal(err)
	}
	if got := allocs[0].AllocatedResources.Shared.Ports[0].Value; got != MinDynamicPort {
		t.Errorf("port %d after the last, want the first, %d", got, MinDynamicPort)
	}

	asked := 0
	host.IsPortFree = func(HostPort) bool { asked++; return false }
	_, err = PlaceOnEmptyNode(newJobFixture(port).job, testNode(), host)
	if err == nil || !strings.Contains(err.Error(), "no port between 20000 and 32000 is free") {
		t.Errorf("error %v", err)
	}
	if asked != MaxDynamicPort-MinDynamicPort+1 {
		t.Errorf("asked for %d ports", asked)
	}

	node := PlacementNodeOf(&api.Node{NodeResources: &api.NodeResources{MinDynamicPort: 30000, MaxDynamicPort: 30001}})
	p := newAllocPlacer(newJobFixture(port).job, node, testEnv(30000), NewEmptyNodeUsage(node))
	p.chosenPorts = make(map[HostPort]bool)
	if got, err := p.takeDynamicPort(api.Port{HostNetwork: "default"}); err != nil || got != 30001 {
		t.Errorf("port %d, %v in the range of the node, want 30001", got, err)
	}
	if got, err := p.takeDynamicPort(api.Port{HostNetwork: "default"}); err == nil {
		t.Errorf("port %d outside of the range of the node", got)
	}
}

func TestParsePorts(t *testing.T) {
	for text, want := range map[string]string{
		"": "[] <nil>", "22": "[22] <nil>", "22, 80-82,": "[22 80 81 82] <nil>",
		"22,ssh,90-80,70000": `[22] "70000" is no port and no range of ports: write them like "22,8000-8010"`,
	} {
		ports, err := ParsePortRanges(text)
		if got := fmt.Sprintf("%v %v", ports, err); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

// FuzzPlace checks that a valid job is placed or rejected, and no port is assigned twice.
func FuzzPlace(f *testing.F) {
	full := newJobFixture(func(f *jobFixture) {
		f.group.Count = new(3)
		f.group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a"}}, ReservedPorts: []api.Port{{Label: "b", Value: 20000, IgnoreCollision: true}}}}
		f.group.Constraints = []*api.Constraint{api.NewConstraint("${attr.nomad.version}", "semver", ">= 1.4.0")}
		f.task.Lifecycle = &api.TaskLifecycle{Hook: "prestart", Sidecar: true}
		f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "u", Driver: "d"})
	})
	text, err := json.Marshal(full.job)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		var job api.Job
		if json.Unmarshal(text, &job) != nil {
			return
		}
		model.Canonicalize(&job)
		total := 0
		for _, g := range job.TaskGroups {
			total += *g.Count
		}
		if model.Validate(&job, model.JobLimits{}) != nil || total > 100 {
			return
		}
		allocs, err := PlaceOnEmptyNode(&job, testNode(), testEnv())
		if err != nil {
			return
		}
		if len(allocs) != total {
			t.Errorf("%d allocations, want %d", len(allocs), total)
		}
		given := map[int]bool{}
		for _, a := range allocs {
			for _, n := range a.AllocatedResources.Shared.Networks {
				for _, p := range n.DynamicPorts {
					if given[p.Value] {
						t.Errorf("port %d twice", p.Value)
					}
					given[p.Value] = true
				}
			}
		}
	})
}

// A task with reserved cores gets their CPU, and cores are not assigned twice.
func TestPlaceCores(t *testing.T) {
	node := testNode()
	node.Attributes["cpu.reservablecores"], node.Attributes["cpu.usablecompute"] = "4", "8000"
	place := func(count, cores int) ([]*api.Allocation, error) {
		return PlaceOnEmptyNode(newJobFixture(func(f *jobFixture) {
			f.group.Count = &count
			f.task.Resources = &api.Resources{Cores: &cores}
		}).job, node, testEnv())
	}
	allocs, err := place(2, 2)
	if err != nil || len(allocs) != 2 {
		t.Fatal(allocs, err)
	}
	for _, task := range allocs[0].AllocatedResources.Tasks {
		if task.Cpu.CpuShares != 4000 {
			t.Errorf("CPU %d MHz, want 4000", task.Cpu.CpuShares)
		}
	}
	if _, err := place(2, 3); err == nil || !strings.Contains(err.Error(), "exhausted") {
		t.Errorf("six of four cores: %v", err)
	}
}

// The CPU of reserved cores is not subtracted again from the CPU that tasks can use, and a core has its own frequency.
func TestPlaceOnNodeWithReservedCores(t *testing.T) {
	record := nodeWithNetworks()
	record.Attributes["cpu.frequency"], record.Attributes["cpu.reservablecores"], record.Attributes["cpu.usablecompute"] = "2000", "1", "1700"
	record.ReservedResources.Cpu.CpuShares = 2300 // a core, and 300 MHz
	place := func(resources api.Resources) ([]*api.Allocation, error) {
		job := newJobFixture(func(f *jobFixture) { f.task.Resources = &resources }).job
		return PlaceOnEmptyNode(job, PlacementNodeOf(record), testEnv())
	}
	for mhz, fits := range map[int]bool{1700: true, 1701: false} {
		if _, err := place(api.Resources{CPU: &mhz}); (err == nil) != fits {
			t.Errorf("%d MHz: %v", mhz, err)
		}
	}
	record.Attributes["cpu.usablecompute"] = "8700" // cpu_total_compute
	allocs, err := place(api.Resources{Cores: new(1)})
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range allocs[0].AllocatedResources.Tasks {
		if task.Cpu.CpuShares != 2000 {
			t.Errorf("CPU of a core %d MHz, want 2000", task.Cpu.CpuShares)
		}
	}
}

// A node with node_max_allocs runs no more allocations at one time.
func TestPlaceOnNodeWithMaxAllocs(t *testing.T) {
	node := testNode()
	node.MaxAllocs = 2
	place := func(count int) error {
		_, err := PlaceOnEmptyNode(newJobFixture(func(f *jobFixture) { f.group.Count = &count }).job, node, testEnv())
		return err
	}
	if err := place(2); err != nil {
		t.Error(err)
	}
	exhausted := new(nodeExhaustedError)
	if err := place(3); !errors.As(err, &exhausted) || exhausted.resourceName != "max allocation exceeded" || !strings.Contains(err.Error(), "this node runs 2 allocations at one time") {
		t.Errorf("a third allocation: %v", err)
	}
}
