package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// PlacementNode has the node properties that decide which allocations can be placed on it.
type PlacementNode struct {
	admission.NodeFeatures
	// IP is the node's main address, on which host ports are mapped, and InterfaceName the network interface with this address.
	// They are empty if unknown.
	IP, InterfaceName string

	// HealthyByDriver maps driver name to whether the driver is detected and healthy. Nil means all drivers are healthy.
	HealthyByDriver map[string]bool
	// Devices are the node's device groups. The scheduler shares them with the stored node and does not modify them.
	Devices []*api.NodeDeviceResource
	// IsIneligible: no allocation can be placed, because a user or a drain has made the node ineligible.
	IsIneligible bool
	// IsDraining: the node is being drained.
	IsDraining bool
	// ReservedCPUMHzMemoryMBDiskMB are reserved by the configuration for other programs: CPU in MHz, memory and disk in MB. The
	// CPU is 0 because the attribute cpu.usablecompute already excludes the reserved CPU.
	ReservedCPUMHzMemoryMBDiskMB [3]float64
	// MaxAllocs is the largest number of allocations running on the node at one time; 0 means no limit.
	MaxAllocs int
	// ReservedPorts are host ports that the configuration reserves on all addresses.
	ReservedPorts []int
	// MinDynamicPort and MaxDynamicPort are the first and the last dynamic port; zero means the constant with the same name.
	MinDynamicPort, MaxDynamicPort int
}

// HostPort is a node port on one host network's address.
type HostPort struct {
	Address string // empty for the default network
	Port    int
}

// Env provides ids, ports, random numbers and clocks. DescribePortListeners, MonotonicUptime and FirstPluginReports may be nil; all
// other functions must be set. The scheduler calls them concurrently, and calls NewID, IsPortFree
// and DescribePortListeners only outside of transactions. The other functions must not block.
type Env struct {
	// NewID returns a new UUID.
	NewID func() string
	// IsPortFree reports whether a task could listen on the port.
	IsPortFree func(HostPort) bool
	// DescribePortListeners returns a text for messages about the process listening on each port. It may leave out ports.
	DescribePortListeners func(ports []int) map[int]string
	// RandIntN returns a random number in [0, n). The dynamic port search starts at this offset in the dynamic port range.
	RandIntN func(n int) int
	// Now returns the wall clock time.
	Now func() time.Time
	// MonotonicUptime is a monotonic clock for detecting steps in Now. Nil means Now never steps.
	MonotonicUptime func() time.Duration
	// FirstPluginReports is closed when no plugin is expected to report soon, and the stored node has
	// the drivers and devices of all plugins that have reported. If a request's placement fails earlier because of a node
	// property, the request waits for the channel. It must be closed within seconds. Nil means requests do not wait.
	FirstPluginReports <-chan struct{}
	// FindUnknownInstance returns the ID of an allocation that runs under a stored job's name although the state has lost it,
	// or "": nothing is placed under this name. It must not block. Nil means there are none.
	FindUnknownInstance func(job *api.Job, allocName string) (allocID string)
}

// A GroupPlacementError is why at least one allocation in a group cannot be placed.
type GroupPlacementError struct {
	Group string
	Err   error
}

func (e *GroupPlacementError) Error() string { return fmt.Sprintf("group %q: %v", e.Group, e.Err) }

func (e *GroupPlacementError) Unwrap() error { return e.Err }

// nodeFilteredError: the node cannot run a group, whatever resources are free.
type nodeFilteredError struct {
	constraintName string // constraint name in the placement metrics
	error
}

// nodeExhaustedError: the node has too few free resources for a group.
type nodeExhaustedError struct {
	resourceName string // resource name in the placement metrics
	error
}

// PlaceOnEmptyNode returns an allocation for each group instance in a valid canonical job, in group and index order. The error
// joins a GroupPlacementError for each group that does not fit. The allocations are pending, have the desired status run, and
// share job.
//
// No two allocations of the job have the same port. The node must have the job's host volumes, but the state, namespace and
// access modes of dynamic ones are not checked.
func PlaceOnEmptyNode(job *api.Job, node PlacementNode, env Env) ([]*api.Allocation, error) {
	if err := node.CheckDatacenterAndPool(job); err != nil {
		return nil, err
	}
	p := newAllocPlacer(job, node, env, NewEmptyNodeUsage(node))
	p.evalID = env.NewID()
	p.now = env.Now()
	p.volumes.isUnknown = true
	total := 0
	for _, g := range job.TaskGroups {
		total += *g.Count
	}
	var allocs []*api.Allocation
	var errs []error
	for _, g := range job.TaskGroups {
		placed, err := p.placeGroup(g, total)
		if err != nil {
			errs = append(errs, &GroupPlacementError{*g.Name, err})
		}
		allocs = append(allocs, placed...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return allocs, nil
}

// allocPlacer creates one job version's allocations and reserves their resources in nodeUsage.
type allocPlacer struct {
	job              *api.Job
	node             PlacementNode
	env              Env
	now              time.Time
	evalID           string
	nodeUsage        *NodeUsage
	staticPortsOfJob map[int]bool
	volumes          *HostVolumeState
	// memoryOversubscription: tasks can use memory up to their memory_max.
	memoryOversubscription bool

	// The next fields describe the allocation being placed.
	currentAllocNameKey allocNameKey
	chosenPorts         map[HostPort]bool
}

func newAllocPlacer(job *api.Job, node PlacementNode, env Env, usage *NodeUsage) *allocPlacer {
	return &allocPlacer{job: job, node: node, env: env, nodeUsage: usage, staticPortsOfJob: staticPorts(job), volumes: &HostVolumeState{}}
}

// placeGroup places all allocations in a group. jobAllocCount is the job's number of allocations.
func (p *allocPlacer) placeGroup(g *api.TaskGroup, jobAllocCount int) ([]*api.Allocation, error) {
	if err := checkFeasible(p.job, g, p.node, jobAllocCount, *g.Count); err != nil {
		return nil, err
	}
	var allocs []*api.Allocation
	for i := range *g.Count {
		alloc, err := p.createAndReserveAlloc(g, model.AllocName(p.job, g, i))
		if err != nil {
			return nil, err
		}
		allocs = append(allocs, alloc)
	}
	return allocs, nil
}

// createAndReserveAlloc creates a group's allocation with the given name and reserves its resources in nodeUsage. It does not
// store the allocation.
func (p *allocPlacer) createAndReserveAlloc(g *api.TaskGroup, allocName string) (*api.Allocation, error) {
	p.currentAllocNameKey = allocNameKey{*p.job.Namespace, *p.job.ID, allocName}
	claims, err := p.checkAndClaimHostVolumes(g, allocName)
	if err := errors.Join(checkSuitableDevicesExist(g, p.node), err); err != nil {
		return nil, err
	}
	if err := p.nodeUsage.checkFits(p.currentAllocNameKey, maxConcurrentGroupDemand(g, p.nodeUsage.coreMHz)); err != nil {
		return nil, err
	}
	resources, err := p.assignResources(g)
	if err != nil {
		return nil, err
	}
	now := p.now.UnixNano()
	alloc := &api.Allocation{
		ID:                 p.env.NewID(),
		EvalID:             p.evalID,
		Name:               allocName,
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
	for _, c := range claims {
		c.AllocID = alloc.ID
	}
	p.volumes.newClaims = append(p.volumes.newClaims, claims...)
	p.nodeUsage.PutAlloc(alloc)
	return alloc, nil
}
