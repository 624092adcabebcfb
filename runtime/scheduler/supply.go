package scheduler

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// supply provides the plans of a change with ids and with the answers whether ports are
// free. It is filled before the transaction of the change: all other writers wait while
// a transaction runs, and the check of a port opens sockets.
//
// Requests announce their placements by the expect methods, so that one attempt is
// enough. A change that needs more than is prepared continues with placeholders, so that
// the supply records everything that is missing. The change is then discarded and made
// again.
type supply struct {
	s *Scheduler

	ports    map[int]bool // results of Env.PortFree
	promised map[int]bool // free ports that were found for different searches
	starts   []int        // where the searches for dynamic ports start, in the order of the searches

	wantIDs   int   // ids that the next attempt needs beyond minIDs
	wantPorts []int // static ports that the next attempt needs

	// The next fields belong to the current attempt.
	searches     int   // searches for dynamic ports
	usedIDs      int   // number of ids and placeholders that newID has returned in this attempt
	placeholders int   // number of placeholders that newID has returned in this attempt
	unknown      []int // ports that portFree was called with while ports had no result for them
}

// errShort means that a change needed more than its supply had.
var errShort = errors.New("scheduler: the supply of the change is too small")

// minIDs is the number of ids that are prepared for each change. A change of a few
// allocations needs fewer.
const minIDs = 32

func (s *Scheduler) newSupply() *supply {
	return &supply{s: s, ports: make(map[int]bool), promised: make(map[int]bool)}
}

// expectJob announces a plan for a new job, or for a new version of the stored job old.
func (s *supply) expectJob(job, old *api.Job) {
	if model.HasChildren(job) {
		return
	}
	for _, g := range job.TaskGroups {
		n := *g.Count
		if before := groupOf(old, *g.Name); before != nil && !deref(old.Stop) {
			n = max(n-*before.Count, 0) + min(n, replacedAtOnce(g))
		}
		s.expect(g, n)
	}
}

// expectChild announces a plan for a new job that is dispatched from parent.
func (s *supply) expectChild(parent *api.Job) {
	for _, g := range parent.TaskGroups {
		s.expect(g, *g.Count)
	}
}

// expectReplacement announces a plan that replaces an allocation. Static ports need no
// check, because the allocation holds them.
func (s *supply) expectReplacement(a *api.Allocation) {
	if g := groupOf(a.Job, a.TaskGroup); g != nil {
		s.expectDynamic(g, 1)
	}
}

// expectDue announces the replacements for which an evaluation is due.
func (s *supply) expectDue() {
	state := s.s.store.Snapshot()
	for _, id := range s.s.delayed.due(s.s.host.Now()) {
		e := state.Evaluation(nil, id)
		if e == nil {
			continue
		}
		for _, a := range state.AllocationsByJob(nil, e.Namespace, e.JobID) {
			if a.FollowupEvalID == id && hasPlace(a) {
				s.expectReplacement(a)
			}
		}
	}
}

// expectReports announces the next step of each rolling update that reports of
// healthy allocations continue.
func (s *supply) expectReports(reports []Report) {
	state := s.s.store.Snapshot()
	for _, r := range reports {
		if !deref(r.Healthy) {
			continue
		}
		a, d := state.Allocation(nil, r.AllocID), state.Deployment(nil, r.DeploymentID)
		if a == nil || d == nil {
			continue
		}
		if g := d.TaskGroups[a.TaskGroup]; g != nil && g.PlacedAllocs < g.DesiredTotal {
			s.expectReplacement(a)
		}
	}
}

func groupOf(job *api.Job, name string) *api.TaskGroup {
	if job == nil {
		return nil
	}
	return model.Group(job, name)
}

// replacedAtOnce returns how many allocations of a group a plan for a new version
// replaces or adds as canaries.
func replacedAtOnce(g *api.TaskGroup) int {
	if u := g.Update; u != nil && deref(u.MaxParallel) > 0 {
		return max(*u.MaxParallel, deref(u.Canary))
	}
	return *g.Count
}

// maxExpected limits the announced allocations of a group. A plan that places more of
// them takes another attempt.
const maxExpected = 1000

