package scheduler

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// NodeUsage tracks which node resources its allocations hold. An allocation becomes terminal first, and holds resources until
// it has ended.
//
// An allocation starts after the earlier allocations with its name have ended (see DesiredAllocs), so it can reuse the
// resources they still hold. NodeUsage is not safe for concurrent use.
type NodeUsage struct {
	totalResources, usedResources resourceAmounts
	coreMHz                       float64 // CPU per core
	reservationsByAllocName       map[allocNameKey]*allocNameReservations
	portHolders                   reservationsByItem[HostPort]
	deviceHolders                 reservationsByItem[deviceInstance]
	volumeWriters                 reservationsByItem[writableVolume]
	nodeFacts                     *model.NodeFacts // attributes for interpolating the volume sources of allocations
	nodeIP                        string
	reservedPorts                 map[HostPort]bool // a port without address is reserved on all addresses
	preemptedPorts                map[HostPort]bool // ports of allocations that the current plan preempts
}

// reservationsByItem maps each host port, device instance or writable volume to the names of the allocations that hold it.
type reservationsByItem[K comparable] map[K][]*allocNameReservations

type allocNameKey struct{ namespace, jobID, allocName string }

func allocNameKeyOf(a *api.Allocation) allocNameKey {
	return allocNameKey{a.Namespace, a.JobID, a.Name}
}

// allocNameReservations has all reservations for allocations with one name.
type allocNameReservations struct {
	key          allocNameKey
	reservations []allocReservation
}

type allocReservation struct {
	allocID         string
	demand          resourceAmounts
	ports           []HostPort
	devices         []deviceInstance
	writableVolumes []writableVolume // host volumes that the allocation can write to
	isTerminal      bool             // the allocation is terminal, and its runner has not ended
	hasStarted      bool

	// An unstarted allocation waits until the allocation it replaces has ended, and all allocations with its name that were
	// stopped before it was placed. It does not wait for allocations stopped after its placement: the node may have started it
	// before they were stopped.
	placedAtIndex   uint64 // the allocation's CreateIndex; uncommittedIndex if it is not stored yet
	stoppedAtIndex  uint64 // index at which a plan stopped the allocation; 0 if none did
	previousAllocID string // the replaced allocation's ID; empty if there is none
}

// uncommittedIndex stands for the current transaction's index. It is greater than all stored indexes.
const uncommittedIndex = math.MaxUint64

// waitsForEndOf reports whether the allocation starts only after other, which has the same name, has ended.
func (a *allocReservation) waitsForEndOf(other *allocReservation) bool {
	return !a.hasStarted && !a.isTerminal && other.isTerminal &&
		(a.previousAllocID == other.allocID || other.stoppedAtIndex != 0 && other.stoppedAtIndex <= a.placedAtIndex)
}

// NewEmptyNodeUsage returns a node's usage without allocations.
func NewEmptyNodeUsage(node PlacementNode) *NodeUsage {
	r := &NodeUsage{
		totalResources:          allocatableNodeCapacity(node),
		coreMHz:                 coreMHz(node),
		reservationsByAllocName: map[allocNameKey]*allocNameReservations{},
		portHolders:             reservationsByItem[HostPort]{},
		deviceHolders:           reservationsByItem[deviceInstance]{},
		volumeWriters:           reservationsByItem[writableVolume]{},
		nodeFacts:               &node.NodeFacts,
		reservedPorts:           make(map[HostPort]bool, len(node.ReservedPorts)),
		nodeIP:                  node.IP,
	}
	for _, port := range node.ReservedPorts {
		r.reservedPorts[HostPort{Port: port}] = true
	}
	for _, n := range node.HostNetworks {
		for _, port := range n.ReservedPorts {
			r.reservedPorts[newHostPort(n.Address, port, node.IP)] = true
		}
	}
	return r
}

// NodeUsageOf returns a node's usage by stored allocations that have not ended.
func NodeUsageOf(state store.Reader, node PlacementNode) *NodeUsage {
	r := NewEmptyNodeUsage(node)
	for _, a := range state.WithoutEndedEvents().Allocations(nil, "") {
		if !state.AllocationEnded(a.ID) {
			r.PutAlloc(a)
		}
	}
	return r
}

