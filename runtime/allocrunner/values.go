package allocrunner

import (
	"fmt"
	"maps"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner/restart"
)

// The functions of this file turn the nouns of the API into the small values
// that the parts of the runtime work with. They are the only place where a
// runner looks into a job.

const (
	defaultKillTimeout = 5 * time.Second
	mebibyte           = 1 << 20
)

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func findTask(group *api.TaskGroup, name string) (*api.Task, error) {
	for _, t := range group.Tasks {
		if t.Name == name {
			return t, nil
		}
	}
	return nil, fmt.Errorf("group %q has no task %q", value(group.Name), name)
}

func (r *Runner) forHooks() hook.Alloc { return hookAlloc(r.currentAlloc()) }

func hookAlloc(a *api.Allocation) hook.Alloc {
	return hook.Alloc{
		ID:        a.ID,
		Name:      a.Name,
		Namespace: a.Namespace,
		JobID:     a.JobID,
		JobName:   value(a.Job.Name),
		JobType:   value(a.Job.Type),
		TaskGroup: a.TaskGroup,
		NodeID:    a.NodeID,
		NodeName:  a.NodeName,
	}
}

func taskAlloc(a *api.Allocation, group *api.TaskGroup) taskrunner.Alloc {
	return taskrunner.Alloc{
		Alloc:       hookAlloc(a),
		ParentJobID: value(a.Job.ParentID),
		DNS:         dnsConfig(group),
	}
}

func groupDNS(group *api.TaskGroup) *api.DNSConfig {
	if len(group.Networks) == 0 {
		return nil
	}
	return group.Networks[0].DNS
}

