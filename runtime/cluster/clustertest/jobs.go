package clustertest

import (
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Placement says which allocation Place makes.
type Placement struct {
	NodeID string
	Job    *api.Job
	Group  string
	// Previous is the id of the allocation that the new one replaces, empty if there is none.
	Previous string
	// Preempted are the ids of allocations that must end before the new one starts. Place does not stop them.
	Preempted []string
	Canary    bool
	// Force places the allocation on a node on which no scheduler would place it.
	Force bool
}

// PlaceAlloc places an allocation of a group on a node, and returns its id.
func (c *Cluster) PlaceAlloc(nodeID string, job *api.Job, group string) string {
	c.t.Helper()
	return c.Place(Placement{NodeID: nodeID, Job: job, Group: group})
}

// Place places an allocation and returns its id. The job is canonicalized and registered if the cluster has no job with
// the id; otherwise the allocation has the registered job. Place fails the test if the node is not ready or cannot run the
// group.
func (c *Cluster) Place(p Placement) string {
	c.t.Helper()
	canonical, err := c.canonicalJob(p.Job)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, known := c.nodes[p.NodeID]
	if !known {
		c.t.Fatalf("no node %s", p.NodeID)
	}
	key := [2]string{canonical.Namespace, canonical.ID}
	j, known := c.jobs[key]
	if !known {
		j = canonical
		j.CreateIndex = c.writeLocked("jobs")
		j.ModifyIndex, j.JobModifyIndex = j.CreateIndex, j.CreateIndex
		c.jobs[key] = j
	}
	group := j.group(p.Group)
	if group == nil {
		c.t.Fatalf("job %s has no group %q", j.ID, p.Group)
	}
	if reason := n.rejects(group); reason != "" && !p.Force {
		c.t.Fatalf("no scheduler places job %s on node %s: %s", j.ID, p.NodeID, reason)
	}
	name := 0
	for _, a := range c.allocs {
		if a.Namespace == j.Namespace && a.JobID == j.ID && a.TaskGroup == group.Name && a.ID != p.Previous && !serverTerminal(a) {
			name++
		}
	}
	now := c.clock.Now().UnixNano()
	a := &allocation{
		ID: newID(), Name: fmt.Sprintf("%s.%s[%d]", j.ID, group.Name, name), Namespace: j.Namespace, EvalID: newID(), NodeID: n.ID, NodeName: n.Name,
		JobID: j.ID, TaskGroup: group.Name, Job: j, DesiredStatus: "run", ClientStatus: "pending", SigningKeyID: c.signer.keyID,
		PreviousAllocation: p.Previous, PreemptedAllocations: p.Preempted, CreateTime: now, ModifyTime: now,
		Metrics: &metrics{
			NodesEvaluated: 1, NodesInPool: 1, NodePool: n.NodePool, NodesAvailable: map[string]int{n.Datacenter: 1}, AllocationTime: 1000,
			ScoreMetaData: []scoreMetaData{{NodeID: n.ID, NormScore: 0.5, Scores: map[string]float64{"binpack": 0.5}}},
		},
	}
	c.assignResourcesLocked(a, n, group)
	if j.Type == "service" && group.Update != nil && group.Update.MaxParallel > 0 {
		a.DeploymentID = newID()
		if p.Canary {
			a.DeploymentStatus = &protocolDeployment{Canary: true}
		}
	}
	a.SignedIdentities = map[string]string{}
	for _, t := range group.Tasks {
		if a.SignedIdentities[t.Name], err = c.signTaskLocked(a, t.Name, t.Identity); err != nil {
			c.t.Fatal(err)
		}
	}
	if previous := c.allocs[p.Previous]; previous != nil {
		previous.NextAllocation = a.ID
		c.touchAllocLocked(previous)
	}
	c.allocs[a.ID] = a
	c.changeAllocLocked(a)
	a.CreateIndex = a.ModifyIndex
	return a.ID
}

// UpdateJob registers a new version of a job that has allocations, and updates them in place, with a new deployment.
func (c *Cluster) UpdateJob(updated *api.Job) {
	c.t.Helper()
	j, err := c.canonicalJob(updated)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{j.Namespace, j.ID}
	old, known := c.jobs[key]
	if !known {
		c.t.Fatalf("no job %s", j.ID)
	}
	j.CreateIndex, j.Version, j.Status = old.CreateIndex, old.Version+1, "running"
	j.ModifyIndex = c.writeLocked("jobs")
	j.JobModifyIndex = j.ModifyIndex
	c.jobs[key] = j
	deployment := newID()
	for _, a := range c.allocs {
		if a.Namespace != j.Namespace || a.JobID != j.ID || serverTerminal(a) || clientTerminal(a.ClientStatus) {
			continue
		}
		if j.group(a.TaskGroup) == nil {
			a.DesiredStatus, a.DesiredDescription = "stop", "alloc not needed due to job update"
		} else {
			a.Job, a.EvalID = j, newID()
			if a.DeploymentID != "" {
				a.DeploymentID, a.DeploymentStatus = deployment, nil
			}
		}
		c.changeAllocLocked(a)
	}
}

// PurgeJob removes a job and its allocations, as "nomad job stop -purge" followed by a collection does. The allocations
// vanish from the polls of their nodes while they run.
func (c *Cluster) PurgeJob(namespace, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.jobs, [2]string{namespace, id})
	c.removeAllocsLocked(func(a *allocation) bool { return a.Namespace == namespace && a.JobID == id })
}