// expect announces n new allocations of a group.
func (s *supply) expect(g *api.TaskGroup, n int) {
	n = min(n, maxExpected)
	s.expectDynamic(g, n)
	if n == 0 {
		return
	}
	for _, network := range networksOf(g) {
		for _, port := range network.ReservedPorts {
			if !port.IgnoreCollision {
				s.wantPorts = append(s.wantPorts, port.Value)
			}
		}
	}
}

func (s *supply) expectDynamic(g *api.TaskGroup, n int) {
	s.wantIDs += n
	for _, network := range networksOf(g) {
		s.searches += n * len(network.DynamicPorts)
	}
}

// prepare obtains the ids and ports that were announced, or that the last attempt lacked.
func (s *supply) prepare() {
	env := s.s.host
	s.s.ids.fill(minIDs+s.wantIDs+s.usedIDs, env.NewID)
	for _, port := range s.wantPorts {
		s.check(port)
	}
	if s.searches+len(s.unknown) > 0 {
		s.prepareDynamic()
	}
	s.wantIDs, s.wantPorts = 0, nil
	s.searches, s.usedIDs, s.placeholders, s.unknown = 0, 0, 0, nil
}

// prepareDynamic finds a free port for each search, as long as there is one.
func (s *supply) prepareDynamic() {
	first, n := dynamicPorts(NodeOf(s.s.store.Snapshot().Node(nil, s.s.nodeID)))
	for found := true; found && len(s.starts) < s.searches; {
		start := s.s.host.Pick(n)
		s.starts = append(s.starts, start)
		found = s.search(first, n, start)
	}
	for _, port := range s.unknown {
		if s.check(port) {
			s.promised[port] = true
		} else if first <= port && port < first+n {
			s.search(first, n, port-first)
		}
	}
}

// search checks the n dynamic ports from first on, beginning at the offset start, until
// it has found a free one that no allocation holds and no other search has found.
func (s *supply) search(first, n, start int) (found bool) {
	for i := range n {
		port := first + (start+i)%n
		if !s.promised[port] && !s.s.portHeld(port) && s.check(port) {
			s.promised[port] = true
			return true
		}
	}
	return false
}

// check calls Env.PortFree once for each port.
func (s *supply) check(port int) (free bool) {
	free, known := s.ports[port]
	if !known {
		free = s.s.host.PortFree(port)
		s.ports[port] = free
	}
	return free
}

// portHeld reports whether an allocation holds a port, as far as it is known outside of
// transactions.
func (s *Scheduler) portHeld(port int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room != nil && s.room.taken(port)
}

// short reports whether the current attempt lacked something.
func (s *supply) short() bool { return s.placeholders+len(s.unknown) > 0 }

// planEnv returns the Env for plans. Its functions do not block.
func (s *supply) planEnv() Env {
	env := s.s.host
	env.NewID, env.Pick, env.PortFree = s.newID, s.pick, s.portFree
	return env
}

// newID returns a prepared id, or a placeholder.
func (s *supply) newID() string {
	s.usedIDs++
	if id, ok := s.s.ids.take(); ok {
		return id
	}
	s.placeholders++
	return fmt.Sprintf("%08x-placeholder", s.placeholders)
}

// pick returns the same start for the same search in each attempt.
func (s *supply) pick(n int) int {
	if s.searches == len(s.starts) {
		s.starts = append(s.starts, s.s.host.Pick(n))
	}
	s.searches++
	return s.starts[s.searches-1] % n
}

// portFree returns the prepared result of Env.PortFree, or true as a placeholder.
func (s *supply) portFree(port int) bool {
	free, known := s.ports[port]
	if !known {
		s.unknown = append(s.unknown, port)
		return true
	}
	return free
}

// idPool holds prepared ids. Its methods may be called concurrently.
type idPool struct {
	mu  sync.Mutex
	ids []string
}

// take removes an id; ok is false if there is none.
func (p *idPool) take() (id string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ids) == 0 {
		return "", false
	}
	id = p.ids[0]
	p.ids = p.ids[1:]
	return id, true
}

// fill adds ids until the pool has at least n. It calls next without holding mu, so that
// take does not block.
func (p *idPool) fill(n int, next func() string) {
	p.mu.Lock()
	missing := n - len(p.ids)
	p.mu.Unlock()
	var fresh []string
	for range missing {
		fresh = append(fresh, next())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = append(p.ids, fresh...)
}
