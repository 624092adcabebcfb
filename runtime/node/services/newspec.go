package services

import (
	"cmp"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// NewSpec returns the allocation's services, with its addresses. Services with provider consul are registered like those with
// provider nomad: an allocation with a consul service is placed here only if this node's catalog replaces Consul.
func NewSpec(a *api.Allocation, datacenter string, network *api.AllocNetworkStatus) *AllocServicesSpec {
	spec := &AllocServicesSpec{
		AllocID:       a.ID,
		AllocName:     a.Name,
		Namespace:     a.Namespace,
		JobID:         a.JobID,
		Group:         a.TaskGroup,
		NodeID:        a.NodeID,
		Datacenter:    datacenter,
		IsCanary:      a.DeploymentStatus != nil && a.DeploymentStatus.Canary,
		NetworkByTask: make(map[string]TaskNetwork),
	}
	if network != nil {
		spec.NamespaceIPv4, spec.NamespaceIPv6 = network.Address, network.AddressIPv6
	}
	env := taskenv.NewAlloc(a)
	spec.Ports = env.Ports
	if granted := a.AllocatedResources; granted != nil {
		if len(granted.Shared.Networks) == 1 {
			spec.GroupHostIP = granted.Shared.Networks[0].IP
		}
		for name, task := range granted.Tasks {
			if len(task.Networks) == 1 {
				spec.NetworkByTask[name] = TaskNetwork{IP: task.Networks[0].IP, Ports: env.PortsByTask[name]}
			}
		}
	}
	group := a.GetTaskGroup()
	for _, s := range group.Services {
		spec.Services = append(spec.Services, newService(s, ""))
	}
	for _, t := range group.Tasks {
		for _, s := range t.Services {
			spec.Services = append(spec.Services, newService(s, t.Name))
		}
	}
	return spec
}

func newService(s *api.Service, task string) Service {
	service := Service{
		Task:        task,
		Name:        s.Name,
		PortLabel:   s.PortLabel,
		Address:     s.Address,
		AddressMode: s.AddressMode,
		Tags:        s.Tags,
		CanaryTags:  s.CanaryTags,
	}
	for _, c := range s.Checks {
		check := Check{
			Name:                c.Name,
			Type:                c.Type,
			PortLabel:           c.PortLabel,
			AddressMode:         c.AddressMode,
			OnUpdate:            c.OnUpdate,
			Interval:            c.Interval,
			Timeout:             c.Timeout,
			Protocol:            c.Protocol,
			Method:              c.Method,
			Path:                c.Path,
			Header:              c.Header,
			Body:                c.Body,
			TLSSkipVerify:       c.TLSSkipVerify,
			Command:             c.Command,
			Args:                c.Args,
			ScriptTask:          cmp.Or(task, model.TaskOfHealthCheck(s, c)),
			GRPCService:         c.GRPCService,
			GRPCUseTLS:          c.GRPCUseTLS,
			SuccessesToPass:     c.SuccessBeforePassing,
			FailuresToFail:      c.FailuresBeforeCritical,
			AffectsHealthOfTask: model.TaskOfHealthCheck(s, c),
		}
		if check.OnUpdate == "" {
			check.OnUpdate = s.OnUpdate
		}
		if r := c.CheckRestart; r != nil {
			check.Restart = CheckRestart{Limit: r.Limit, Grace: pointer.Value(r.Grace)}
		}
		service.Checks = append(service.Checks, check)
	}
	return service
}