// rejects returns why a scheduler would not place a group on the node, empty if it would.
func (n *nodeEntry) rejects(group *taskGroup) string {
	switch have := n.NodeResources; {
	case n.Status != statusReady:
		return "its status is " + n.Status
	case n.SchedulingEligibility != "eligible":
		return "it is not eligible"
	case have == nil || have.Processors.Topology == nil && len(have.Cpu.ReservableCpuCores) == 0:
		return "it has no processors"
	case have.Memory.MemoryMB == 0:
		return "it has no memory"
	}
	for _, t := range group.Tasks {
		if d := n.Drivers[t.Driver]; d == nil || !d.Detected || !d.Healthy {
			return fmt.Sprintf("driver %q is not healthy", t.Driver)
		}
	}
	return ""
}

// canonicalJob returns the canonical form of a job as servers store it.
func (c *Cluster) canonicalJob(source *api.Job) (*job, error) {
	var copied api.Job
	if err := recode(source, &copied); err != nil {
		return nil, fmt.Errorf("copy the job: %w", err)
	}
	if copied.Region == nil {
		copied.Region = &c.config.Region
	}
	copied.Canonicalize()
	j := &job{}
	if err := recode(&copied, j); err != nil {
		return nil, fmt.Errorf("convert job %s: %w", *copied.ID, err)
	}
	j.Status, j.SubmitTime = "pending", c.clock.Now().UnixNano()
	if j.NodePool == "" {
		j.NodePool = "default"
	}
	// Servers keep only these fields at the level of the job.
	j.Update = updateStrategy{Stagger: j.Update.Stagger, MaxParallel: j.Update.MaxParallel}
	if c.config.AccessControl {
		j.NomadTokenID = c.managementAccessor()
	}
	for _, group := range j.TaskGroups {
		completeGroup(j, group)
	}
	return j, nil
}

