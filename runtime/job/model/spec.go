package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// SameSpec reports whether two canonical jobs are equal except for fields set by the agent: status, version, stability, indexes,
// times, tag. Stop is compared.
func SameSpec(a, b *api.Job) bool {
	return equalAsJSON(specWithoutAgentFields(a), specWithoutAgentFields(b))
}

func specWithoutAgentFields(job *api.Job) *api.Job {
	c := *job
	c.Status, c.StatusDescription = nil, nil
	c.Stable, c.Version, c.VersionTag = nil, nil, nil
	c.SubmitTime, c.CreateIndex, c.ModifyIndex, c.JobModifyIndex = nil, nil, nil, nil
	c.NomadTokenID = nil
	stop := pointer.Value(job.Stop)
	c.Stop = &stop
	c.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range c.TaskGroups {
		group := *g
		group.Scaling = scalingPolicyWithoutAgentFields(g.Scaling)
		group.Tasks = slices.Clone(g.Tasks)
		for k, t := range group.Tasks {
			task := *t
			task.ScalingPolicies = slices.Clone(t.ScalingPolicies)
			for n, p := range task.ScalingPolicies {
				task.ScalingPolicies[n] = scalingPolicyWithoutAgentFields(p)
			}
			group.Tasks[k] = &task
		}
		c.TaskGroups[i] = &group
	}
	return &c
}

func scalingPolicyWithoutAgentFields(p *api.ScalingPolicy) *api.ScalingPolicy {
	if p == nil {
		return nil
	}
	c := *p
	c.ID, c.Namespace, c.CreateIndex, c.ModifyIndex = "", "", 0, 0
	return &c
}

// SameScalingPolicy reports whether two scaling policies have the same content.
func SameScalingPolicy(a, b *api.ScalingPolicy) bool {
	return equalAsJSON(scalingPolicyWithoutAgentFields(a), scalingPolicyWithoutAgentFields(b))
}

// equalAsJSON compares two values' JSON forms, in which a number from HCL equals the same number from the state file.
func equalAsJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// ValidateJobUpdate returns an error if the canonical job from cannot be updated to the canonical job to.
// The texts are Nomad's.
func ValidateJobUpdate(from, to *api.Job) error {
	periodic := func(j *api.Job) bool { return j.Periodic != nil }
	parameterized := func(j *api.Job) bool { return j.ParameterizedJob != nil }
	switch {
	case pointer.Value(from.Type) != pointer.Value(to.Type):
		return fmt.Errorf("cannot update job from type %q to %q", pointer.Value(from.Type), pointer.Value(to.Type))
	case periodic(from) && !periodic(to):
		return fmt.Errorf("cannot update periodic job to being non-periodic")
	case !periodic(from) && periodic(to):
		return fmt.Errorf("cannot update non-periodic job to being periodic")
	case parameterized(from) && !parameterized(to):
		return fmt.Errorf("cannot update parameterized job to being non-parameterized")
	case !parameterized(from) && parameterized(to):
		return fmt.Errorf("cannot update non-parameterized job to being parameterized")
	}
	return nil
}

// UpdateIsDestructive reports whether the named group's allocations must be replaced when one canonical job is updated to the
// other. If not, they can be updated in place, unless the node does not satisfy the other job.
func UpdateIsDestructive(from, to *api.Job, group string) bool {
	a, b := FindGroup(from, group), FindGroup(to, group)
	if a == nil || b == nil {
		return true
	}
	return a != b && !equalAsJSON(immutableGroupSpecOf(from, a), immutableGroupSpecOf(to, b))
}

// HasServiceChecks reports whether a group or task service has a check. It returns false for nil.
func HasServiceChecks(g *api.TaskGroup) bool {
	if g == nil {
		return false
	}
	has := func(services []*api.Service) bool {
		return slices.ContainsFunc(services, func(s *api.Service) bool { return len(s.Checks) > 0 })
	}
	return has(g.Services) || slices.ContainsFunc(g.Tasks, func(t *api.Task) bool { return has(t.Services) })
}

// FindGroup returns a job's group by name, nil if there is none.
func FindGroup(job *api.Job, name string) *api.TaskGroup {
	for _, g := range job.TaskGroups {
		if pointer.Value(g.Name) == name {
			return g
		}
	}
	return nil
}

// FindTask returns the task with the name in the allocation's job, or nil if there is none.
func FindTask(alloc *api.Allocation, name string) *api.Task {
	if g := FindGroup(alloc.Job, alloc.TaskGroup); g != nil {
		for _, t := range g.Tasks {
			if t.Name == name {
				return t
			}
		}
	}
	return nil
}

