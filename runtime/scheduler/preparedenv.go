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

// preparedEnv provides a transaction's plans with ids and with results from Env.IsPortFree and Env.DescribePortListeners. It
// obtains them before the transaction, because a transaction blocks all other writers, and a port check opens sockets.
//
// The expect methods announce a transaction's placements, so that usually one attempt is enough. A transaction that needs more
// ids or ports gets placeholders, and preparedEnv records how many were missing. The scheduler then discards the transaction,
// calls prepareNextAttempt and makes another attempt.
type preparedEnv struct {
	scheduler *Scheduler

	isFreeByPort             map[HostPort]bool // results from Env.IsPortFree
	listenerTextByPort       map[int]string    // results from Env.DescribePortListeners
	freePortsFoundBySearch   map[HostPort]bool // free ports, each found for one search for a dynamic port
	dynamicPortSearchOffsets []int             // offsets at which dynamic port searches start, in search order

	// plansWithoutStartingPlugins: a plan that needs a starting plugin leaves a blocked evaluation. Otherwise the scheduler
	// discards the transaction, and makes another attempt when the plugins have reported.
	plansWithoutStartingPlugins bool

	nextAttemptIDCount     int        // how many ids the next attempt needs beyond minPreparedIDs
	nextAttemptStaticPorts []HostPort // static ports for which the next attempt needs IsPortFree results

	// The next fields belong to the transaction's current attempt.
	dynamicPortSearchCount   int        // dynamic port searches in this attempt
	returnedIDCount          int        // ids and placeholders returned by takeIDOrPlaceholder in this attempt
	returnedPlaceholderCount int        // placeholders returned by takeIDOrPlaceholder in this attempt
	requestedUncheckedPorts  []HostPort // ports for which isPortFreeOrUnchecked was called and had no prepared result
	lackedStartingPlugins    bool       // a plan needs a node property that starting plugins may add
}

// errPreparedEnvTooSmall: a transaction needed more ids or ports than were prepared.
var errPreparedEnvTooSmall = errors.New("scheduler: the change needs more ids or ports than are prepared")

// minPreparedIDs is how many ids are prepared for each transaction. A transaction with a few allocations needs no more.
const minPreparedIDs = 32

func (s *Scheduler) newPreparedEnv() *preparedEnv {
	return &preparedEnv{scheduler: s, isFreeByPort: make(map[HostPort]bool), listenerTextByPort: make(map[int]string), freePortsFoundBySearch: make(map[HostPort]bool)}
}

// expectPlacementsOfJob announces the placements of a new job or job version. old is the stored job or nil.
func (p *preparedEnv) expectPlacementsOfJob(job, old *api.Job) {
	if model.CanHaveChildren(job) {
		return
	}
	for _, g := range job.TaskGroups {
		n := *g.Count
		if before := findGroupOrNil(old, *g.Name); before != nil && !pointer.Value(old.Stop) {
			n = max(n-*before.Count, 0) + min(n, maxReplacementsOfFirstPlan(g))
		}
		p.expectPlacements(g, n)
	}
}

// expectPlacementsOfChildJob announces the placements of a new job dispatched from parent.
func (p *preparedEnv) expectPlacementsOfChildJob(parent *api.Job) {
	for _, g := range parent.TaskGroups {
		p.expectPlacements(g, *g.Count)
	}
}

// expectReplacement announces an allocation's replacement. It announces no static ports, which are not checked because the
// replaced allocation holds them.
func (p *preparedEnv) expectReplacement(a *api.Allocation) {
	if g := findGroupOrNil(a.Job, a.TaskGroup); g != nil {
		p.expectIDsAndDynamicPorts(g, 1)
	}
}

// expectDueReplacements announces the replacements to be placed by due evaluations.
func (p *preparedEnv) expectDueReplacements() {
	state := p.scheduler.store.Snapshot()
	for _, id := range p.scheduler.evalTimers.dueKeys(p.scheduler.hostEnv.Now()) {
		e := state.Evaluation(nil, id)
		if e == nil {
			continue
		}
		for _, a := range state.WithoutEndedEvents().AllocationsByJob(nil, e.Namespace, e.JobID) {
			if a.FollowupEvalID == id && isDesiredRunAndUnreplaced(a) {
				p.expectReplacement(a)
			}
		}
	}
}

