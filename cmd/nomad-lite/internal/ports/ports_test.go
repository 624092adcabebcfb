package ports

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

// newAllocation returns an allocation of a group with the tasks "init" (prestart), "web" and "db".
func newAllocation(services []*api.Service, mappings ...api.PortMapping) *api.Allocation {
	group := &api.TaskGroup{Name: new("g"), Services: services, Tasks: []*api.Task{
		{Name: "init", Lifecycle: &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart}},
		{Name: "web"},
		{Name: "db"},
	}}
	return &api.Allocation{
		TaskGroup:          "g",
		Job:                &api.Job{TaskGroups: []*api.TaskGroup{group}},
		AllocatedResources: &api.AllocatedResources{Shared: api.AllocatedSharedResources{Ports: mappings}},
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	http := api.PortMapping{Label: "http", Value: 8080, HostIP: "127.0.0.1"}
	db := api.PortMapping{Label: "db", Value: 21000, To: 5432, HostIP: "::1"}
	check := func(c api.ServiceCheck) []*api.Service {
		return []*api.Service{{PortLabel: "http", Checks: []api.ServiceCheck{c}}}
	}
	withTaskNetwork := newAllocation(nil)
	withTaskNetwork.AllocatedResources = &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{
		"db": {Networks: []*api.NetworkResource{nil, {IP: "10.0.0.1", DynamicPorts: []api.Port{{Label: "sql", Value: 21001}}}}},
	}}
	olderAgent := newAllocation(nil)
	olderAgent.AllocatedResources.Shared.Networks = []*api.NetworkResource{{IP: "10.0.0.1", ReservedPorts: []api.Port{{Label: "http", Value: 80}}}}
	withoutJob := newAllocation(nil, http)
	withoutJob.Job = nil

	for name, test := range map[string]struct {
		alloc                *api.Allocation
		all, init, web, base string
	}{
		"no resources": {alloc: &api.Allocation{TaskGroup: "g"}},
		"no ports":     {alloc: newAllocation(nil)},
		"ports of the group belong to the main tasks": {
			alloc: newAllocation(nil, http, db),
			all:   "http: 127.0.0.1:8080, db: [::1]:21000 -> 5432",
			web:   "http: 127.0.0.1:8080, db: [::1]:21000 -> 5432",
			base:  "http: 127.0.0.1:8080, db: [::1]:21000 -> 5432",
		},
		"a port that a service of a task names belongs to the task": {
			alloc: newAllocation([]*api.Service{{PortLabel: "http", TaskName: "web"}, {PortLabel: "x", TaskName: "db", Checks: []api.ServiceCheck{{PortLabel: "db"}}}}, http, db),
			all:   "http: 127.0.0.1:8080, db: [::1]:21000 -> 5432",
			web:   "http: 127.0.0.1:8080",
			base:  "db: [::1]:21000 -> 5432",
		},
		"a port with an HTTP check is a URL": {
			alloc: newAllocation(check(api.ServiceCheck{Type: "http", Path: "/health"}), http),
			all:   "http: http://127.0.0.1:8080/health",
			web:   "http: http://127.0.0.1:8080/health",
			base:  "http: http://127.0.0.1:8080/health",
		},
		"the check names protocol and port": {
			alloc: newAllocation([]*api.Service{{PortLabel: "http", TaskName: "db", Checks: []api.ServiceCheck{{Type: "http", PortLabel: "db", Protocol: "https", Path: "up"}}}}, db),
			all:   "db: https://[::1]:21000/up",
			base:  "db: https://[::1]:21000/up",
		},
		"a TCP check has no URL":                       {alloc: newAllocation(check(api.ServiceCheck{Type: "tcp"}), http), all: "http: 127.0.0.1:8080", web: "http: 127.0.0.1:8080", base: "http: 127.0.0.1:8080"},
		"a path that depends on the task is no URL":    {alloc: newAllocation(check(api.ServiceCheck{Type: "http", Path: "/${NOMAD_META_x}"}), http), all: "http: 127.0.0.1:8080", web: "http: 127.0.0.1:8080", base: "http: 127.0.0.1:8080"},
		"a check inside of a container has no URL":     {alloc: newAllocation(check(api.ServiceCheck{Type: "http", Path: "/", AddressMode: "driver"}), http), all: "http: 127.0.0.1:8080", web: "http: 127.0.0.1:8080", base: "http: 127.0.0.1:8080"},
		"a deprecated network of a task":               {alloc: withTaskNetwork, all: "sql: 10.0.0.1:21001", base: "sql: 10.0.0.1:21001"},
		"an agent that lists networks without mapping": {alloc: olderAgent, all: "http: 10.0.0.1:80", web: "http: 10.0.0.1:80", base: "http: 10.0.0.1:80"},
		"an answer without the job":                    {alloc: withoutJob, all: "http: 127.0.0.1:8080", web: "http: 127.0.0.1:8080", base: "http: 127.0.0.1:8080"},
	} {
		var group *api.TaskGroup
		if test.alloc.Job != nil {
			group = test.alloc.Job.TaskGroups[0]
		}
		if got := FormatAllocationPorts(test.alloc.AllocatedResources, group); got != test.all {
			t.Errorf("%s: allocation has %q, want %q", name, got, test.all)
		}
		prestart := &api.Task{Name: "init", Lifecycle: &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart}}
		for _, of := range []struct {
			task *api.Task
			want string
		}{{prestart, test.init}, {&api.Task{Name: "web"}, test.web}, {&api.Task{Name: "db"}, test.base}} {
			if got := FormatTaskPorts(test.alloc, of.task); got != of.want {
				t.Errorf("%s: task %q has %q, want %q", name, of.task.Name, got, of.want)
			}
		}
	}
}
