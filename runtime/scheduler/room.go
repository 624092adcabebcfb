package scheduler

import (
	"fmt"
	"math"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// Room is what is left of a node, with all that allocations hold of it until
// their runners have ended.
//
// An allocation starts when those of the same name before it have ended (see
// Desired), so it may be placed on what these still hold. It is not safe for
// concurrent use.
type Room struct {
	total, used capacity
	seats       map[seatKey]*seat
	ports       map[int][]*seat
	reserved    map[int]bool
}

type seatKey struct{ namespace, job, name string }

func seatOf(a *api.Allocation) seatKey { return seatKey{a.Namespace, a.JobID, a.Name} }

// seat is what the allocations of one name hold.
type seat struct {
	key  seatKey
	held []holding
}

type holding struct {
	id      string
	need    capacity
	ports   []int
	leaving bool // terminal, at work for a while yet
	started bool

	// One that has not been started waits for the one that it replaces, and for
	// those that had been stopped when it was placed. It may have been handed to
	// the node before another of its name came to its end.
	placed   uint64 // index, justNow if it is being placed
	stopped  uint64 // index, 0 if nobody has stopped it
	previous string // id
}

// justNow is the index of a change in the making.
const justNow = math.MaxUint64

func (h *holding) waitsFor(other *holding) bool {
	return !h.started && !h.leaving && other.leaving &&
		(h.previous == other.id || other.stopped != 0 && other.stopped <= h.placed)
}

// NewRoom returns the room of a node on which nothing runs.
func NewRoom(node Node) *Room {
	r := &Room{
		total:    capacityOf(node),
		seats:    map[seatKey]*seat{},
		ports:    map[int][]*seat{},
		reserved: make(map[int]bool, len(node.ReservedPorts)),
	}
	for _, port := range node.ReservedPorts {
		r.reserved[port] = true
	}
	return r
}

// RoomOf returns what the allocations of a state leave of its node.
func RoomOf(state State, node Node) *Room {
	r := NewRoom(node)
	for a := range state.Allocs() {
		if !state.Ended(a.ID) {
			r.Put(a)
		}
	}
	return r
}

// Clone returns a copy that changes by itself.
func (r *Room) Clone() *Room {
	c := *r
	c.seats = make(map[seatKey]*seat, len(r.seats))
	c.ports = make(map[int][]*seat, len(r.ports))
	for key, s := range r.seats {
		c.seats[key] = &seat{s.key, slices.Clone(s.held)}
	}
	for port, seats := range r.ports {
		for _, s := range seats {
			c.ports[port] = append(c.ports[port], c.seats[s.key])
		}
	}
	return &c
}

// Put notes an allocation that has not ended, or what has become of it.
func (r *Room) Put(a *api.Allocation) {
	h := holding{
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
		h.placed = justNow
	}
	r.put(a, h)
}

// Leave notes that an allocation is being stopped.
func (r *Room) Leave(a *api.Allocation) {
	r.put(a, holding{id: a.ID, leaving: true, started: started(a), ports: portsOf(a), placed: a.CreateIndex, stopped: justNow})
}

func (r *Room) put(a *api.Allocation, h holding) {
	if g := model.Group(a.Job, a.TaskGroup); g != nil {
		h.need = needOf(g)
	}
	r.change(seatOf(a), func(s *seat) {
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
func (r *Room) Remove(a *api.Allocation) {
	r.change(seatOf(a), func(s *seat) { r.forget(s, a.ID) })
}

func (r *Room) change(key seatKey, edit func(*seat)) {
	s := r.seats[key]
	if s == nil {
		s = &seat{key: key}
		r.seats[key] = s
	}
	r.used.add(s.used(), -1)
	edit(s)
	r.used.add(s.used(), 1)
	if len(s.held) == 0 {
		delete(r.seats, key)
	}
}

func (r *Room) forget(s *seat, id string) {
	i := slices.IndexFunc(s.held, func(h holding) bool { return h.id == id })
	if i < 0 {
		return
	}
	ports := s.held[i].ports
	s.held = slices.Delete(s.held, i, i+1)
	for _, port := range ports {
		if slices.ContainsFunc(s.held, func(h holding) bool { return slices.Contains(h.ports, port) }) {
			continue
		}
		if others := slices.DeleteFunc(r.ports[port], func(o *seat) bool { return o == s }); len(others) > 0 {
			r.ports[port] = others
		} else {
			delete(r.ports, port)
		}
	}
}

// used is the most that the allocations of a seat hold at one time: those that
// wait take the place of those that they wait for.
func (s *seat) used() capacity {
	var awaited, waiting, running capacity
	for i := range s.held {
		h := &s.held[i]
		switch {
		case slices.ContainsFunc(s.held, func(o holding) bool { return o.waitsFor(h) }):
			awaited.add(h.need, 1)
		case slices.ContainsFunc(s.held, func(o holding) bool { return h.waitsFor(&o) }):
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
func (r *Room) take(key seatKey, need capacity) error {
	after := seat{}
	var before capacity
	if s := r.seats[key]; s != nil {
		before = s.used()
		after.held = slices.Clone(s.held)
	}
	after.held = append(after.held, holding{need: need, placed: justNow})
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
func (r *Room) holder(key seatKey, port int) (by *seat, own bool) {
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
func (r *Room) taken(port int) bool { return r.reserved[port] || len(r.ports[port]) > 0 }

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
func (r *Room) has(a *api.Allocation) bool {
	s := r.seats[seatOf(a)]
	return s != nil && slices.ContainsFunc(s.held, func(h holding) bool { return h.id == a.ID })
}
