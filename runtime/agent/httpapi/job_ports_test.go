package httpapi

import (
	"testing"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func TestJobPorts(t *testing.T) {
	f := newFixture(t, nil)
	check := func(label, kind, protocol string) api.ServiceCheck {
		return api.ServiceCheck{PortLabel: label, Type: kind, Protocol: protocol}
	}
	job := &api.Job{
		ID: new("web"), Name: new("web"), Namespace: new("default"), Version: new(uint64(0)), Type: new("service"),
		TaskGroups: []*api.TaskGroup{{
			Name: new("g"),
			Services: []*api.Service{
				{PortLabel: "admin", Checks: []api.ServiceCheck{check("", "tcp", ""), check("", "http", "https")}},
				{PortLabel: "20003", Checks: []api.ServiceCheck{check("", "http", "https")}},
			},
			Tasks: []*api.Task{{Name: "t", Services: []*api.Service{{PortLabel: "plain", Checks: []api.ServiceCheck{check("", "http", ""), check("task", "http", "HTTPS"), check("", "tcp", "")}}}}},
		}},
	}
	put := func(tx *store.Txn, namespace, status string, ports ...api.PortMapping) {
		j := *job
		j.Namespace = &namespace
		tx.PutJobAndVersion(&j)
		tx.PutScheduledAllocation(&api.Allocation{
			ID: uuid.NewString(), Namespace: namespace, JobID: "web", Job: &j, TaskGroup: "g", NodeID: f.config.NodeID, Name: "web.g[0]", ClientStatus: status,
			DesiredStatus: api.AllocDesiredStatusRun, AllocatedResources: &api.AllocatedResources{Shared: api.AllocatedSharedResources{Ports: ports}},
		})
	}
	f.updateStore(t, func(tx *store.Txn) {
		put(tx, "default", "running", api.PortMapping{Label: "plain", Value: 20001, HostIP: "10.0.0.1"}, api.PortMapping{Label: "admin", Value: 20002, HostIP: "10.0.0.1"},
			api.PortMapping{Label: "number", Value: 20003, HostIP: "::1"}, api.PortMapping{Label: "task", Value: 20005, HostIP: "10.0.0.1"})
		put(tx, "default", "running", api.PortMapping{Label: "none", Value: 20004, HostIP: "10.0.0.1"})
		put(tx, "default", "running")
		put(tx, "default", "pending", api.PortMapping{Label: "none", Value: 20006, HostIP: "10.0.0.1"})
		put(tx, "default", "complete", api.PortMapping{Label: "none", Value: 20007, HostIP: "10.0.0.1"})
		put(tx, "other", "running", api.PortMapping{Label: "none", Value: 20008, HostIP: "10.0.0.1"})
	})
	port := func(label, address, value, scheme string) string {
		return `{"Address":"` + address + `","Label":"` + label + `","Port":` + value + `,"Scheme":"` + scheme + `"}`
	}
	ofDefault := `{"JobID":"web","Namespace":"default","Ports":[` + port("admin", "10.0.0.1", "20002", "https") + `,` + port("none", "10.0.0.1", "20004", "http") + `,` +
		port("number", "::1", "20003", "https") + `,` + port("plain", "10.0.0.1", "20001", "http") + `,` + port("task", "10.0.0.1", "20005", "https") + `]}`
	ofOther := `{"JobID":"web","Namespace":"other","Ports":[` + port("none", "10.0.0.1", "20008", "http") + `]}`
	f.runRequests(t, []requestCase{
		{"of the default namespace", "GET", "/v1/jobs/ports", "", 200, "[" + ofDefault + "]"},
		{"of all namespaces", "GET", "/v1/jobs/ports?namespace=*", "", 200, "[" + ofDefault + "," + ofOther + "]"},
		{"of another namespace", "GET", "/v1/jobs/ports?namespace=x", "", 200, "[]"},
	})
}