// Clone returns an independent copy.
func (u *NodeUsage) Clone() *NodeUsage {
	c := *u
	c.reservationsByAllocName = make(map[allocNameKey]*allocNameReservations, len(u.reservationsByAllocName))
	for key, s := range u.reservationsByAllocName {
		c.reservationsByAllocName[key] = &allocNameReservations{s.key, slices.Clone(s.reservations)}
	}
	c.preemptedPorts = maps.Clone(u.preemptedPorts)
	c.portHolders = u.portHolders.clone(c.reservationsByAllocName)
	c.deviceHolders = u.deviceHolders.clone(c.reservationsByAllocName)
	c.volumeWriters = u.volumeWriters.clone(c.reservationsByAllocName)
	return &c
}

func (ho reservationsByItem[K]) clone(reservationsByAllocName map[allocNameKey]*allocNameReservations) reservationsByItem[K] {
	c := make(reservationsByItem[K], len(ho))
	for item, holding := range ho {
		for _, s := range holding {
			c[item] = append(c[item], reservationsByAllocName[s.key])
		}
	}
	return c
}

func (ho reservationsByItem[K]) addHolder(holder *allocNameReservations, items []K) {
	for _, item := range items {
		if !slices.Contains(ho[item], holder) {
			ho[item] = append(ho[item], holder)
		}
	}
}

// removeHolderOfUnusedItems removes an allocation name from the holders of each item not in its reservations.
func (ho reservationsByItem[K]) removeHolderOfUnusedItems(s *allocNameReservations, items []K, itemsOf func(*allocReservation) []K) {
	for _, item := range items {
		if slices.ContainsFunc(s.reservations, func(h allocReservation) bool { return slices.Contains(itemsOf(&h), item) }) {
			continue
		}
		if others := slices.DeleteFunc(ho[item], func(o *allocNameReservations) bool { return o == s }); len(others) > 0 {
			ho[item] = others
		} else {
			delete(ho, item)
		}
	}
}

// findConflict returns the reservations that prevent an allocation with the name key from using an item: another name's
// reservations if that name holds the item, or its own name's if an allocation that is not terminal holds it. heldByOwnName is
// true if only its own name's terminal allocations hold the item.
func (ho reservationsByItem[K]) findConflict(key allocNameKey, item K, itemsOf func(*allocReservation) []K) (conflict *allocNameReservations, heldByOwnName bool) {
	for _, s := range ho[item] {
		if s.key != key {
			return s, false
		}
		for _, h := range s.reservations {
			if !h.isTerminal && slices.Contains(itemsOf(&h), item) {
				return s, false
			}
		}
		heldByOwnName = true
	}
	return nil, heldByOwnName
}

func portsOf(h *allocReservation) []HostPort         { return h.ports }
func devicesOf(h *allocReservation) []deviceInstance { return h.devices }
func volumesOf(h *allocReservation) []writableVolume { return h.writableVolumes }

// PutAlloc adds or replaces an allocation's reservation. The allocation has not ended.
func (u *NodeUsage) PutAlloc(a *api.Allocation) {
	h := allocReservation{
		allocID:         a.ID,
		isTerminal:      model.AllocTerminal(a),
		hasStarted:      hasStarted(a),
		ports:           u.allocatedPorts(a),
		devices:         allocatedDevices(a),
		placedAtIndex:   a.CreateIndex,
		previousAllocID: a.PreviousAllocation,
	}
	if a.ServerTerminalStatus() {
		h.stoppedAtIndex = a.AllocModifyIndex
	}
	if h.placedAtIndex == 0 {
		h.placedAtIndex = uncommittedIndex
	}
	u.putReservation(a, h)
}

// PutStoppingAlloc is like PutAlloc for an allocation that the current transaction stops. An allocation placed afterwards with
// the same name can reuse its resources.
func (u *NodeUsage) PutStoppingAlloc(a *api.Allocation) {
	u.putReservation(a, allocReservation{allocID: a.ID, isTerminal: true, hasStarted: hasStarted(a), ports: u.allocatedPorts(a), devices: allocatedDevices(a), placedAtIndex: a.CreateIndex, stoppedAtIndex: uncommittedIndex})
}

