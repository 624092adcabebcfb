package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// preparedEnv provides the plans of a change with ids, and with results of Env.PortFree and Env.PortListeners. It obtains
// them before the transaction of the change, because all other writers wait while a transaction runs, and the check of a
// port opens sockets.
//
// The expect methods announce the placements of a change, so that usually one attempt of the change is enough. A change
// that needs more ids or ports than were prepared receives placeholders, and preparedEnv records what was missing. The
// transaction is then discarded, and the change is made again.
type preparedEnv struct {
	s *Scheduler

	checkedPorts     map[HostPort]bool // results of Env.PortFree
	portListeners    map[int]string    // results of Env.PortListeners
	foundPorts       map[HostPort]bool // free ports that were found for different searches
	portSearchStarts []int             // offsets at which the searches for dynamic ports start, in the order of the searches

	missingIDs   int        // ids that the next attempt needs beyond minPreparedIDs
	missingPorts []HostPort // static ports that the next attempt needs

	// The next fields belong to the current attempt of the change.
	portSearches   int        // number of searches for dynamic ports in this attempt
	usedIDs        int        // number of ids and placeholders that newID has returned in this attempt
	placeholderIDs int        // number of placeholders that newID has returned in this attempt
	uncheckedPorts []HostPort // ports for which portFree was called and had no prepared result
}

// errPreparedEnvTooSmall means that a change needed more ids or ports than were prepared.
var errPreparedEnvTooSmall = errors.New("scheduler: the change needs more ids or ports than are prepared")

// minPreparedIDs is the number of ids that are prepared for each change. It suffices for a change of a few allocations.
const minPreparedIDs = 32

func (s *Scheduler) newPreparedEnv() *preparedEnv {
	return &preparedEnv{s: s, checkedPorts: make(map[HostPort]bool), portListeners: make(map[int]string), foundPorts: make(map[HostPort]bool)}
}

// expectPlacementsOfJob announces a plan for a new job, or for a new version of the stored job old.
func (s *preparedEnv) expectPlacementsOfJob(job, old *api.Job) {
	if model.HasChildren(job) {
		return
	}
	for _, g := range job.TaskGroups {
		n := *g.Count
		if before := groupOf(old, *g.Name); before != nil && !pointer.Value(old.Stop) {
			n = max(n-*before.Count, 0) + min(n, countFirstReplacements(g))
		}
		s.expectPlacements(g, n)
	}
}

// expectPlacementsOfChildJob announces a plan for a new job that is dispatched from parent.
func (s *preparedEnv) expectPlacementsOfChildJob(parent *api.Job) {
	for _, g := range parent.TaskGroups {
		s.expectPlacements(g, *g.Count)
	}
}

// expectReplacement announces a plan that replaces an allocation. Static ports need no
// check, because the allocation holds them.
func (s *preparedEnv) expectReplacement(a *api.Allocation) {
	if g := groupOf(a.Job, a.TaskGroup); g != nil {
		s.expectDynamicPorts(g, 1)
	}
}

// expectDueReplacements announces the replacements that due evaluations will place.
func (s *preparedEnv) expectDueReplacements() {
	state := s.s.store.Snapshot()
	for _, id := range s.s.evalTimers.due(s.s.env.Now()) {
		e := state.Evaluation(nil, id)
		if e == nil {
			continue
		}
		for _, a := range state.AllocationsByJob(nil, e.Namespace, e.JobID) {
			if a.FollowupEvalID == id && isUnreplaced(a) {
				s.expectReplacement(a)
			}
		}
	}
}