// expectPlacementsAfterReports announces rolling update placements: after an allocation is reported healthy, the update can
// continue with the next one.
func (p *preparedEnv) expectPlacementsAfterReports(reports []model.AllocReport) {
	state := p.scheduler.store.Snapshot()
	for _, r := range reports {
		if r.Health == nil || !r.Health.Healthy {
			continue
		}
		a, d := state.Allocation(nil, r.AllocID), state.Deployment(nil, r.Health.DeploymentID)
		if a == nil || d == nil {
			continue
		}
		if g := d.TaskGroups[a.TaskGroup]; g != nil && g.PlacedAllocs < g.DesiredTotal {
			p.expectReplacement(a)
		}
	}
}

// findGroupOrNil returns a job's group, or nil if job is nil or has no such group.
func findGroupOrNil(job *api.Job, name string) *api.TaskGroup {
	if job == nil {
		return nil
	}
	return model.FindGroup(job, name)
}

// maxReplacementsOfFirstPlan returns how many allocations in a group a new version's plan replaces or adds as canaries.
func maxReplacementsOfFirstPlan(g *api.TaskGroup) int {
	if u := g.Update; u != nil && pointer.Value(u.MaxParallel) > 0 {
		return max(*u.MaxParallel, pointer.Value(u.Canary))
	}
	return *g.Count
}

// maxExpectedAllocs is the maximum that expectPlacements announces for a group. A plan with more placements needs another
// attempt.
const maxExpectedAllocs = 1000

// expectPlacements announces n new allocations in a group, with their ids, dynamic ports and static ports.
func (p *preparedEnv) expectPlacements(g *api.TaskGroup, n int) {
	n = min(n, maxExpectedAllocs)
	p.expectIDsAndDynamicPorts(g, n)
	if n == 0 {
		return
	}
	for _, network := range groupAndTaskNetworks(g) {
		for _, port := range network.ReservedPorts {
			if !port.IgnoreCollision && model.IsOnDefaultHostNetwork(port) {
				p.nextAttemptStaticPorts = append(p.nextAttemptStaticPorts, HostPort{Port: port.Value})
			}
		}
	}
}

// expectIDsAndDynamicPorts announces the ids and dynamic ports for n allocations in a group.
func (p *preparedEnv) expectIDsAndDynamicPorts(g *api.TaskGroup, n int) {
	p.nextAttemptIDCount += n
	for _, network := range groupAndTaskNetworks(g) {
		p.dynamicPortSearchCount += n * len(network.DynamicPorts)
	}
}

// prepareNextAttempt obtains the ids and ports announced, or missing in the previous attempt, and starts a new attempt.
func (p *preparedEnv) prepareNextAttempt() {
	env := p.scheduler.hostEnv
	p.scheduler.preparedIDs.fillTo(minPreparedIDs+p.nextAttemptIDCount+p.returnedIDCount, env.NewID)
	for _, port := range p.nextAttemptStaticPorts {
		p.checkPortFreeOnce(port)
	}
	if p.dynamicPortSearchCount+len(p.requestedUncheckedPorts) > 0 {
		p.prepareDynamicPorts()
	}
	p.preparePortListenerTexts()
	p.nextAttemptIDCount, p.nextAttemptStaticPorts = 0, nil
	p.dynamicPortSearchCount, p.returnedIDCount, p.returnedPlaceholderCount, p.requestedUncheckedPorts = 0, 0, 0, nil
	p.lackedStartingPlugins = false
}

// preparePortListenerTexts calls Env.DescribePortListeners for the needed ports if they are not free.
func (p *preparedEnv) preparePortListenerTexts() {
	var occupiedPorts []int
	for _, port := range slices.Concat(p.nextAttemptStaticPorts, p.requestedUncheckedPorts) {
		if !p.checkPortFreeOnce(port) {
			occupiedPorts = append(occupiedPorts, port.Port)
		}
	}
	if find := p.scheduler.hostEnv.DescribePortListeners; find != nil && len(occupiedPorts) > 0 {
		maps.Copy(p.listenerTextByPort, find(occupiedPorts))
	}
}

