package scheduler

import (
	"fmt"
	"math"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// NodeUsage is what is left of a node, with all that allocations hold of it until
// their runners have ended.
//
// An allocation starts when those of the same name before it have ended (see
// Desired), so it may be placed on what these still hold. It is not safe for
// concurrent use.
type NodeUsage struct {
	total, used capacity
	seats       map[slotKey]*slot
	ports       map[int][]*slot
	reserved    map[int]bool
}

type slotKey struct{ namespace, job, name string }

func slotOf(a *api.Allocation) slotKey { return slotKey{a.Namespace, a.JobID, a.Name} }

// slot is what the allocations of one name hold.
type slot struct {
	key  slotKey
	held []reservation
}

type reservation struct {
	id      string
	need    capacity
	ports   []int
	leaving bool // terminal, at work for a while yet
	started bool

	// One that has not been started waits for the one that it replaces, and for
	// those that had been stopped when it was placed. It may have been handed to
	// the node before another of its name came to its end.
	placed   uint64 // index, pendingIndex if it is being placed
	stopped  uint64 // index, 0 if nobody has stopped it
	previous string // id
}

// pendingIndex is the index of a change in the making.
const pendingIndex = math.MaxUint64

func (h *reservation) waitsFor(other *reservation) bool {
	return !h.started && !h.leaving && other.leaving &&
		(h.previous == other.id || other.stopped != 0 && other.stopped <= h.placed)
}

// NewNodeUsage returns the room of a node on which nothing runs.
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

// NodeUsageOf returns what the allocations of a state leave of its node.
func NodeUsageOf(state State, node Node) *NodeUsage {
	r := NewNodeUsage(node)
	for a := range state.Allocs() {
		if !state.Ended(a.ID) {
			r.Put(a)
		}
	}
	return r
}

// Clone returns a copy that changes by itself.
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

// Put notes an allocation that has not ended, or what has become of it.
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

// Leave notes that an allocation is being stopped.
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

// Remove notes that an allocation has ended. It may be unknown.
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

// used is the most that the allocations of a seat hold at one time: those that
// wait take the place of those that they wait for.
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

// take finds room for one more allocation, or says what is exhausted. It notes
// nothing: Put does, once the ports are known.
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

// holder returns who stands in the way of a static port for a seat: another
// seat, or an allocation of the same seat that does not leave. own says that the
// port is held by those that leave.
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

// taken tells whether a port is held at all.
func (r *NodeUsage) taken(port int) bool { return r.reserved[port] || len(r.ports[port]) > 0 }

func started(a *api.Allocation) bool {
	return a.ClientStatus != api.AllocClientStatusPending || len(a.TaskStates) > 0
}

// portsOf lists the ports of the host that an allocation has to itself.
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

// has tells whether an allocation still holds something.
func (r *NodeUsage) has(a *api.Allocation) bool {
	s := r.seats[slotOf(a)]
	return s != nil && slices.ContainsFunc(s.held, func(h reservation) bool { return h.id == a.ID })
}
