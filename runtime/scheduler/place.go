package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Node is what placement knows about the machine.
type Node struct {
	ID, Name, Datacenter, Class, Pool string
	Attributes, Meta                  map[string]string
	// IP is the address that port mappings name.
	IP string
}

// Host is how placement asks for what cannot be derived from the job and the
// node. All of its functions must be set.
type Host struct {
	// NewID returns a fresh UUID.
	NewID func() string
	// PortFree tells whether a task could listen on this port.
	PortFree func(port int) bool
	// Pick returns a number in [0, n): where the search for a dynamic port begins.
	Pick func(n int) int
	// Now is the time of creation.
	Now func() time.Time
}

// A GroupError says why no allocation, or not every one, of a group can run here.
type GroupError struct {
	Group string
	Err   error
}

func (e *GroupError) Error() string { return fmt.Sprintf("group %q: %v", e.Group, e.Err) }

func (e *GroupError) Unwrap() error { return e.Err }

// Place returns one allocation for each instance of each group of a valid
// canonical job, in the order of the groups and of their indexes, or an error
// that joins one GroupError for each group that does not fit. The allocations
// are pending, desired to run, and share job.
//
// Ports are chosen once: no two allocations of the job have the same one.
func Place(job *api.Job, node Node, host Host) ([]*api.Allocation, error) {
	if err := eligible(job, node); err != nil {
		return nil, err
	}
	p := &placement{
		job:    job,
		node:   node,
		host:   host,
		evalID: host.NewID(),
		ports:  reservedPorts(job),
		left:   capacityOf(node),
	}
	var allocs []*api.Allocation
	var errs []error
	for _, g := range job.TaskGroups {
		placed, err := p.group(g)
		if err != nil {
			errs = append(errs, &GroupError{*g.Name, err})
		}
		allocs = append(allocs, placed...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return allocs, nil
}

// placement is one call of Place.
type placement struct {
	job    *api.Job
	node   Node
	host   Host
	evalID string
	ports  *ports
	left   capacity
}

func (p *placement) group(g *api.TaskGroup) ([]*api.Allocation, error) {
	if err := feasible(p.job, g, p.node); err != nil {
		return nil, err
	}
	var allocs []*api.Allocation
	for i := range *g.Count {
		alloc, err := p.instance(g, i)
		if err != nil {
			return nil, err
		}
		allocs = append(allocs, alloc)
	}
	return allocs, nil
}

func (p *placement) instance(g *api.TaskGroup, i int) (*api.Allocation, error) {
	if err := p.left.take(needOf(g)); err != nil {
		return nil, err
	}
	resources, err := p.resources(g)
	if err != nil {
		return nil, err
	}
	now := p.host.Now().UnixNano()
	alloc := &api.Allocation{
		ID:                 p.host.NewID(),
		EvalID:             p.evalID,
		Name:               fmt.Sprintf("%s.%s[%d]", *p.job.ID, *g.Name, i),
		Namespace:          *p.job.Namespace,
		NodeID:             p.node.ID,
		NodeName:           p.node.Name,
		JobID:              *p.job.ID,
		Job:                p.job,
		TaskGroup:          *g.Name,
		AllocatedResources: resources,
		DesiredStatus:      api.AllocDesiredStatusRun,
		ClientStatus:       api.AllocClientStatusPending,
		Metrics: &api.AllocationMetric{
			NodesEvaluated: 1,
			NodesInPool:    1,
			NodePool:       *p.job.NodePool,
			NodesAvailable: map[string]int{p.node.Datacenter: 1},
		},
		CreateTime: now,
		ModifyTime: now,
	}
	alloc.Resources, alloc.TaskResources = legacyResources(resources)
	return alloc, nil
}