// prepareDynamicPorts finds a free port for each search for a dynamic port, as long as there are free ports.
func (p *preparedEnv) prepareDynamicPorts() {
	first, n := dynamicPortRange(PlacementNodeOf(p.scheduler.store.Snapshot().Node(nil, p.scheduler.nodeID)))
	for found := true; found && len(p.dynamicPortSearchOffsets) < p.dynamicPortSearchCount; {
		start := p.scheduler.hostEnv.RandIntN(n)
		p.dynamicPortSearchOffsets = append(p.dynamicPortSearchOffsets, start)
		found = p.findAndRecordFreePort("", first, n, start)
	}
	for _, port := range p.requestedUncheckedPorts {
		if p.checkPortFreeOnce(port) {
			p.freePortsFoundBySearch[port] = true
		} else if first <= port.Port && port.Port < first+n {
			p.findAndRecordFreePort(port.Address, first, n, port.Port-first)
		}
	}
}

// findAndRecordFreePort searches for a free port that no allocation holds and no other search has found. It checks count ports
// on an address from first on, beginning with the one at startOffset.
func (p *preparedEnv) findAndRecordFreePort(address string, first, count, startOffset int) (found bool) {
	for i := range count {
		port := HostPort{address, first + (startOffset+i)%count}
		if !p.freePortsFoundBySearch[port] && !p.scheduler.isPortTakenInCachedUsage(port) && p.checkPortFreeOnce(port) {
			p.freePortsFoundBySearch[port] = true
			return true
		}
	}
	return false
}

// checkPortFreeOnce returns Env.IsPortFree's result for a port. It calls Env.IsPortFree only once for each port.
func (p *preparedEnv) checkPortFreeOnce(port HostPort) (free bool) {
	free, known := p.isFreeByPort[port]
	if !known {
		free = p.scheduler.hostEnv.IsPortFree(port)
		p.isFreeByPort[port] = free
	}
	return free
}

// isPortTakenInCachedUsage reports whether the node reserves a port or an allocation holds it, according to the cached
// usage. It returns false while a transaction uses the cache.
func (s *Scheduler) isPortTakenInCachedUsage(port HostPort) bool {
	s.cacheMu.Lock()
	defer s.cacheMu.Unlock()
	return s.cachedNodeUsage != nil && s.cachedNodeUsage.isPortReservedOrHeld(port)
}

// lackedIDsOrPorts reports whether the current attempt needed an unprepared id or port.
func (p *preparedEnv) lackedIDsOrPorts() bool {
	return p.returnedPlaceholderCount+len(p.requestedUncheckedPorts) > 0
}

// envForPlans returns the Env for plans. Its functions return prepared values and do not block.
func (p *preparedEnv) envForPlans() Env {
	env := p.scheduler.hostEnv
	env.NewID, env.RandIntN, env.IsPortFree = p.takeIDOrPlaceholder, p.nextDynamicPortSearchOffset, p.isPortFreeOrUnchecked
	env.DescribePortListeners = func([]int) map[int]string { return p.listenerTextByPort }
	return env
}

// takeIDOrPlaceholder returns a prepared id, or a placeholder if there is none left.
func (p *preparedEnv) takeIDOrPlaceholder() string {
	p.returnedIDCount++
	if id, ok := p.scheduler.preparedIDs.takeID(); ok {
		return id
	}
	p.returnedPlaceholderCount++
	return fmt.Sprintf("%08x-placeholder", p.returnedPlaceholderCount)
}

// nextDynamicPortSearchOffset returns the random offset in [0, n) at which the next search for a dynamic port starts. It
// returns the same offset for the same search in each attempt.
func (p *preparedEnv) nextDynamicPortSearchOffset(n int) int {
	if p.dynamicPortSearchCount == len(p.dynamicPortSearchOffsets) {
		p.dynamicPortSearchOffsets = append(p.dynamicPortSearchOffsets, p.scheduler.hostEnv.RandIntN(n))
	}
	p.dynamicPortSearchCount++
	return p.dynamicPortSearchOffsets[p.dynamicPortSearchCount-1] % n
}

// isPortFreeOrUnchecked returns the prepared Env.IsPortFree result, or true if there is none.
func (p *preparedEnv) isPortFreeOrUnchecked(port HostPort) bool {
	free, known := p.isFreeByPort[port]
	if !known {
		p.requestedUncheckedPorts = append(p.requestedUncheckedPorts, port)
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

// fillTo adds ids until the pool has at least minCount. It calls newID without holding mu, so takeID does not block.
func (p *idPool) fillTo(minCount int, newID func() string) {
	p.mu.Lock()
	missing := minCount - len(p.ids)
	p.mu.Unlock()
	var newIDs []string
	for range missing {
		newIDs = append(newIDs, newID())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = append(p.ids, newIDs...)
}
