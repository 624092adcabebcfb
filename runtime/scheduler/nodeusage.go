package scheduler

import (
	"fmt"
	"math"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// NodeUsage tracks the free resources of a node. Allocations hold resources until
// their runners have ended.
//
// An allocation starts when earlier allocations of the same name have ended (see
// DesiredAllocs), so it can be placed on resources that they still hold. NodeUsage is not
// safe for concurrent use.
type NodeUsage struct {
	totalResources, usedResources resourceAmounts
	coreMHz                       float64 // CPU of one core
	reservationsByAllocName       map[allocNameKey]*allocNameReservations
	portHolders                   holders[HostPort]
	deviceHolders                 holders[deviceInstance]
	volumeWriters                 holders[volumeUse]
	nodeFacts                     *model.NodeFacts // names the volumes of allocations
	nodeIP                        string
	reservedPorts                 map[HostPort]bool // those of the default network are reserved in all
}

// holders has the slots that hold each host port, each instance of a device, or each volume.
type holders[K comparable] map[K][]*allocNameReservations

type allocNameKey struct{ namespace, job, name string }

func allocNameKeyOf(a *api.Allocation) allocNameKey {
	return allocNameKey{a.Namespace, a.JobID, a.Name}
}

// allocNameReservations has the reservations of all allocations with one name.
type allocNameReservations struct {
	key          allocNameKey
	reservations []allocReservation
}

type allocReservation struct {
	id       string
	demand   resourceAmounts
	ports    []HostPort
	devices  []deviceInstance
	volumes  []volumeUse // host volumes that the allocation can write to
	terminal bool        // the allocation is terminal, and its runner has not ended
	started  bool

	// The reservation of an allocation that has not started waits for the end of the allocation that it replaces, and
	// of all allocations of its name that were stopped before it was placed. It does not wait for allocations that were stopped
	// later: the node may have received it before.
	placedIndex  uint64 // index of the placement; uncommittedIndex while the allocation is being placed
	stoppedIndex uint64 // index of the stop; 0 if the allocation was not stopped
	previousID   string // id of the replaced allocation
}

// uncommittedIndex is used for the index of the current change, which is not known yet.
const uncommittedIndex = math.MaxUint64

func (h *allocReservation) waitsFor(other *allocReservation) bool {
	return !h.started && !h.terminal && other.terminal &&
		(h.previousID == other.id || other.stoppedIndex != 0 && other.stoppedIndex <= h.placedIndex)
}

// NewNodeUsage returns the usage of a node without allocations.
func NewNodeUsage(node Node) *NodeUsage {
	r := &NodeUsage{
		totalResources:          nodeCapacity(node),
		coreMHz:                 coreMHz(node),
		reservationsByAllocName: map[allocNameKey]*allocNameReservations{},
		portHolders:             holders[HostPort]{},
		deviceHolders:           holders[deviceInstance]{},
		volumeWriters:           holders[volumeUse]{},
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

// NodeUsageOf returns the usage of a node by the allocations of a state.
func NodeUsageOf(state store.Reader, node Node) *NodeUsage {
	r := NewNodeUsage(node)
	for _, a := range state.Allocations(nil, "") {
		if !state.AllocationEnded(a.ID) {
			r.Put(a)
		}
	}
	return r
}

// Clone returns an independent copy.
func (r *NodeUsage) Clone() *NodeUsage {
	c := *r
	c.reservationsByAllocName = make(map[allocNameKey]*allocNameReservations, len(r.reservationsByAllocName))
	for key, s := range r.reservationsByAllocName {
		c.reservationsByAllocName[key] = &allocNameReservations{s.key, slices.Clone(s.reservations)}
	}
	c.portHolders = r.portHolders.clone(c.reservationsByAllocName)
	c.deviceHolders = r.deviceHolders.clone(c.reservationsByAllocName)
	c.volumeWriters = r.volumeWriters.clone(c.reservationsByAllocName)
	return &c
}

func (m holders[K]) clone(slots map[allocNameKey]*allocNameReservations) holders[K] {
	c := make(holders[K], len(m))
	for item, holding := range m {
		for _, s := range holding {
			c[item] = append(c[item], slots[s.key])
		}
	}
	return c
}

func (m holders[K]) add(s *allocNameReservations, items []K) {
	for _, item := range items {
		if !slices.Contains(m[item], s) {
			m[item] = append(m[item], s)
		}
	}
}

// release removes a slot from the holders of those items that no reservation of the slot has.
func (m holders[K]) release(s *allocNameReservations, items []K, itemsOf func(*allocReservation) []K) {
	for _, item := range items {
		if slices.ContainsFunc(s.reservations, func(h allocReservation) bool { return slices.Contains(itemsOf(&h), item) }) {
			continue
		}
		if others := slices.DeleteFunc(m[item], func(o *allocNameReservations) bool { return o == s }); len(others) > 0 {
			m[item] = others
		} else {
			delete(m, item)
		}
	}
}

// find returns the slot that prevents a placement in the slot key with this item. That is another slot that holds it, or
// the same slot if one of its allocations that has the item is not terminal. own is true if only terminal allocations of
// the same slot hold the item.
func (m holders[K]) find(key allocNameKey, item K, itemsOf func(*allocReservation) []K) (by *allocNameReservations, own bool) {
	for _, s := range m[item] {
		if s.key != key {
			return s, false
		}
		for _, h := range s.reservations {
			if !h.terminal && slices.Contains(itemsOf(&h), item) {
				return s, false
			}
		}
		own = true
	}
	return nil, own
}

func portsOf(h *allocReservation) []HostPort         { return h.ports }
func devicesOf(h *allocReservation) []deviceInstance { return h.devices }
func volumesOf(h *allocReservation) []volumeUse      { return h.volumes }

// Put adds or replaces an allocation that has not ended.
func (r *NodeUsage) Put(a *api.Allocation) {
	h := allocReservation{
		id:          a.ID,
		terminal:    model.AllocTerminal(a),
		started:     hasStarted(a),
		ports:       r.allocatedPorts(a),
		devices:     allocatedDevices(a),
		placedIndex: a.CreateIndex,
		previousID:  a.PreviousAllocation,
	}
	if a.ServerTerminalStatus() {
		h.stoppedIndex = a.AllocModifyIndex
	}
	if h.placedIndex == 0 {
		h.placedIndex = uncommittedIndex
	}
	r.putReservation(a, h)
}

// PutStoppingAlloc records that an allocation is being stopped.
func (r *NodeUsage) PutStoppingAlloc(a *api.Allocation) {
	r.putReservation(a, allocReservation{id: a.ID, terminal: true, started: hasStarted(a), ports: r.allocatedPorts(a), devices: allocatedDevices(a), placedIndex: a.CreateIndex, stoppedIndex: uncommittedIndex})
}

func (r *NodeUsage) putReservation(a *api.Allocation, h allocReservation) {
	if g := model.FindGroup(a.Job, a.TaskGroup); g != nil {
		h.demand = groupDemand(g, r.coreMHz)
		h.volumes = writtenVolumes(g, a.Name, r.nodeFacts)
	}
	r.editReservations(allocNameKeyOf(a), func(s *allocNameReservations) {
		r.removeReservation(s, a.ID)
		s.reservations = append(s.reservations, h)
		r.portHolders.add(s, h.ports)
		r.deviceHolders.add(s, h.devices)
		r.volumeWriters.add(s, h.volumes)
	})
}

// Remove records that an allocation has ended. An unknown allocation is ignored.
func (r *NodeUsage) Remove(a *api.Allocation) {
	r.editReservations(allocNameKeyOf(a), func(s *allocNameReservations) { r.removeReservation(s, a.ID) })
}

func (r *NodeUsage) editReservations(key allocNameKey, edit func(*allocNameReservations)) {
	s := r.reservationsByAllocName[key]
	if s == nil {
		s = &allocNameReservations{key: key}
		r.reservationsByAllocName[key] = s
	}
	r.usedResources.add(s.maxUsage(), -1)
	edit(s)
	r.usedResources.add(s.maxUsage(), 1)
	if len(s.reservations) == 0 {
		delete(r.reservationsByAllocName, key)
	}
}

func (r *NodeUsage) removeReservation(s *allocNameReservations, id string) {
	i := slices.IndexFunc(s.reservations, func(h allocReservation) bool { return h.id == id })
	if i < 0 {
		return
	}
	removed := s.reservations[i]
	s.reservations = slices.Delete(s.reservations, i, i+1)
	r.portHolders.release(s, removed.ports, portsOf)
	r.deviceHolders.release(s, removed.devices, devicesOf)
	r.volumeWriters.release(s, removed.volumes, volumesOf)
}

// maxUsage returns the largest amounts that the allocations of a slot hold at one time: allocations that wait reuse the
// resources of those whose end they wait for.
func (s *allocNameReservations) maxUsage() resourceAmounts {
	var awaitedAmounts, waitingAmounts, runningAmounts resourceAmounts
	for i := range s.reservations {
		h := &s.reservations[i]
		switch {
		case slices.ContainsFunc(s.reservations, func(o allocReservation) bool { return o.waitsFor(h) }):
			awaitedAmounts.add(h.demand, 1)
		case slices.ContainsFunc(s.reservations, func(o allocReservation) bool { return h.waitsFor(&o) }):
			waitingAmounts.add(h.demand, 1)
		default:
			runningAmounts.add(h.demand, 1)
		}
	}
	for i := range runningAmounts {
		runningAmounts[i] += max(awaitedAmounts[i], waitingAmounts[i])
	}
	return runningAmounts
}

// checkFits checks whether another allocation fits, and returns an exhaustedError if
// not. It reserves nothing: the caller calls Put when the ports are known.
func (r *NodeUsage) checkFits(key allocNameKey, need resourceAmounts) error {
	after := allocNameReservations{}
	var amountsBefore resourceAmounts
	if s := r.reservationsByAllocName[key]; s != nil {
		amountsBefore = s.maxUsage()
		after.reservations = slices.Clone(s.reservations)
	}
	after.reservations = append(after.reservations, allocReservation{demand: need, placedIndex: uncommittedIndex})
	grow := after.maxUsage()
	for i, d := range resourceDimensions {
		if left := r.totalResources[i] - r.usedResources[i]; grow[i]-amountsBefore[i] > left {
			if d.attribute == "" {
				return &exhaustedError{d.name, fmt.Errorf("%s: this node runs %.0f allocations at one time: %s", d.name, r.totalResources[i], d.remedy)}
			}
			return &exhaustedError{d.name, fmt.Errorf("%s exhausted: an allocation needs %.0f %s and %.0f %s are left on this node: %s",
				d.name, need[i], d.unit, max(left, 0), d.unit, d.remedy)}
		}
	}
	return nil
}

// isPortTaken reports whether a port is reserved or held by any slot.
func (r *NodeUsage) isPortTaken(port HostPort) bool {
	return r.isPortReserved(port) || len(r.portHolders[port]) > 0
}

func (r *NodeUsage) isPortReserved(port HostPort) bool {
	return r.reservedPorts[port] || r.reservedPorts[HostPort{Port: port.Port}]
}

func hasStarted(a *api.Allocation) bool {
	return a.ClientStatus != api.AllocClientStatusPending || len(a.TaskStates) > 0
}

// newHostPort returns a port on an address. The address of the node is that of the default network.
func newHostPort(address string, port int, nodeIP string) HostPort {
	if address == nodeIP {
		address = ""
	}
	return HostPort{address, port}
}

// allocatedPorts returns the host ports that an allocation holds exclusively.
func (r *NodeUsage) allocatedPorts(a *api.Allocation) []HostPort {
	if a.AllocatedResources == nil {
		return nil
	}
	addresses := make(map[string]string, len(a.AllocatedResources.Shared.Ports)) // by label
	for _, m := range a.AllocatedResources.Shared.Ports {
		addresses[m.Label] = m.HostIP
	}
	var ports []HostPort
	add := func(port api.Port) {
		held := HostPort{Port: port.Value}
		if !model.IsOnDefaultHostNetwork(port) {
			held = newHostPort(addresses[port.Label], port.Value, r.nodeIP)
		}
		ports = append(ports, held)
	}
	note := func(networks []*api.NetworkResource) {
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
	note(a.AllocatedResources.Shared.Networks)
	for _, t := range a.AllocatedResources.Tasks {
		note(t.Networks)
	}
	return ports
}

// hasReservation reports whether an allocation holds resources.
func (r *NodeUsage) hasReservation(a *api.Allocation) bool {
	s := r.reservationsByAllocName[allocNameKeyOf(a)]
	return s != nil && slices.ContainsFunc(s.reservations, func(h allocReservation) bool { return h.id == a.ID })
}