func (u *NodeUsage) putReservation(a *api.Allocation, h allocReservation) {
	if g := model.FindGroup(a.Job, a.TaskGroup); g != nil {
		h.demand = maxConcurrentGroupDemand(g, u.coreMHz)
		h.writableVolumes = writableVolumesOf(g, a.Name, u.nodeFacts)
	}
	u.editReservationsOfName(allocNameKeyOf(a), func(s *allocNameReservations) {
		u.removeReservation(s, a.ID)
		s.reservations = append(s.reservations, h)
		u.portHolders.addHolder(s, h.ports)
		u.deviceHolders.addHolder(s, h.devices)
		u.volumeWriters.addHolder(s, h.writableVolumes)
	})
}

// RemoveAlloc removes an ended allocation's reservation. It does nothing if there is none.
func (u *NodeUsage) RemoveAlloc(a *api.Allocation) {
	u.editReservationsOfName(allocNameKeyOf(a), func(s *allocNameReservations) { u.removeReservation(s, a.ID) })
}

// preemptPortsOf lets the current plan's placements have an allocation's ports, on which its processes still listen.
func (u *NodeUsage) preemptPortsOf(a *api.Allocation) {
	for _, port := range u.allocatedPorts(a) {
		if u.preemptedPorts == nil {
			u.preemptedPorts = make(map[HostPort]bool)
		}
		u.preemptedPorts[port] = true
	}
}

// hasUnstartedAllocOfName reports whether an allocation with a's name has a reservation, has not started and is not terminal.
func (u *NodeUsage) hasUnstartedAllocOfName(a *api.Allocation) bool {
	s := u.reservationsByAllocName[allocNameKeyOf(a)]
	return s != nil && slices.ContainsFunc(s.reservations, func(r allocReservation) bool { return !r.isTerminal && !r.hasStarted })
}

// editReservationsOfName calls edit with one allocation name's reservations, and updates usedResources.
func (u *NodeUsage) editReservationsOfName(key allocNameKey, edit func(*allocNameReservations)) {
	s := u.reservationsByAllocName[key]
	if s == nil {
		s = &allocNameReservations{key: key}
		u.reservationsByAllocName[key] = s
	}
	u.usedResources.addMultiple(s.maxConcurrentUsage(), -1)
	edit(s)
	u.usedResources.addMultiple(s.maxConcurrentUsage(), 1)
	if len(s.reservations) == 0 {
		delete(u.reservationsByAllocName, key)
	}
}

func (u *NodeUsage) removeReservation(s *allocNameReservations, allocID string) {
	i := slices.IndexFunc(s.reservations, func(h allocReservation) bool { return h.allocID == allocID })
	if i < 0 {
		return
	}
	removed := s.reservations[i]
	s.reservations = slices.Delete(s.reservations, i, i+1)
	u.portHolders.removeHolderOfUnusedItems(s, removed.ports, portsOf)
	u.deviceHolders.removeHolderOfUnusedItems(s, removed.devices, devicesOf)
	u.volumeWriters.removeHolderOfUnusedItems(s, removed.writableVolumes, volumesOf)
}

// maxConcurrentUsage returns the largest amounts that one name's allocations use at one time: an allocation waiting for another
// one to end reuses its resources.
func (a *allocNameReservations) maxConcurrentUsage() resourceAmounts {
	var awaitedAmounts, waitingAmounts, runningAmounts resourceAmounts
	for i := range a.reservations {
		h := &a.reservations[i]
		switch {
		case slices.ContainsFunc(a.reservations, func(o allocReservation) bool { return o.waitsForEndOf(h) }):
			awaitedAmounts.addMultiple(h.demand, 1)
		case slices.ContainsFunc(a.reservations, func(o allocReservation) bool { return h.waitsForEndOf(&o) }):
			waitingAmounts.addMultiple(h.demand, 1)
		default:
			runningAmounts.addMultiple(h.demand, 1)
		}
	}
	for i := range runningAmounts {
		runningAmounts[i] += max(awaitedAmounts[i], waitingAmounts[i])
	}
	return runningAmounts
}