// expectPlacementsAfterReports announces placements of rolling updates: a report that an allocation is healthy lets the update
// continue with its next allocations.
func (s *preparedEnv) expectPlacementsAfterReports(reports []AllocReport) {
	state := s.s.store.Snapshot()
	for _, r := range reports {
		if !pointer.Value(r.Healthy) {
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
	return model.FindGroup(job, name)
}

// countFirstReplacements returns how many allocations of a group a plan for a new version
// replaces or adds as canaries.
func countFirstReplacements(g *api.TaskGroup) int {
	if u := g.Update; u != nil && pointer.Value(u.MaxParallel) > 0 {
		return max(*u.MaxParallel, pointer.Value(u.Canary))
	}
	return *g.Count
}

// maxExpectedAllocs is the maximum number of allocations of a group that are announced. A plan that places more of them
// needs another attempt.
const maxExpectedAllocs = 1000

// expectPlacements announces n new allocations of a group.
func (s *preparedEnv) expectPlacements(g *api.TaskGroup, n int) {
	n = min(n, maxExpectedAllocs)
	s.expectDynamicPorts(g, n)
	if n == 0 {
		return
	}
	for _, network := range networksOf(g) {
		for _, port := range network.ReservedPorts {
			if !port.IgnoreCollision && model.IsOnDefaultHostNetwork(port) {
				s.missingPorts = append(s.missingPorts, HostPort{Port: port.Value})
			}
		}
	}
}

func (s *preparedEnv) expectDynamicPorts(g *api.TaskGroup, n int) {
	s.missingIDs += n
	for _, network := range networksOf(g) {
		s.portSearches += n * len(network.DynamicPorts)
	}
}

// prepare obtains the ids and ports that were announced, or that the previous attempt lacked.
func (s *preparedEnv) prepare() {
	env := s.s.env
	s.s.ids.fill(minPreparedIDs+s.missingIDs+s.usedIDs, env.NewID)
	for _, port := range s.missingPorts {
		s.checkPort(port)
	}
	if s.portSearches+len(s.uncheckedPorts) > 0 {
		s.prepareDynamicPorts()
	}
	s.prepareListeners()
	s.missingIDs, s.missingPorts = 0, nil
	s.portSearches, s.usedIDs, s.placeholderIDs, s.uncheckedPorts = 0, 0, 0, nil
}

// prepareListeners finds the processes that listen on the ports that the plans need and that are not free.
func (s *preparedEnv) prepareListeners() {
	var occupiedPorts []int
	for _, port := range slices.Concat(s.missingPorts, s.uncheckedPorts) {
		if !s.checkPort(port) {
			occupiedPorts = append(occupiedPorts, port.Port)
		}
	}
	if find := s.s.env.PortListeners; find != nil && len(occupiedPorts) > 0 {
		maps.Copy(s.portListeners, find(occupiedPorts))
	}
}

// prepareDynamicPorts finds a free port for each search for a dynamic port, as long as there are free ports.
func (s *preparedEnv) prepareDynamicPorts() {
	first, n := dynamicPorts(NodeOf(s.s.store.Snapshot().Node(nil, s.s.nodeID)))
	for found := true; found && len(s.portSearchStarts) < s.portSearches; {
		start := s.s.env.RandIntN(n)
		s.portSearchStarts = append(s.portSearchStarts, start)
		found = s.findFreePort("", first, n, start)
	}
	for _, port := range s.uncheckedPorts {
		if s.checkPort(port) {
			s.foundPorts[port] = true
		} else if first <= port.Port && port.Port < first+n {
			s.findFreePort(port.Address, first, n, port.Port-first)
		}
	}
}

// findFreePort searches for a port that is free, that no allocation holds, and that no other search has found. It
// checks the n ports of an address from first on, beginning with the one at the offset start.
func (s *preparedEnv) findFreePort(address string, first, n, start int) (found bool) {
	for i := range n {
		port := HostPort{address, first + (start+i)%n}
		if !s.foundPorts[port] && !s.s.isPortHeld(port) && s.checkPort(port) {
			s.foundPorts[port] = true
			return true
		}
	}
	return false
}

// checkPort returns the result of Env.PortFree, which it calls only once for each port.
func (s *preparedEnv) checkPort(port HostPort) (free bool) {
	free, known := s.checkedPorts[port]
	if !known {
		free = s.s.env.PortFree(port)
		s.checkedPorts[port] = free
	}
	return free
}

// isPortHeld reports whether an allocation holds a port, according to the usage that is known outside of transactions.
func (s *Scheduler) isPortHeld(port HostPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodeUsage != nil && s.nodeUsage.isPortTaken(port)
}

// isIncomplete reports whether the current attempt lacked an id or a port.
func (s *preparedEnv) isIncomplete() bool { return s.placeholderIDs+len(s.uncheckedPorts) > 0 }

// planEnv returns the Env that plans use. Its functions do not block.
func (s *preparedEnv) planEnv() Env {
	env := s.s.env
	env.NewID, env.RandIntN, env.PortFree = s.newID, s.pickPortSearchStart, s.portFree
	env.PortListeners = func([]int) map[int]string { return s.portListeners }
	return env
}

// newID returns a prepared id, or a placeholder if there is none left.
func (s *preparedEnv) newID() string {
	s.usedIDs++
	if id, ok := s.s.ids.take(); ok {
		return id
	}
	s.placeholderIDs++
	return fmt.Sprintf("%08x-placeholder", s.placeholderIDs)
}

// pickPortSearchStart returns the random start of a search. It returns the same start for the same search in each attempt.
func (s *preparedEnv) pickPortSearchStart(n int) int {
	if s.portSearches == len(s.portSearchStarts) {
		s.portSearchStarts = append(s.portSearchStarts, s.s.env.RandIntN(n))
	}
	s.portSearches++
	return s.portSearchStarts[s.portSearches-1] % n
}

// portFree returns the prepared result of Env.PortFree, or true if there is none.
func (s *preparedEnv) portFree(port HostPort) bool {
	free, known := s.checkedPorts[port]
	if !known {
		s.uncheckedPorts = append(s.uncheckedPorts, port)
		return true
	}
	return free
}

// idPool holds prepared ids. Its methods may be called concurrently.
type idPool struct {
	mu  sync.Mutex
	ids []string
}

// take removes an id from the pool; ok is false if the pool is empty.
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
	var newIDs []string
	for range missing {
		newIDs = append(newIDs, next())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = append(p.ids, newIDs...)
}