// completeGroup adds what servers add to a group.
func completeGroup(j *job, group *taskGroup) {
	services := slices.Clone(group.Services)
	checks, identities := false, false
	for _, t := range group.Tasks {
		services = append(services, t.Services...)
		identities = identities || len(t.Identities) > 0
		if t.Identity == nil {
			t.Identity = &workloadIdentity{}
		}
		t.Identity.Name = "default"
		if len(t.Identity.Audience) == 0 {
			t.Identity.Audience = []string{"nomadproject.io"}
		}
		t.Resources.IOPS = 0
	}
	nomadServices := false
	for _, s := range services {
		s.Namespace = j.Namespace
		nomadServices = nomadServices || s.Provider == "nomad"
		checks = checks || s.Provider == "nomad" && len(s.Checks) > 0
	}
	for _, n := range group.Networks {
		for i := range n.DynamicPorts {
			if n.DynamicPorts[i].HostNetwork == "" {
				n.DynamicPorts[i].HostNetwork = "default"
			}
		}
	}
	for _, implied := range []struct {
		applies bool
		constraint
	}{
		{nomadServices, constraint{"${attr.nomad.service_discovery}", "true", "="}},
		{checks, constraint{"${attr.nomad.version}", ">= 1.4.0", "semver"}},
		{identities, constraint{"${attr.nomad.version}", ">= 1.7.0-a", "semver"}},
	} {
		if implied.applies {
			group.Constraints = append(group.Constraints, &implied.constraint)
		}
	}
}

// assignResourcesLocked assigns the resources of the group, with ports, in the present and the old form.
func (c *Cluster) assignResourcesLocked(a *allocation, n *nodeEntry, group *taskGroup) {
	disk := 0
	if group.EphemeralDisk != nil {
		disk = group.EphemeralDisk.SizeMB
	}
	assigned := &allocatedResources{
		Tasks: map[string]*taskResources{}, TaskLifecycles: map[string]*lifecycle{}, Shared: sharedResources{DiskMB: int64(disk)},
	}
	ip := ""
	if n.NodeResources != nil {
		for _, network := range n.NodeResources.Networks {
			if network.Mode == "host" && ip == "" {
				ip = network.IP
			}
		}
	}
	for _, wanted := range group.Networks {
		given := &network{Mode: wanted.Mode, IP: ip}
		for _, p := range wanted.DynamicPorts {
			p.Value = c.nextPortLocked(n)
			given.DynamicPorts = append(given.DynamicPorts, p)
		}
		given.ReservedPorts = wanted.ReservedPorts
		for _, p := range slices.Concat(given.ReservedPorts, given.DynamicPorts) {
			assigned.Shared.Ports = append(assigned.Shared.Ports, &portMapping{Label: p.Label, Value: p.Value, To: p.To, HostIP: ip, IgnoreCollision: p.IgnoreCollision})
		}
		assigned.Shared.Networks = append(assigned.Shared.Networks, given)
	}
	total := &resources{DiskMB: disk, Networks: assigned.Shared.Networks}
	a.TaskResources = map[string]*resources{}
	for _, t := range group.Tasks {
		given := &taskResources{}
		given.Cpu.CpuShares, given.Memory.MemoryMB, given.Memory.MemoryMaxMB = int64(t.Resources.CPU), int64(t.Resources.MemoryMB), int64(t.Resources.MemoryMaxMB)
		assigned.Tasks[t.Name], assigned.TaskLifecycles[t.Name] = given, t.Lifecycle
		a.TaskResources[t.Name] = &resources{CPU: t.Resources.CPU, MemoryMB: t.Resources.MemoryMB, MemoryMaxMB: t.Resources.MemoryMaxMB}
		total.CPU += t.Resources.CPU
		total.MemoryMB += t.Resources.MemoryMB
		total.MemoryMaxMB += max(t.Resources.MemoryMB, t.Resources.MemoryMaxMB)
	}
	a.AllocatedResources, a.Resources = assigned, total
	a.SharedResources = &resources{DiskMB: disk, Networks: assigned.Shared.Networks}
}

// nextPortLocked returns a dynamic port of a node that no allocation has had before.
func (c *Cluster) nextPortLocked(n *nodeEntry) int {
	low, high := 20000, 32000
	if n.NodeResources != nil && n.NodeResources.MinDynamicPort > 0 {
		low, high = n.NodeResources.MinDynamicPort, n.NodeResources.MaxDynamicPort
	}
	c.lastPort++
	return low + c.lastPort%(high-low+1)
}
