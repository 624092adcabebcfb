package scheduler

import (
	"fmt"
	"math"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// NodeUsage tracks the free resources of a node. Allocations hold resources until
// their runners have ended.
//
// An allocation starts when earlier allocations of the same name have ended (see
// DesiredAllocs), so it can be placed on resources that they still hold. NodeUsage is not
// safe for concurrent use.
type NodeUsage struct {
	total, used resourceAmounts
	slots       map[slotKey]*slot
	ports       map[int][]*slot
	reserved    map[int]bool
}

type slotKey struct{ namespace, job, name string }

func slotKeyOf(a *api.Allocation) slotKey { return slotKey{a.Namespace, a.JobID, a.Name} }

// slot has the reservations of all allocations with one name.
type slot struct {
	key          slotKey
	reservations []reservation
}

type reservation struct {
	id       string
	demand   resourceAmounts
	ports    []int
	terminal bool // the allocation is terminal, and its runner has not ended
	started  bool

	// The reservation of an allocation that has not started waits for the end of the allocation that it replaces, and
	// of those of its name that were stopped before it was placed. It does not wait for allocations that were stopped
	// later: the node may have received it before.
	placedIndex  uint64 // index of the placement; uncommittedIndex while the allocation is being placed
	stoppedIndex uint64 // index of the stop; 0 if the allocation was not stopped
	previousID   string // id of the replaced allocation
}

// uncommittedIndex is used for the index of the current change, which is not known yet.
const uncommittedIndex = math.MaxUint64

func (h *reservation) waitsFor(other *reservation) bool {
	return !h.started && !h.terminal && other.terminal &&
		(h.previousID == other.id || other.stoppedIndex != 0 && other.stoppedIndex <= h.placedIndex)
}

// NewNodeUsage returns the usage of a node without allocations.
func NewNodeUsage(node Node) *NodeUsage {
	r := &NodeUsage{
		total:    nodeCapacity(node),
		slots:    map[slotKey]*slot{},
		ports:    map[int][]*slot{},
		reserved: make(map[int]bool, len(node.ReservedPorts)),
	}
	for _, port := range node.ReservedPorts {
		r.reserved[port] = true
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
	c.slots = make(map[slotKey]*slot, len(r.slots))
	c.ports = make(map[int][]*slot, len(r.ports))
	for key, s := range r.slots {
		c.slots[key] = &slot{s.key, slices.Clone(s.reservations)}
	}
	for port, slots := range r.ports {
		for _, s := range slots {
			c.ports[port] = append(c.ports[port], c.slots[s.key])
		}
	}
	return &c
}

// Put adds or replaces an allocation that has not ended.
func (r *NodeUsage) Put(a *api.Allocation) {
	h := reservation{
		id:          a.ID,
		terminal:    model.AllocTerminal(a),
		started:     hasStarted(a),
		ports:       allocatedPorts(a),
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

// PutStopping records that an allocation is being stopped.
func (r *NodeUsage) PutStopping(a *api.Allocation) {
	r.putReservation(a, reservation{id: a.ID, terminal: true, started: hasStarted(a), ports: allocatedPorts(a), placedIndex: a.CreateIndex, stoppedIndex: uncommittedIndex})
}

func (r *NodeUsage) putReservation(a *api.Allocation, h reservation) {
	if g := model.Group(a.Job, a.TaskGroup); g != nil {
		h.demand = groupDemand(g)
	}
	r.editSlot(slotKeyOf(a), func(s *slot) {
		r.removeReservation(s, a.ID)
		s.reservations = append(s.reservations, h)
		for _, port := range h.ports {
			if !slices.Contains(r.ports[port], s) {
				r.ports[port] = append(r.ports[port], s)
			}
		}
	})
}

// Remove records that an allocation has ended. An unknown allocation is ignored.
func (r *NodeUsage) Remove(a *api.Allocation) {
	r.editSlot(slotKeyOf(a), func(s *slot) { r.removeReservation(s, a.ID) })
}

func (r *NodeUsage) editSlot(key slotKey, edit func(*slot)) {
	s := r.slots[key]
	if s == nil {
		s = &slot{key: key}
		r.slots[key] = s
	}
	r.used.add(s.maxUsage(), -1)
	edit(s)
	r.used.add(s.maxUsage(), 1)
	if len(s.reservations) == 0 {
		delete(r.slots, key)
	}
}

func (r *NodeUsage) removeReservation(s *slot, id string) {
	i := slices.IndexFunc(s.reservations, func(h reservation) bool { return h.id == id })
	if i < 0 {
		return
	}
	ports := s.reservations[i].ports
	s.reservations = slices.Delete(s.reservations, i, i+1)
	for _, port := range ports {
		if slices.ContainsFunc(s.reservations, func(h reservation) bool { return slices.Contains(h.ports, port) }) {
			continue
		}
		if others := slices.DeleteFunc(r.ports[port], func(o *slot) bool { return o == s }); len(others) > 0 {
			r.ports[port] = others
		} else {
			delete(r.ports, port)
		}
	}
}

// maxUsage returns the largest amounts that the allocations of a slot hold at one time: allocations that wait reuse the
// resources of those whose end they wait for.
func (s *slot) maxUsage() resourceAmounts {
	var awaited, waiting, running resourceAmounts
	for i := range s.reservations {
		h := &s.reservations[i]
		switch {
		case slices.ContainsFunc(s.reservations, func(o reservation) bool { return o.waitsFor(h) }):
			awaited.add(h.demand, 1)
		case slices.ContainsFunc(s.reservations, func(o reservation) bool { return h.waitsFor(&o) }):
			waiting.add(h.demand, 1)
		default:
			running.add(h.demand, 1)
		}
	}
	for i := range running {
		running[i] += max(awaited[i], waiting[i])
	}
	return running
}

// checkFits checks whether another allocation fits, and returns an exhaustedError if
// not. It reserves nothing: the caller calls Put when the ports are known.
func (r *NodeUsage) checkFits(key slotKey, need resourceAmounts) error {
	after := slot{}
	var before resourceAmounts
	if s := r.slots[key]; s != nil {
		before = s.maxUsage()
		after.reservations = slices.Clone(s.reservations)
	}
	after.reservations = append(after.reservations, reservation{demand: need, placedIndex: uncommittedIndex})
	grow := after.maxUsage()
	for i, d := range resourceDimensions {
		if left := r.total[i] - r.used[i]; grow[i]-before[i] > left {
			return &exhaustedError{d.name, fmt.Errorf("%s exhausted: an allocation needs %.0f %s and %.0f %s are left on this node: ask for less in the resources of its tasks, or lower the count",
				d.name, need[i], d.unit, max(left, 0), d.unit)}
		}
	}
	return nil
}

// portHolder returns the slot that prevents a placement with a static port in the slot key. That is another slot with
// this port, or the same slot if one of its allocations with this port is not terminal. own is true if only terminal
// allocations of the same slot hold the port.
func (r *NodeUsage) portHolder(key slotKey, port int) (by *slot, own bool) {
	for _, s := range r.ports[port] {
		if s.key != key {
			return s, false
		}
		for _, h := range s.reservations {
			if !h.terminal && slices.Contains(h.ports, port) {
				return s, false
			}
		}
		own = true
	}
	return nil, own
}

// isPortTaken reports whether a port is reserved or held by any slot.
func (r *NodeUsage) isPortTaken(port int) bool { return r.reserved[port] || len(r.ports[port]) > 0 }

func hasStarted(a *api.Allocation) bool {
	return a.ClientStatus != api.AllocClientStatusPending || len(a.TaskStates) > 0
}

// allocatedPorts returns the host ports that an allocation holds exclusively.
func allocatedPorts(a *api.Allocation) []int {
	if a.AllocatedResources == nil {
		return nil
	}
	var ports []int
	note := func(networks []*api.NetworkResource) {
		for _, n := range networks {
			for _, port := range n.ReservedPorts {
				if !port.IgnoreCollision {
					ports = append(ports, port.Value)
				}
			}
			for _, port := range n.DynamicPorts {
				ports = append(ports, port.Value)
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
	s := r.slots[slotKeyOf(a)]
	return s != nil && slices.ContainsFunc(s.reservations, func(h reservation) bool { return h.id == a.ID })
}
