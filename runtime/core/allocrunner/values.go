package allocrunner

import (
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/health"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// The functions in this file convert API structs to the smaller types used by the runtime packages.

const (
	defaultKillTimeout = 5 * time.Second
	mebibyte           = 1 << 20
)

func findTask(group *api.TaskGroup, name string) (*api.Task, error) {
	for _, t := range group.Tasks {
		if t.Name == name {
			return t, nil
		}
	}
	return nil, fmt.Errorf("group %q has no task %q", pointer.Value(group.Name), name)
}

func toHookAlloc(a *api.Allocation) hook.Alloc {
	return hook.Alloc{
		ID:        a.ID,
		Name:      a.Name,
		Namespace: a.Namespace,
		JobID:     a.JobID,
		JobName:   pointer.Value(a.Job.Name),
		JobType:   pointer.Value(a.Job.Type),
		TaskGroup: a.TaskGroup,
		NodeID:    a.NodeID,
		NodeName:  a.NodeName,
		Meta:      model.MergeMetaLaterWins(a.Job.Meta, a.GetTaskGroup().Meta),
	}
}

func toTaskRunnerAlloc(a *api.Allocation, group *api.TaskGroup) taskrunner.Alloc {
	return taskrunner.Alloc{
		Alloc:       toHookAlloc(a),
		ParentJobID: pointer.Value(a.Job.ParentID),
		DNS:         toDriverDNSConfig(groupDNS(group)),
	}
}

func groupDNS(group *api.TaskGroup) *api.DNSConfig {
	if len(group.Networks) == 0 {
		return nil
	}
	return group.Networks[0].DNS
}

func toDriverDNSConfig(dns *api.DNSConfig) *driver.DNSConfig {
	if dns == nil {
		return nil
	}
	return &driver.DNSConfig{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options}
}

// toTaskRunnerTask returns one of the allocation's tasks in the form used by its runner.
func toTaskRunnerTask(a *api.Allocation, group *api.TaskGroup, name string, limits Limits) (taskrunner.Task, error) {
	t, err := findTask(group, name)
	if err != nil {
		return taskrunner.Task{}, err
	}
	resources, err := toDriverResources(a, name, limits)
	if err != nil {
		return taskrunner.Task{}, err
	}
	task := taskrunner.Task{
		Name:          t.Name,
		Driver:        t.Driver,
		User:          t.User,
		Leader:        t.Leader,
		Config:        t.Config,
		Meta:          model.MergeMetaLaterWins(a.Job.Meta, group.Meta, t.Meta),
		Resources:     resources,
		KillTimeout:   defaultKillTimeout,
		KillSignal:    t.KillSignal,
		ShutdownDelay: t.ShutdownDelay,
	}
	if t.Lifecycle != nil {
		task.LifecycleHook, task.Sidecar = t.Lifecycle.Hook, t.Lifecycle.Sidecar
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
		task.RestartPolicy = restart.Policy{
			Attempts: pointer.Value(policy.Attempts),
			Interval: pointer.Value(policy.Interval),
			Delay:    pointer.Value(policy.Delay),
			Mode:     restart.Mode(pointer.Value(policy.Mode)),
		}
	}
	task.RestartPolicy.RestartsOnSuccess = restart.RestartsOnSuccess(pointer.Value(a.Job.Type), task.Stage())
	return task, nil
}

func toDriverResources(a *api.Allocation, task string, limits Limits) (driver.Resources, error) {
	var taskResources *api.AllocatedTaskResources
	if a.AllocatedResources != nil {
		taskResources = a.AllocatedResources.Tasks[task]
	}
	if taskResources == nil {
		return driver.Resources{}, fmt.Errorf("task %q: no task resources found on allocation", task)
	}
	r := driver.Resources{
		CPUShares:   taskResources.Cpu.CpuShares,
		MemoryMB:    taskResources.Memory.MemoryMB,
		MemoryMaxMB: taskResources.Memory.MemoryMaxMB,
		Linux: driver.LinuxResources{
			CPUShares:        taskResources.Cpu.CpuShares,
			MemoryLimitBytes: max(taskResources.Memory.MemoryMB, taskResources.Memory.MemoryMaxMB) * mebibyte,
		},
	}
	if limits.NodeCPUMHz > 0 {
		r.Linux.PercentTicks = float64(r.CPUShares) / float64(limits.NodeCPUMHz)
	}
	for _, n := range taskResources.Networks {
		r.Networks = append(r.Networks, driver.NetworkResource{
			Device:        n.Device,
			CIDR:          n.CIDR,
			IP:            n.IP,
			MBits:         int32(n.Megabits()),
			ReservedPorts: toDriverPorts(n.ReservedPorts),
			DynamicPorts:  toDriverPorts(n.DynamicPorts),
		})
	}
	for _, p := range a.AllocatedResources.Shared.Ports {
		r.Ports = append(r.Ports, driver.PortMapping{
			Label: p.Label, Value: int32(p.Value), To: int32(p.To), HostIP: p.HostIP,
		})
	}
	return r, nil
}

func toDriverPorts(ports []api.Port) []driver.NetworkPort {
	var out []driver.NetworkPort
	for _, p := range ports {
		out = append(out, driver.NetworkPort{Label: p.Label, Value: int32(p.Value)})
	}
	return out
}

// toEnvTask returns a task's data for its environment. The allocation must have resources for the task.
func toEnvTask(a *api.Allocation, group *api.TaskGroup, name string) taskenv.Task {
	env := taskenv.Task{Name: name}
	if t, err := findTask(group, name); err == nil {
		env.Meta, env.EnvBlock = t.Meta, t.Env
	}
	granted := a.AllocatedResources.Tasks[name]
	env.CPUMHz = granted.Cpu.CpuShares
	env.MemoryMB = granted.Memory.MemoryMB
	env.MemoryMaxMB = granted.Memory.MemoryMaxMB
	return env
}

// healthParams returns an allocation's health parameters: those in the update block if the allocation is in a
// deployment, otherwise those in the migrate block. It returns false if the agent must not determine the health: the job
// type has no health, or health_check is manual.
func healthParams(a *api.Allocation) (params health.Params, agentDeterminesHealth bool) {
	if jobType := pointer.Value(a.Job.Type); jobType != api.JobTypeService && jobType != api.JobTypeSystem {
		return health.Params{}, false
	}
	group := a.GetTaskGroup()
	if a.DeploymentID != "" {
		u := group.Update
		if u == nil || u.Empty() || pointer.Value(u.HealthCheck) == "manual" {
			return health.Params{}, false
		}
		return health.Params{
			MinHealthyTime:       pointer.Value(u.MinHealthyTime),
			HealthyDeadline:      pointer.Value(u.HealthyDeadline),
			RequirePassingChecks: pointer.Value(u.HealthCheck) == "checks",
		}, true
	}
	p := health.Params{MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute, RequirePassingChecks: true}
	if m := group.Migrate; m != nil {
		p.MinHealthyTime, p.HealthyDeadline = pointer.Value(m.MinHealthyTime), pointer.Value(m.HealthyDeadline)
		p.RequirePassingChecks = pointer.Value(m.HealthCheck) == "checks"
	}
	return p, true
}
