package taskenv

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// NewAlloc returns the allocation's data for all its tasks' environments.
func NewAlloc(a *api.Allocation) Alloc {
	env := Alloc{
		ID:          a.ID,
		Name:        a.Name,
		Namespace:   a.Namespace,
		JobID:       a.JobID,
		JobName:     pointer.Value(a.Job.Name),
		ParentJobID: pointer.Value(a.Job.ParentID),
		Group:       a.TaskGroup,
		JobMeta:     a.Job.Meta,
	}
	if a.Job.Dispatched && a.Job.ParameterizedJob != nil {
		env.OptionalMetaKeys = a.Job.ParameterizedJob.MetaOptional
	}
	if group := a.GetTaskGroup(); group != nil {
		env.GroupMeta = group.Meta
	}
	if a.AllocatedResources == nil {
		return env
	}
	for _, p := range a.AllocatedResources.Shared.Ports {
		env.Ports = append(env.Ports, Port{Label: p.Label, HostPort: p.Value, AllocPort: p.To, HostIP: p.HostIP})
	}
	for name, granted := range a.AllocatedResources.Tasks {
		if ports := newPorts(granted); ports != nil {
			if env.PortsByTask == nil {
				env.PortsByTask = make(map[string][]Port)
			}
			env.PortsByTask[name] = ports
		}
	}
	return env
}

func newPorts(granted *api.AllocatedTaskResources) (ports []Port) {
	for _, n := range granted.Networks {
		for _, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
			ports = append(ports, Port{Label: p.Label, HostPort: p.Value, AllocPort: p.To, HostIP: n.IP})
		}
	}
	return ports
}