func dnsConfig(group *api.TaskGroup) *driver.DNSConfig {
	dns := groupDNS(group)
	if dns == nil {
		return nil
	}
	return &driver.DNSConfig{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
}

func networkStatus(group *api.TaskGroup) *api.AllocNetworkStatus {
	return &api.AllocNetworkStatus{DNS: groupDNS(group)}
}

// taskOf returns one task of the allocation as its runner needs it.
func taskOf(a *api.Allocation, group *api.TaskGroup, name string, limits Limits) (taskrunner.Task, error) {
	t, err := findTask(group, name)
	if err != nil {
		return taskrunner.Task{}, err
	}
	resources, err := resourcesOf(a, name, limits)
	if err != nil {
		return taskrunner.Task{}, err
	}
	task := taskrunner.Task{
		Name:          t.Name,
		Driver:        t.Driver,
		User:          t.User,
		Leader:        t.Leader,
		Config:        t.Config,
		Meta:          mergedMeta(a.Job, group, t),
		Resources:     resources,
		KillTimeout:   defaultKillTimeout,
		KillSignal:    t.KillSignal,
		ShutdownDelay: t.ShutdownDelay,
	}
	if t.Lifecycle != nil {
		task.Hook, task.Sidecar = t.Lifecycle.Hook, t.Lifecycle.Sidecar
	}
	if t.KillTimeout != nil {
		task.KillTimeout = *t.KillTimeout
	}
	task.KillTimeout = min(task.KillTimeout, limits.MaxKillTimeout)

	policy := t.RestartPolicy
	if policy == nil {
		policy = group.RestartPolicy
	}
	if policy != nil {
		task.Restart = restart.Policy{
			Attempts: value(policy.Attempts),
			Interval: value(policy.Interval),
			Delay:    value(policy.Delay),
			Mode:     restart.Mode(value(policy.Mode)),
		}
	}
	task.Restart.OnSuccess = restart.OnSuccess(value(a.Job.Type), task.Stage())
	return task, nil
}

func resourcesOf(a *api.Allocation, task string, limits Limits) (driver.Resources, error) {
	var granted *api.AllocatedTaskResources
	if a.AllocatedResources != nil {
		granted = a.AllocatedResources.Tasks[task]
	}
	if granted == nil {
		return driver.Resources{}, fmt.Errorf("task %q: no task resources found on allocation", task)
	}
	r := driver.Resources{
		CPUShares:   granted.Cpu.CpuShares,
		MemoryMB:    granted.Memory.MemoryMB,
		MemoryMaxMB: granted.Memory.MemoryMaxMB,
		Linux: driver.LinuxResources{
			CPUShares:        granted.Cpu.CpuShares,
			MemoryLimitBytes: max(granted.Memory.MemoryMB, granted.Memory.MemoryMaxMB) * mebibyte,
		},
	}
	if limits.NodeCPU > 0 {
		r.Linux.PercentTicks = float64(r.CPUShares) / float64(limits.NodeCPU)
	}
	for _, n := range granted.Networks {
		r.Networks = append(r.Networks, driver.NetworkResource{
			Device:        n.Device,
			CIDR:          n.CIDR,
			IP:            n.IP,
			MBits:         int32(n.Megabits()),
			ReservedPorts: networkPorts(n.ReservedPorts),
			DynamicPorts:  networkPorts(n.DynamicPorts),
		})
	}
	for _, p := range a.AllocatedResources.Shared.Ports {
		r.Ports = append(r.Ports, driver.PortMapping{
			Label: p.Label, Value: int32(p.Value), To: int32(p.To), HostIP: p.HostIP,
		})
	}
	return r, nil
}

func networkPorts(ports []api.Port) []driver.NetworkPort {
	var out []driver.NetworkPort
	for _, p := range ports {
		out = append(out, driver.NetworkPort{Label: p.Label, Value: int32(p.Value)})
	}
	return out
}

func mergedMeta(job *api.Job, group *api.TaskGroup, t *api.Task) map[string]string {
	meta := make(map[string]string)
	for _, m := range []map[string]string{job.Meta, group.Meta, t.Meta} {
		maps.Copy(meta, m)
	}
	return meta
}

// envAlloc returns what the environments of all tasks say about the allocation.
func envAlloc(a *api.Allocation) taskenv.Alloc {
	env := taskenv.Alloc{
		ID:          a.ID,
		Name:        a.Name,
		Namespace:   a.Namespace,
		JobID:       a.JobID,
		JobName:     value(a.Job.Name),
		ParentJobID: value(a.Job.ParentID),
		Group:       a.TaskGroup,
		JobMeta:     a.Job.Meta,
	}
	if a.Job.Dispatched && a.Job.ParameterizedJob != nil {
		env.OptionalMeta = a.Job.ParameterizedJob.MetaOptional
	}
	if group := a.GetTaskGroup(); group != nil {
		env.GroupMeta = group.Meta
	}
	if a.AllocatedResources == nil {
		return env
	}
	for _, p := range a.AllocatedResources.Shared.Ports {
		env.Ports = append(env.Ports, taskenv.Port{Label: p.Label, Value: p.Value, To: p.To, HostIP: p.HostIP})
	}
	for name, granted := range a.AllocatedResources.Tasks {
		for _, n := range granted.Networks {
			for _, ports := range [][]api.Port{n.ReservedPorts, n.DynamicPorts} {
				for _, p := range ports {
					if env.TaskPorts == nil {
						env.TaskPorts = make(map[string][]taskenv.Port)
					}
					env.TaskPorts[name] = append(env.TaskPorts[name],
						taskenv.Port{Label: p.Label, Value: p.Value, To: p.To, HostIP: n.IP})
				}
			}
		}
	}
	return env
}

// envTask returns what the environment of one task says about it. The task and
// its resources must exist.
func envTask(a *api.Allocation, group *api.TaskGroup, name string) taskenv.Task {
	env := taskenv.Task{Name: name}
	if t, err := findTask(group, name); err == nil {
		env.Meta, env.Env = t.Meta, t.Env
	}
	granted := a.AllocatedResources.Tasks[name]
	env.CPU = granted.Cpu.CpuShares
	env.MemoryMB = granted.Memory.MemoryMB
	env.MemoryMaxMB = granted.Memory.MemoryMaxMB
	return env
}
