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
// Desired), so it can be placed on resources that they still hold. NodeUsage is not
// safe for concurrent use.
type NodeUsage struct {
	total, used capacity
	seats       map[slotKey]*slot
	ports       map[int][]*slot
	reserved    map[int]bool
}

type slotKey struct{ namespace, job, name string }

func slotOf(a *api.Allocation) slotKey { return slotKey{a.Namespace, a.JobID, a.Name} }

// slot has the reservations of all allocations of one name.
type slot struct {
	key  slotKey
	held []reservation
}

type reservation struct {
	id      string
	need    capacity
	ports   []int
	leaving bool // terminal, and not ended yet
	started bool

	// An allocation that has not started waits for the allocation that it replaces,
	// and for those that were stopped before it was placed. The node may have
	// received it before another allocation of its name was stopped.
	placed   uint64 // index, or pendingIndex while the allocation is being placed
	stopped  uint64 // index, or 0 if the allocation was not stopped
	previous string // id of the replaced allocation
}

// pendingIndex stands for the index of the current change.
const pendingIndex = math.MaxUint64

func (h *reservation) waitsFor(other *reservation) bool {
	return !h.started && !h.leaving && other.leaving &&
		(h.previous == other.id || other.stopped != 0 && other.stopped <= h.placed)
}

// NewNodeUsage returns the usage of a node without allocations.
func NewNodeUsage(node Node) *NodeUsage {
	r := &NodeUsage{
		total:    capacityOf(node),
		seats:    map[slotKey]*slot{},
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
	c.seats = make(map[slotKey]*slot, len(r.seats))
	c.ports = make(map[int][]*slot, len(r.ports))
	for key, s := range r.seats {
		c.seats[key] = &slot{s.key, slices.Clone(s.held)}
	}
	for port, seats := range r.ports {
		for _, s := range seats {
			c.ports[port] = append(c.ports[port], c.seats[s.key])
		}
	}
	return &c
}

// Put adds or replaces an allocation that has not ended.
func (r *NodeUsage) Put(a *api.Allocation) {
	h := reservation{
		id:       a.ID,
		leaving:  model.Terminal(a),
		started:  started(a),
		ports:    portsOf(a),
		placed:   a.CreateIndex,
		previous: a.PreviousAllocation,
	}
	if a.ServerTerminalStatus() {
		h.stopped = a.AllocModifyIndex
	}
	if h.placed == 0 {
		h.placed = pendingIndex
	}
	r.put(a, h)
}

// Leave records that an allocation is being stopped.
func (r *NodeUsage) Leave(a *api.Allocation) {
	r.put(a, reservation{id: a.ID, leaving: true, started: started(a), ports: portsOf(a), placed: a.CreateIndex, stopped: pendingIndex})
}

func (r *NodeUsage) put(a *api.Allocation, h reservation) {
	if g := model.Group(a.Job, a.TaskGroup); g != nil {
		h.need = needOf(g)
	}
	r.change(slotOf(a), func(s *slot) {
		r.forget(s, a.ID)
		s.held = append(s.held, h)
		for _, port := range h.ports {
			if !slices.Contains(r.ports[port], s) {
				r.ports[port] = append(r.ports[port], s)
			}
		}
	})
}

// Remove records that an allocation has ended. The allocation may be unknown.
func (r *NodeUsage) Remove(a *api.Allocation) {
	r.change(slotOf(a), func(s *slot) { r.forget(s, a.ID) })
}

func (r *NodeUsage) change(key slotKey, edit func(*slot)) {
	s := r.seats[key]
	if s == nil {
		s = &slot{key: key}
		r.seats[key] = s
	}
	r.used.add(s.used(), -1)
	edit(s)
	r.used.add(s.used(), 1)
	if len(s.held) == 0 {
		delete(r.seats, key)
	}
}

func (r *NodeUsage) forget(s *slot, id string) {
	i := slices.IndexFunc(s.held, func(h reservation) bool { return h.id == id })
	if i < 0 {
		return
	}
	ports := s.held[i].ports
	s.held = slices.Delete(s.held, i, i+1)
	for _, port := range ports {
		if slices.ContainsFunc(s.held, func(h reservation) bool { return slices.Contains(h.ports, port) }) {
			continue
		}
		if others := slices.DeleteFunc(r.ports[port], func(o *slot) bool { return o == s }); len(others) > 0 {
			r.ports[port] = others
		} else {
			delete(r.ports, port)
		}
	}
}

// used returns the most that the allocations of a slot hold at one time: waiting
// allocations reuse the resources of those for which they wait.
func (s *slot) used() capacity {
	var awaited, waiting, running capacity
	for i := range s.held {
		h := &s.held[i]
		switch {
		case slices.ContainsFunc(s.held, func(o reservation) bool { return o.waitsFor(h) }):
			awaited.add(h.need, 1)
		case slices.ContainsFunc(s.held, func(o reservation) bool { return h.waitsFor(&o) }):
			waiting.add(h.need, 1)
		default:
			running.add(h.need, 1)
		}
	}
	for i := range running {
		running[i] += max(awaited[i], waiting[i])
	}
	return running
}

// take checks whether another allocation fits, and returns an exhaustedError if
// not. It reserves nothing: the caller calls Put when the ports are known.
func (r *NodeUsage) take(key slotKey, need capacity) error {
	after := slot{}
	var before capacity
	if s := r.seats[key]; s != nil {
		before = s.used()
		after.held = slices.Clone(s.held)
	}
	after.held = append(after.held, reservation{need: need, placed: pendingIndex})
	grow := after.used()
	for i, d := range dimensions {
		if left := r.total[i] - r.used[i]; grow[i]-before[i] > left {
			return &exhaustedError{d.name, fmt.Errorf("%s exhausted: an allocation needs %.0f %s and %.0f %s are left on this node: ask for less in the resources of its tasks, or lower the count",
				d.name, need[i], d.unit, max(left, 0), d.unit)}
		}
	}
	return nil
}

// holder returns the slot that blocks a static port for key: another slot, or the
// same slot if it has an allocation with the port that is not leaving. own is true
// if only leaving allocations of the same slot hold the port.
func (r *NodeUsage) holder(key slotKey, port int) (by *slot, own bool) {
	for _, s := range r.ports[port] {
		if s.key != key {
			return s, false
		}
		for _, h := range s.held {
			if !h.leaving && slices.Contains(h.ports, port) {
				return s, false
			}
		}
		own = true
	}
	return nil, own
}

// taken reports whether a port is reserved or held by any slot.
func (r *NodeUsage) taken(port int) bool { return r.reserved[port] || len(r.ports[port]) > 0 }

func started(a *api.Allocation) bool {
	return a.ClientStatus != api.AllocClientStatusPending || len(a.TaskStates) > 0
}

// portsOf returns the host ports that an allocation holds exclusively.
func portsOf(a *api.Allocation) []int {
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

// has reports whether an allocation holds resources.
func (r *NodeUsage) has(a *api.Allocation) bool {
	s := r.seats[slotOf(a)]
	return s != nil && slices.ContainsFunc(s.held, func(h reservation) bool { return h.id == a.ID })
}
