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

// preparedEnv provides the plans of a transaction with ids, and with results of Env.PortFree and Env.PortListeners. It
// obtains them before the transaction, because a transaction blocks all other writers, and the check of a port opens
// sockets.
//
// The expect methods announce the placements of a transaction, so that usually one attempt is enough. A transaction that
// needs more ids or ports gets placeholders, and preparedEnv records how many were missing. The scheduler then discards the
// transaction, calls prepare and makes another attempt.
type preparedEnv struct {
	scheduler *Scheduler

	isPortFreeResults map[HostPort]bool // results of Env.PortFree
	listenersByPort   map[int]string    // results of Env.PortListeners
	foundFreePorts    map[HostPort]bool // free ports, each found for one search for a dynamic port
	portSearchStarts  []int             // offsets at which the searches for dynamic ports start, in the order of the searches

	missingIDCount int        // preparedIDs that the next attempt needs beyond minPreparedIDs
	missingPorts   []HostPort // static ports that the next attempt needs

	// The next fields belong to the current attempt of the transaction.
	portSearchCount    int        // number of searches for dynamic ports in this attempt
	usedIDCount        int        // number of ids and placeholders that preparedID has returned in this attempt
	placeholderIDCount int        // number of placeholders that preparedID has returned in this attempt
	uncheckedPorts     []HostPort // ports for which preparedPortFree was called and had no prepared result
}

// errPreparedEnvTooSmall means that a transaction needed more ids or ports than were prepared.
var errPreparedEnvTooSmall = errors.New("scheduler: the change needs more ids or ports than are prepared")

// minPreparedIDs is the number of ids that are prepared for each transaction. A transaction with a few allocations needs
// no more.
const minPreparedIDs = 32

func (s *Scheduler) newPreparedEnv() *preparedEnv {
	return &preparedEnv{scheduler: s, isPortFreeResults: make(map[HostPort]bool), listenersByPort: make(map[int]string), foundFreePorts: make(map[HostPort]bool)}
}

// expectPlacementsOfJob announces the placements of a new job, or of a new version of old, the stored job or nil.
func (p *preparedEnv) expectPlacementsOfJob(job, old *api.Job) {
	if model.HasChildren(job) {
		return
	}
	for _, g := range job.TaskGroups {
		n := *g.Count
		if before := findGroupOrNil(old, *g.Name); before != nil && !pointer.Value(old.Stop) {
			n = max(n-*before.Count, 0) + min(n, countFirstReplacements(g))
		}
		p.expectPlacements(g, n)
	}
}

// expectPlacementsOfChildJob announces the placements of a new job that is dispatched from parent.
func (p *preparedEnv) expectPlacementsOfChildJob(parent *api.Job) {
	for _, g := range parent.TaskGroups {
		p.expectPlacements(g, *g.Count)
	}
}

// expectReplacement announces the replacement of an allocation. It announces no static ports, which are
// not checked because the replaced allocation holds them.
func (p *preparedEnv) expectReplacement(a *api.Allocation) {
	if g := findGroupOrNil(a.Job, a.TaskGroup); g != nil {
		p.expectIDsAndDynamicPorts(g, 1)
	}
}

// expectDueReplacements announces the replacements that due evaluations will place.
func (p *preparedEnv) expectDueReplacements() {
	state := p.scheduler.store.Snapshot()
	for _, id := range p.scheduler.evalTimers.dueKeys(p.scheduler.env.Now()) {
		e := state.Evaluation(nil, id)
		if e == nil {
			continue
		}
		for _, a := range state.AllocationsByJob(nil, e.Namespace, e.JobID) {
			if a.FollowupEvalID == id && isUnreplaced(a) {
				p.expectReplacement(a)
			}
		}
	}
}

// expectPlacementsAfterReports announces placements of rolling updates: after the report that an allocation is healthy, the
// update can continue with the next allocation.
func (p *preparedEnv) expectPlacementsAfterReports(reports []AllocReport) {
	state := p.scheduler.store.Snapshot()
	for _, r := range reports {
		if !pointer.Value(r.Healthy) {
			continue
		}
		a, d := state.Allocation(nil, r.AllocID), state.Deployment(nil, r.DeploymentID)
		if a == nil || d == nil {
			continue
		}
		if g := d.TaskGroups[a.TaskGroup]; g != nil && g.PlacedAllocs < g.DesiredTotal {
			p.expectReplacement(a)
		}
	}
}