// immutableGroupSpec has the group properties a running allocation cannot change.
type immutableGroupSpec struct {
	Disk                  *api.EphemeralDisk
	Networks              []immutableNetworkSpec
	Consul                *api.Consul
	ConnectNamesAndBlocks []any
	Volumes               map[string]*api.VolumeRequest
	Tasks                 map[string]immutableTaskSpec
}

type immutableNetworkSpec struct {
	Mode, Hostname string
	MBits          int
	DNS            *api.DNSConfig
	CNI            *api.CNIConfig
	StaticPorts    []api.Port
	DynamicPorts   []api.Port
}

// immutableTaskSpec has a task's parts that cannot change while it runs. It is large because it has one comparable field for each
// such part of api.Task.
type immutableTaskSpec struct {
	Driver, User             string
	Config                   map[string]any
	Env, MergedMeta          map[string]string
	Artifacts                []*api.TaskArtifact
	Templates                []*api.Template
	RenderTemplatesOnRestart bool
	Vault                    *api.Vault
	Consul                   *api.Consul
	Secrets                  []*api.Secret
	CSI                      *api.TaskCSIPluginConfig
	Mounts                   []*api.VolumeMount
	Identity                 *api.WorkloadIdentity
	Identities               []*api.WorkloadIdentity
	Lifecycle                *api.TaskLifecycle
	LogsDisabled             bool
	Networks                 []immutableNetworkSpec

	CPU, Cores, MemoryMB, MemoryMaxMB, SecretsMB int

	Devices []*api.RequestedDevice
	NUMA    *api.NUMAResource
}

func immutableGroupSpecOf(job *api.Job, g *api.TaskGroup) immutableGroupSpec {
	id := immutableGroupSpec{
		Disk:     g.EphemeralDisk,
		Networks: immutableNetworkSpecs(g.Networks),
		Consul:   g.Consul,
		Volumes:  g.Volumes,
		Tasks:    make(map[string]immutableTaskSpec, len(g.Tasks)),
	}
	for _, s := range g.Services {
		if s.Connect != nil {
			id.ConnectNamesAndBlocks = append(id.ConnectNamesAndBlocks, s.Name, s.Connect)
		}
	}
	for _, t := range g.Tasks {
		id.Tasks[t.Name] = immutableTaskSpecOf(job, g, t)
	}
	return id
}

func immutableTaskSpecOf(job *api.Job, g *api.TaskGroup, t *api.Task) immutableTaskSpec {
	// The meta of inner blocks has precedence. Only a change in the merged meta counts, not a key that moves between blocks.
	meta := map[string]string{}
	for _, m := range []map[string]string{job.Meta, g.Meta, t.Meta} {
		maps.Copy(meta, m)
	}
	id := immutableTaskSpec{
		Driver: t.Driver, User: t.User,
		Config: t.Config, Env: t.Env, MergedMeta: meta,
		Artifacts: t.Artifacts, Templates: t.Templates,
		Vault: t.Vault, Consul: t.Consul, Secrets: t.Secrets, CSI: t.CSIPluginConfig,
		Mounts:   t.VolumeMounts,
		Identity: t.Identity, Identities: t.Identities,
		// Nomad keeps the old lifecycle until the agent is restarted.
		Lifecycle:    t.Lifecycle,
		LogsDisabled: t.LogConfig != nil && pointer.Value(t.LogConfig.Disabled),
	}
	if t.RestartPolicy != nil {
		id.RenderTemplatesOnRestart = pointer.Value(t.RestartPolicy.RenderTemplates)
	}
	if r := t.Resources; r != nil {
		id.CPU, id.Cores, id.MemoryMB, id.MemoryMaxMB, id.SecretsMB = pointer.Value(r.CPU), pointer.Value(r.Cores), pointer.Value(r.MemoryMB), pointer.Value(r.MemoryMaxMB), pointer.Value(r.SecretsMB)
		id.Devices, id.NUMA = r.Devices, r.NUMA
		id.Networks = immutableNetworkSpecs(r.Networks)
	}
	return id
}

func immutableNetworkSpecs(networks []*api.NetworkResource) []immutableNetworkSpec {
	var ids []immutableNetworkSpec
	for _, n := range networks {
		id := immutableNetworkSpec{
			Mode: n.Mode, Hostname: n.Hostname, MBits: pointer.Value(n.MBits), DNS: n.DNS, CNI: n.CNI,
			StaticPorts: slices.Clone(n.ReservedPorts), DynamicPorts: slices.Clone(n.DynamicPorts),
		}
		for i := range id.DynamicPorts {
			id.DynamicPorts[i].Value = 0
		}
		ids = append(ids, id)
	}
	return ids
}
