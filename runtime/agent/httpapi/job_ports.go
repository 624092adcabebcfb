package httpapi

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// jobPorts are the ports of the running allocations of a job.
type jobPorts struct {
	JobID, Namespace string
	Ports            []jobPort
}

// jobPort is a port of the node that an allocation has.
type jobPort struct {
	Label   string
	Address string // IP address; of the node, or of a host network
	Port    int
	// Scheme is https if an http check of the job uses https on the port, and http otherwise, which is a guess for a port
	// without such a check.
	Scheme string
}

// ports replies with the ports of all jobs that have some, an addition to Nomad's API.
func (jo *jobReadHandler) ports(r *request) (any, error) {
	return r.blockingQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		type key struct{ namespace, id string }
		byJob := map[key][]jobPort{}
		for _, a := range s.WithoutEndedEvents().Allocations(ws, "") {
			if a.ClientStatus == api.AllocClientStatusRunning && (r.namespace == store.AnyNamespace || r.namespace == a.Namespace) {
				if found := allocPorts(a); len(found) > 0 {
					k := key{a.Namespace, a.JobID}
					byJob[k] = append(byJob[k], found...)
				}
			}
		}
		list := make([]jobPorts, 0, len(byJob))
		for k, ports := range byJob {
			slices.SortFunc(ports, func(a, b jobPort) int {
				return cmp.Or(strings.Compare(a.Label, b.Label), cmp.Compare(a.Port, b.Port), strings.Compare(a.Address, b.Address))
			})
			list = append(list, jobPorts{k.id, k.namespace, ports})
		}
		slices.SortFunc(list, func(a, b jobPorts) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.JobID, b.JobID))
		})
		return list, s.LatestTableIndex(ws, store.Allocations), nil
	})
}

func allocPorts(a *api.Allocation) []jobPort {
	if a.AllocatedResources == nil || len(a.AllocatedResources.Shared.Ports) == 0 {
		return nil
	}
	services := servicesOfGroup(a.Job.LookupTaskGroup(a.TaskGroup))
	ports := make([]jobPort, 0, len(a.AllocatedResources.Shared.Ports))
	for _, p := range a.AllocatedResources.Shared.Ports {
		ports = append(ports, jobPort{p.Label, p.HostIP, p.Value, portScheme(p, services)})
	}
	return ports
}

// servicesOfGroup returns the services of a group and of its tasks. The group can be nil.
func servicesOfGroup(g *api.TaskGroup) []*api.Service {
	if g == nil {
		return nil
	}
	services := slices.Clone(g.Services)
	for _, task := range g.Tasks {
		services = append(services, task.Services...)
	}
	return services
}

func portScheme(p api.PortMapping, services []*api.Service) string {
	for _, service := range services {
		for _, check := range service.Checks {
			label := cmp.Or(check.PortLabel, service.PortLabel)
			if check.Type == "http" && strings.EqualFold(check.Protocol, "https") && (label == p.Label || label == strconv.Itoa(p.Value)) {
				return "https"
			}
		}
	}
	return "http"
}
