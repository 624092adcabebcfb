package scheduler

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// Node is what placement knows about the machine.
type Node struct {
	model.NodeFacts // without the region
	// IP is the address that port mappings name.
	IP string

	// Drivers are those that are there and healthy. Nil means that it does not
	// matter.
	Drivers map[string]bool
	// Ineligible says that nothing new may be placed.
	Ineligible bool
	// Draining says that the node is being emptied.
	Draining bool
	// Reserved is what is kept from allocations: CPU in MHz, memory and disk in MB.
	Reserved [3]float64
	// ReservedPorts are kept from allocations, too.
	ReservedPorts []int
	// MinDynamicPort and MaxDynamicPort are the ends of the range of dynamic ports,
	// zero for the defaults.
	MinDynamicPort, MaxDynamicPort int
}

// Env is how placement asks for what cannot be derived from the job and the
// node. All of its functions must be set.
type Env struct {
	// NewID returns a fresh UUID.
	NewID func() string
	// PortFree tells whether a task could listen on this port.
	PortFree func(port int) bool
	// Pick returns a number in [0, n): where the search for a dynamic port begins.
	Pick func(n int) int
	// Now is the wall clock.
	Now func() time.Time
	// Uptime is a clock that only goes forward and that nobody can set. Steps of Now
	// against it are detected. Nil means that Now is never set.
	Uptime func() time.Duration
}

// A GroupError says why no allocation, or not every one, of a group can run here.
type GroupError struct {
	Group string
	Err   error
}

func (e *GroupError) Error() string { return fmt.Sprintf("group %q: %v", e.Group, e.Err) }

func (e *GroupError) Unwrap() error { return e.Err }

// filteredError says that the node cannot run a group, whatever else runs there.
type filteredError struct {
	constraint string // as the metrics name it
	error
}

// exhaustedError says that the node has too little left.
type exhaustedError struct {
	dimension string // as the metrics name it
	error
}

// Place returns one allocation for each instance of each group of a valid
// canonical job, in the order of the groups and of their indexes, or an error
// that joins one GroupError for each group that does not fit. The allocations
// are pending, desired to run, and share job.
//
// Ports are chosen once: no two allocations of the job have the same one.
func Place(job *api.Job, node Node, host Env) ([]*api.Allocation, error) {
	if err := eligible(job, node); err != nil {
		return nil, err
	}
	p := newPlacement(job, node, host, NewNodeUsage(node))
	p.evalID = host.NewID()
	p.now = host.Now()
	total := 0
	for _, g := range job.TaskGroups {
		total += *g.Count
	}
	var allocs []*api.Allocation
	var errs []error
	for _, g := range job.TaskGroups {
		placed, err := p.group(g, total)
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

// placement places allocations of one version of a job.
type placement struct {
	job    *api.Job
	node   Node
	host   Env
	now    time.Time
	evalID string
	room   *NodeUsage
	static map[int]bool

	// The allocation that is being placed.
	seat   slotKey
	chosen map[int]bool
}

func newPlacement(job *api.Job, node Node, host Env, room *NodeUsage) *placement {
	return &placement{job: job, node: node, host: host, room: room, static: staticPorts(job)}
}

func (p *placement) group(g *api.TaskGroup, total int) ([]*api.Allocation, error) {
	if err := feasible(p.job, g, p.node, total, *g.Count); err != nil {
		return nil, err
	}
	var allocs []*api.Allocation
	for i := range *g.Count {
		alloc, err := p.instance(g, allocName(p.job, g, i))
		if err != nil {
			return nil, err
		}
		allocs = append(allocs, alloc)
	}
	return allocs, nil
}

func allocName(job *api.Job, g *api.TaskGroup, i int) string {
	return *job.ID + "." + *g.Name + "[" + strconv.Itoa(i) + "]"
}

// instance makes the allocation and takes the room for it.
func (p *placement) instance(g *api.TaskGroup, name string) (*api.Allocation, error) {
	p.seat = slotKey{*p.job.Namespace, *p.job.ID, name}
	if err := p.room.take(p.seat, needOf(g)); err != nil {
		return nil, err
	}
	resources, err := p.resources(g)
	if err != nil {
		return nil, err
	}
	now := p.now.UnixNano()
	alloc := &api.Allocation{
		ID:                 p.host.NewID(),
		EvalID:             p.evalID,
		Name:               name,
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
	p.room.Put(alloc)
	return alloc, nil
}