// findGroupOrNil returns the group of a job, or nil if job is nil or has no such group.
func findGroupOrNil(job *api.Job, name string) *api.TaskGroup {
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

// maxExpectedAllocs is the maximum number of allocations that expectPlacements announces for a group. A plan that places
// more allocations needs another attempt.
const maxExpectedAllocs = 1000

// expectPlacements announces n new allocations of a group, with their ids, dynamic ports and static ports.
func (p *preparedEnv) expectPlacements(g *api.TaskGroup, n int) {
	n = min(n, maxExpectedAllocs)
	p.expectIDsAndDynamicPorts(g, n)
	if n == 0 {
		return
	}
	for _, network := range networksOf(g) {
		for _, port := range network.ReservedPorts {
			if !port.IgnoreCollision && model.IsOnDefaultHostNetwork(port) {
				p.missingPorts = append(p.missingPorts, HostPort{Port: port.Value})
			}
		}
	}
}

// expectIDsAndDynamicPorts announces the ids and dynamic ports of n allocations of a group.
func (p *preparedEnv) expectIDsAndDynamicPorts(g *api.TaskGroup, n int) {
	p.missingIDCount += n
	for _, network := range networksOf(g) {
		p.portSearchCount += n * len(network.DynamicPorts)
	}
}

// prepare obtains the ids and ports that were announced or that were missing in the previous attempt, and starts a new
// attempt.
func (p *preparedEnv) prepare() {
	env := p.scheduler.env
	p.scheduler.preparedIDs.fillTo(minPreparedIDs+p.missingIDCount+p.usedIDCount, env.NewID)
	for _, port := range p.missingPorts {
		p.isPortFreeCached(port)
	}
	if p.portSearchCount+len(p.uncheckedPorts) > 0 {
		p.prepareDynamicPorts()
	}
	p.prepareListeners()
	p.missingIDCount, p.missingPorts = 0, nil
	p.portSearchCount, p.usedIDCount, p.placeholderIDCount, p.uncheckedPorts = 0, 0, 0, nil
}

// prepareListeners calls Env.PortListeners for the needed ports that are not free.
func (p *preparedEnv) prepareListeners() {
	var occupiedPorts []int
	for _, port := range slices.Concat(p.missingPorts, p.uncheckedPorts) {
		if !p.isPortFreeCached(port) {
			occupiedPorts = append(occupiedPorts, port.Port)
		}
	}
	if find := p.scheduler.env.PortListeners; find != nil && len(occupiedPorts) > 0 {
		maps.Copy(p.listenersByPort, find(occupiedPorts))
	}
}

// prepareDynamicPorts finds a free port for each search for a dynamic port, as long as there are free ports.
func (p *preparedEnv) prepareDynamicPorts() {
	first, n := dynamicPortRange(PlacementNodeOf(p.scheduler.store.Snapshot().Node(nil, p.scheduler.nodeID)))
	for found := true; found && len(p.portSearchStarts) < p.portSearchCount; {
		start := p.scheduler.env.RandIntN(n)
		p.portSearchStarts = append(p.portSearchStarts, start)
		found = p.findFreePort("", first, n, start)
	}
	for _, port := range p.uncheckedPorts {
		if p.isPortFreeCached(port) {
			p.foundFreePorts[port] = true
		} else if first <= port.Port && port.Port < first+n {
			p.findFreePort(port.Address, first, n, port.Port-first)
		}
	}
}

// findFreePort searches for a port that is free, that no allocation holds, and that no other search has found. It
// checks the n ports of an address from first on, beginning with the one at the offset start.
func (p *preparedEnv) findFreePort(address string, first, n, start int) (found bool) {
	for i := range n {
		port := HostPort{address, first + (start+i)%n}
		if !p.foundFreePorts[port] && !p.scheduler.isPortHeld(port) && p.isPortFreeCached(port) {
			p.foundFreePorts[port] = true
			return true
		}
	}
	return false
}

// isPortFreeCached returns the result of Env.PortFree for a port. It calls Env.PortFree only once for each port.
func (p *preparedEnv) isPortFreeCached(port HostPort) (free bool) {
	free, known := p.isPortFreeResults[port]
	if !known {
		free = p.scheduler.env.PortFree(port)
		p.isPortFreeResults[port] = free
	}
	return free
}

// isPortHeld reports whether the node reserves a port or an allocation holds it, according to the cached usage. It returns
// false while a transaction uses the cache.
func (s *Scheduler) isPortHeld(port HostPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cachedNodeUsage != nil && s.cachedNodeUsage.isPortTaken(port)
}

// hadTooFew reports whether the current attempt needed an id or a port that was not prepared.
func (p *preparedEnv) hadTooFew() bool { return p.placeholderIDCount+len(p.uncheckedPorts) > 0 }

// planEnv returns the Env for plans. Its functions return prepared values and do not block.
func (p *preparedEnv) planEnv() Env {
	env := p.scheduler.env
	env.NewID, env.RandIntN, env.PortFree = p.preparedID, p.pickPortSearchStart, p.preparedPortFree
	env.PortListeners = func([]int) map[int]string { return p.listenersByPort }
	return env
}

// preparedID returns a prepared id, or a placeholder if there is none left.
func (p *preparedEnv) preparedID() string {
	p.usedIDCount++
	if id, ok := p.scheduler.preparedIDs.takeID(); ok {
		return id
	}
	p.placeholderIDCount++
	return fmt.Sprintf("%08x-placeholder", p.placeholderIDCount)
}

// pickPortSearchStart returns the random offset in [0, n) at which the next search for a dynamic port starts. It returns the
// same offset for the same search in each attempt.
func (p *preparedEnv) pickPortSearchStart(n int) int {
	if p.portSearchCount == len(p.portSearchStarts) {
		p.portSearchStarts = append(p.portSearchStarts, p.scheduler.env.RandIntN(n))
	}
	p.portSearchCount++
	return p.portSearchStarts[p.portSearchCount-1] % n
}

// preparedPortFree returns the prepared result of Env.PortFree, or true if there is none.
func (p *preparedEnv) preparedPortFree(port HostPort) bool {
	free, known := p.isPortFreeResults[port]
	if !known {
		p.uncheckedPorts = append(p.uncheckedPorts, port)
		return true
	}
	return free
}

// idPool holds prepared ids. Its methods may be called concurrently.
type idPool struct {
	mu  sync.Mutex
	ids []string
}

// takeID removes an id from the pool; ok is false if the pool is empty.
func (p *idPool) takeID() (id string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ids) == 0 {
		return "", false
	}
	id = p.ids[0]
	p.ids = p.ids[1:]
	return id, true
}

// fillTo adds ids until the pool has at least n. It calls next without holding mu, so that
// take does not block.
func (p *idPool) fillTo(n int, next func() string) {
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