// checkFits returns a nodeExhaustedError if the node has too few free resources for another allocation with the name
// key and this demand. It does not check ports, devices and volumes. It reserves nothing: PutAlloc does.
func (u *NodeUsage) checkFits(key allocNameKey, demand resourceAmounts) error {
	after := allocNameReservations{}
	var amountsBefore resourceAmounts
	if s := u.reservationsByAllocName[key]; s != nil {
		amountsBefore = s.maxConcurrentUsage()
		after.reservations = slices.Clone(s.reservations)
	}
	after.reservations = append(after.reservations, allocReservation{demand: demand, placedAtIndex: uncommittedIndex})
	grow := after.maxConcurrentUsage()
	for i, d := range resourceDimensions {
		if left := u.totalResources[i] - u.usedResources[i]; grow[i]-amountsBefore[i] > left {
			if d.attribute == "" {
				return &nodeExhaustedError{d.name, fmt.Errorf("%s: this node runs %.0f allocations at one time: %s", d.name, u.totalResources[i], d.remedy)}
			}
			return &nodeExhaustedError{d.name, fmt.Errorf("%s exhausted: an allocation needs %.0f %s and %.0f %s are left on this node: %s",
				d.name, demand[i], d.unit, max(left, 0), d.unit, d.remedy)}
		}
	}
	return nil
}

// isPortReservedOrHeld reports whether the node reserves a port or an allocation holds it.
func (u *NodeUsage) isPortReservedOrHeld(port HostPort) bool {
	return u.isPortReservedByConfig(port) || len(u.portHolders[port]) > 0
}

// isPortReservedByConfig reports whether the node's configuration reserves a port.
func (u *NodeUsage) isPortReservedByConfig(port HostPort) bool {
	return u.reservedPorts[port] || u.reservedPorts[HostPort{Port: port.Port}]
}

// hasStarted reports whether the node has started a task in an allocation, according to its reports.
func hasStarted(a *api.Allocation) bool {
	return a.ClientStatus != api.AllocClientStatusPending || len(a.TaskStates) > 0
}

// newHostPort returns a port on a node address. For the main address nodeIP, HostPort.Address is empty.
func newHostPort(address string, port int, nodeIP string) HostPort {
	if address == nodeIP {
		address = ""
	}
	return HostPort{address, port}
}

// allocatedPorts returns an allocation's host ports. It leaves out ports with ignore_collision.
func (u *NodeUsage) allocatedPorts(a *api.Allocation) []HostPort {
	if a.AllocatedResources == nil {
		return nil
	}
	addresses := make(map[string]string, len(a.AllocatedResources.Shared.Ports)) // port label -> address
	for _, m := range a.AllocatedResources.Shared.Ports {
		addresses[m.Label] = m.HostIP
	}
	var ports []HostPort
	add := func(port api.Port) {
		held := HostPort{Port: port.Value}
		if !model.IsOnDefaultHostNetwork(port) {
			held = newHostPort(addresses[port.Label], port.Value, u.nodeIP)
		}
		ports = append(ports, held)
	}
	addAll := func(networks []*api.NetworkResource) {
		for _, n := range networks {
			for _, port := range n.ReservedPorts {
				if !port.IgnoreCollision {
					add(port)
				}
			}
			for _, port := range n.DynamicPorts {
				add(port)
			}
		}
	}
	addAll(a.AllocatedResources.Shared.Networks)
	for _, t := range a.AllocatedResources.Tasks {
		addAll(t.Networks)
	}
	return ports
}

// hasReservation reports whether NodeUsage has a reservation for an allocation.
func (u *NodeUsage) hasReservation(a *api.Allocation) bool {
	s := u.reservationsByAllocName[allocNameKeyOf(a)]
	return s != nil && slices.ContainsFunc(s.reservations, func(h allocReservation) bool { return h.allocID == a.ID })
}
