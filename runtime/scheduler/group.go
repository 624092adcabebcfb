package scheduler

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// terminalAction is how a plan treats a terminal allocation whose desired status is
// run.
type terminalAction uint8

const (
	refill terminalAction = iota // the plan places a new allocation
	counts                       // the allocation counts as completed work
	retry                        // the reschedule policy decides
)

// terminalActions has the rules for ended allocations by job type and client
// status. A batch or sysbatch allocation of an older version is ignored.
var terminalActions = map[string]map[string]terminalAction{
	api.JobTypeService:  {api.AllocClientStatusComplete: refill, api.AllocClientStatusFailed: retry, api.AllocClientStatusLost: refill},
	api.JobTypeBatch:    {api.AllocClientStatusComplete: counts, api.AllocClientStatusFailed: retry, api.AllocClientStatusLost: refill},
	api.JobTypeSystem:   {api.AllocClientStatusComplete: refill, api.AllocClientStatusFailed: refill, api.AllocClientStatusLost: refill},
	api.JobTypeSysbatch: {api.AllocClientStatusComplete: counts, api.AllocClientStatusFailed: counts, api.AllocClientStatusLost: refill},
}

// group is the plan for a group of the job. Each allocation that counts for the
// group is in one of its lists.
type group struct {
	*planner
	spec    *api.TaskGroup
	name    string
	rolling *api.UpdateStrategy // nil if all allocations may change at once
	updates *api.DesiredUpdates

	live     []*api.Allocation // running, or failed and not replaced
	later    []*delayedAlloc   // failed, with a later replacement; also in live or canaries
	canaries []*api.Allocation // canaries of the deployment that are not promoted
	migrate  []*api.Allocation // a user or a drain has requested a replacement
	now      []*api.Allocation // failed, replaced in this plan
	done     []*api.Allocation // completed work

	hadVersion bool // an allocation of the current version existed before this plan
	placed     int
}

func (p *planner) group(spec *api.TaskGroup, allocs []*api.Allocation) {
	g := &group{planner: p, spec: spec, name: *spec.Name, updates: p.updatesOf(*spec.Name)}
	if u := spec.Update; !batchLike(p.Job) && u != nil && u.MaxParallel != nil && *u.MaxParallel > 0 {
		g.rolling = u
	}
	for _, a := range allocs {
		g.sort(a)
	}
	g.dedupe()
	g.scaleDown()
	inPlace, destroy := g.split()
	g.deploy(len(inPlace)+len(destroy) > 0, len(destroy) > 0)

	for _, a := range inPlace {
		g.updateInPlace(a)
	}
	g.placeCanaries(destroy)
	g.replaceMoved()
	g.replaceFailed()
	g.fill()
	destroyed := g.destroy(destroy)
	g.delay()
	g.updates.Ignore = uint64(len(g.live) + len(g.canaries) + len(g.done) - len(inPlace) - destroyed)
}

func batchLike(job *api.Job) bool {
	return *job.Type == api.JobTypeBatch || *job.Type == api.JobTypeSysbatch
}

// sort adds an allocation to the list to which it belongs.
func (g *group) sort(a *api.Allocation) {
	g.hadVersion = g.hadVersion || g.current(a)
	switch terminal := model.ClientTerminal(a); {
	case stoppedForGood(a):
		if !terminal && a.DesiredStatus == api.AllocDesiredStatusRun {
			g.stop(a, model.AllocMigrating)
			g.updates.Stop++
		}
		if g.current(a) {
			g.done = append(g.done, a)
		}
	case !hasPlace(a):
		// The allocation is stopping or has been replaced.
	case isCanary(a) && !g.isNeededCanary(a):
		if !terminal {
			g.stopUnneeded(a)
		}
	case terminal && batchLike(g.Job) && !g.current(a):
	case terminal:
		g.sortTerminal(a)
	case shouldMigrate(a):
		g.migrate = append(g.migrate, a)
	case isCanary(a):
		g.canaries = append(g.canaries, a)
	default:
		g.live = append(g.live, a)
	}
}

func (g *group) sortTerminal(a *api.Allocation) {
	switch terminalActions[*g.Job.Type][a.ClientStatus] {
	case refill:
	case counts:
		g.done = append(g.done, a)
	case retry:
		if a.DesiredTransition.ShouldMigrate() {
			g.migrate = append(g.migrate, a)
			return
		}
		at, ok := g.rescheduleTime(a)
		switch {
		case ok && at.Sub(g.Now) <= rescheduleWindow:
			g.now = append(g.now, a)
			return
		case ok:
			g.later = append(g.later, &delayedAlloc{a, at})
		}
		if isCanary(a) {
			g.canaries = append(g.canaries, a)
		} else {
			g.live = append(g.live, a)
		}
	}
}

// hasPlace reports whether an allocation is desired to run and has no replacement.
func hasPlace(a *api.Allocation) bool {
	return a.DesiredStatus == api.AllocDesiredStatusRun && a.NextAllocation == ""
}

func isCanary(a *api.Allocation) bool {
	return a.DeploymentStatus != nil && a.DeploymentStatus.Canary
}

// isNeededCanary reports whether a canary belongs to the current deployment and is still
// needed.
func (g *group) isNeededCanary(a *api.Allocation) bool {
	d := g.deployment
	if d == nil || a.DeploymentID != d.ID || !model.DeploymentActive(d) {
		return false
	}
	state := d.TaskGroups[g.name]
	return state != nil && !state.Promoted
}

// stoppedForGood reports whether a user has stopped an allocation without a
// replacement.
func stoppedForGood(a *api.Allocation) bool {
	return a.DesiredTransition.ShouldDisableMigrationPlacement() && a.NextAllocation == ""
}

// shouldMigrate reports whether a replacement of an allocation was requested.
func shouldMigrate(a *api.Allocation) bool {
	t := a.DesiredTransition
	return t.ShouldMigrate() || t.Reschedule != nil && *t.Reschedule
}

// rescheduleTime returns when a failed allocation must be replaced, or false if it
// is not replaced.
func (g *group) rescheduleTime(a *api.Allocation) (time.Time, bool) {
	t := a.DesiredTransition
	if t.ForceReschedule != nil && *t.ForceReschedule || a.FollowupEvalID != "" && a.FollowupEvalID == g.Eval.ID {
		return g.Now, true
	}
	if d := g.deployment; d != nil && a.DeploymentID == d.ID {
		released := t.Reschedule != nil && *t.Reschedule
		if d.Status != api.DeploymentStatusSuccessful && (!model.DeploymentActive(d) || d.Status == api.DeploymentStatusPaused || !released) {
			return time.Time{}, false
		}
	}
	at, ok := model.NextReschedule(policyOf(a), a.RescheduleTracker, failedAt(a))
	if i := slices.IndexFunc(g.Evals, func(e *api.Evaluation) bool { return e.ID == a.FollowupEvalID && model.EvalActive(e) }); ok && i >= 0 {
		at = g.Evals[i].WaitUntil // not recomputed: the clock may have been stepped since the failure
	}
	return at, ok
}

// policyOf returns the reschedule policy of the version with which an allocation
// was placed.
func policyOf(a *api.Allocation) *api.ReschedulePolicy {
	if g := model.Group(a.Job, a.TaskGroup); g != nil {
		return g.ReschedulePolicy
	}
	return nil
}

// failedAt returns when the last task of an allocation ended. It is no later than
// the last change of the allocation, which forgetFuture keeps out of the future.
func failedAt(a *api.Allocation) time.Time {
	var last time.Time
	for _, t := range a.TaskStates {
		if t.FinishedAt.After(last) {
			last = t.FinishedAt
		}
	}
	if modified := time.Unix(0, a.ModifyTime); last.IsZero() || a.ModifyTime != 0 && last.After(modified) {
		return modified
	}
	return last
}

// stopUnneeded stops an allocation that is no longer needed.
func (g *group) stopUnneeded(a *api.Allocation) {
	g.stop(a, model.AllocNotNeeded)
	g.updates.Stop++
}

// dedupe keeps one allocation of each name. Two exist when a canary was promoted.
func (g *group) dedupe() {
	best := make(map[string]*api.Allocation, len(g.live))
	n := 0
	for _, list := range [][]*api.Allocation{g.live, g.migrate, g.now} {
		for _, a := range list {
			if isCanary(a) {
				continue
			}
			n++
			if b := best[a.Name]; b == nil || g.isBetter(a, b) {
				best[a.Name] = a
			}
		}
	}
	if len(best) < n {
		g.remove(func(a *api.Allocation) bool { return !isCanary(a) && best[a.Name] != a })
	}
}

// remove stops the allocations that lost selects, also failed ones, so that no
// later plan replaces them.
func (g *group) remove(lost func(*api.Allocation) bool) {
	for _, list := range []*[]*api.Allocation{&g.live, &g.migrate, &g.now} {
		*list = slices.DeleteFunc(*list, func(a *api.Allocation) bool {
			if lost(a) {
				g.stopUnneeded(a)
				return true
			}
			return false
		})
	}
	g.later = slices.DeleteFunc(g.later, func(l *delayedAlloc) bool { return !isCanary(l.alloc) && lost(l.alloc) })
}

func (g *group) isBetter(a, b *api.Allocation) bool {
	if x, y := model.Terminal(a), model.Terminal(b); x != y {
		return y
	}
	if x, y := g.current(a), g.current(b); x != y {
		return x
	}
	return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.CreateTime, b.CreateTime), strings.Compare(a.ID, b.ID)) > 0
}

// scaleDown stops the allocations above the group's count, the highest index first.
func (g *group) scaleDown() {
	var all []*api.Allocation
	for _, list := range [][]*api.Allocation{g.live, g.migrate, g.now, g.done} {
		for _, a := range list {
			if !isCanary(a) {
				all = append(all, a)
			}
		}
	}
	excess := len(all) - *g.spec.Count
	if excess <= 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b *api.Allocation) int { return cmp.Compare(indexOf(b), indexOf(a)) })
	cut := make(map[*api.Allocation]bool, excess)
	for _, a := range all[:excess] {
		cut[a] = true
	}
	g.remove(func(a *api.Allocation) bool { return cut[a] })
	g.done = slices.DeleteFunc(g.done, func(a *api.Allocation) bool { return cut[a] })
}

// indexOf returns the index at the end of an allocation's name.
func indexOf(a *api.Allocation) int {
	open := strings.LastIndexByte(a.Name, '[')
	if n, err := strconv.Atoi(strings.TrimSuffix(a.Name[open+1:], "]")); err == nil {
		return n
	}
	return 0
}

// split returns the allocations of older versions, sorted by name: those that can
// be updated in place, and those that must be replaced.
func (g *group) split() (inPlace, destroy []*api.Allocation) {
	for _, a := range g.live {
		switch {
		case g.current(a):
		case model.Terminal(a) || g.destructive(a):
			destroy = append(destroy, a)
		default:
			inPlace = append(inPlace, a)
		}
	}
	byName(inPlace)
	byName(destroy)
	return inPlace, destroy
}

func byName(allocs []*api.Allocation) {
	slices.SortStableFunc(allocs, func(a, b *api.Allocation) int { return cmp.Compare(indexOf(a), indexOf(b)) })
}

func (g *group) updateInPlace(a *api.Allocation) {
	c := g.change(a)
	c.Job = g.Job
	c.EvalID = g.Eval.ID
	c.DeploymentID, c.DeploymentStatus = "", nil
	if state := g.activeState(); state != nil {
		c.DeploymentID = g.deployment.ID
		state.PlacedAllocs++
		g.armDeadline(state)
	}
	g.updates.InPlaceUpdate++
}

// placeCanaries places canaries of the new version beside the allocations that they
// will replace.
func (g *group) placeCanaries(destroy []*api.Allocation) {
	if !g.canarying() || g.frozen() {
		return
	}
	taken := make(map[int]bool)
	for _, a := range slices.Concat(g.canaries, g.canariesOf(g.migrate), g.canariesOf(g.now)) {
		taken[indexOf(a)] = true
	}
	missing := g.activeState().DesiredCanaries - len(taken)
	var indexes []int
	for _, a := range destroy {
		if i := indexOf(a); !taken[i] {
			taken[i] = true
			indexes = append(indexes, i)
		}
	}
	for _, a := range g.live {
		taken[indexOf(a)] = true
	}
	for i := 0; len(indexes) < missing; i++ {
		if !taken[i] {
			indexes = append(indexes, i)
		}
	}
	for _, i := range indexes[:max(missing, 0)] {
		g.updates.Canary++
		if a := g.place(g.Job, allocName(g.Job, g.spec, i), nil, g.name); a != nil {
			g.markCanary(a)
		}
	}
}

func (g *group) canariesOf(allocs []*api.Allocation) []*api.Allocation {
	return slices.DeleteFunc(slices.Clone(allocs), func(a *api.Allocation) bool { return !isCanary(a) })
}

func (g *group) markCanary(a *api.Allocation) {
	a.DeploymentStatus = &api.AllocDeploymentStatus{Canary: true}
	state := g.stateOf(g.name)
	state.PlacedCanaries = append(state.PlacedCanaries, a.ID)
}

// versionFor returns the job version for the replacement of an allocation. While
// the current version is unproven, an allocation of an older version is replaced by
// the same version.
func (g *group) versionFor(a *api.Allocation) *api.Job {
	d := g.deployment
	unproven := g.canarying() || d != nil && d.Status == api.DeploymentStatusFailed
	if unproven && !g.current(a) && model.Group(a.Job, g.name) != nil {
		return a.Job
	}
	return g.Job
}

// replaceMoved replaces the allocations in g.migrate.
func (g *group) replaceMoved() {
	byName(g.migrate)
	for _, a := range g.migrate {
		description := model.AllocMigrating
		if !a.DesiredTransition.ShouldMigrate() {
			description = ""
		}
		g.updates.Migrate++
		g.stop(a, description)
		if b := g.place(g.versionFor(a), a.Name, a, g.name); b != nil {
			b.RescheduleTracker = a.RescheduleTracker
			g.placed++
			if isCanary(a) {
				g.markCanary(b)
			}
		}
	}
}

func (g *group) replaceFailed() {
	byName(g.now)
	for _, a := range g.now {
		g.updates.RescheduleNow++
		b := g.place(g.versionFor(a), a.Name, a, g.name)
		if b == nil {
			continue
		}
		b.RescheduleTracker = model.ExtendTracker(policyOf(a), a.RescheduleTracker, api.RescheduleEvent{
			RescheduleTime: g.Now.UnixNano(),
			PrevAllocID:    a.ID,
			PrevNodeID:     a.NodeID,
		})
		g.stop(a, model.AllocRescheduled)
		g.placed++
		if isCanary(a) {
			g.markCanary(b)
		}
	}
}

// delay requests an evaluation at the time of each later replacement.
func (g *group) delay() {
	for _, l := range g.later {
		if g.replacedHere(l.alloc) {
			continue
		}
		g.updates.RescheduleLater++
		if !slices.ContainsFunc(g.Evals, func(e *api.Evaluation) bool {
			return e.ID == l.alloc.FollowupEvalID && model.EvalActive(e)
		}) {
			g.planner.later = append(g.planner.later, l)
		}
	}
}

// replacedHere reports whether this plan has replaced the allocation.
func (g *group) replacedHere(a *api.Allocation) bool {
	c := g.planner.updates[a.ID]
	return c != nil && c.NextAllocation != ""
}

// fill places the missing allocations at the lowest free indexes.
func (g *group) fill() {
	missing := *g.spec.Count - len(g.live) - len(g.now) - len(g.migrate) - len(g.done)
	missing += len(g.canariesOf(g.now)) + len(g.canariesOf(g.migrate))
	// System jobs are not held back: each evaluation replaces failed allocations.
	held := g.rolling != nil && *g.Job.Type != api.JobTypeSystem && (g.frozen() || g.canarying())
	if missing <= 0 || held {
		return
	}
	taken := make(map[int]bool, *g.spec.Count)
	for _, list := range [][]*api.Allocation{g.live, g.now, g.migrate, g.done} {
		for _, a := range list {
			taken[indexOf(a)] = true
		}
	}
	for i := 0; missing > 0; i++ {
		if taken[i] {
			continue
		}
		missing--
		g.updates.Place++
		if g.place(g.Job, allocName(g.Job, g.spec, i), nil, g.name) != nil {
			g.placed++
		}
	}
}

// destroy replaces as many allocations of older versions as the budget allows, and
// returns their number.
func (g *group) destroy(old []*api.Allocation) int {
	n := min(g.budget(len(old)), len(old))
	for _, a := range old[:n] {
		g.updates.DestructiveUpdate++
		if g.place(g.Job, a.Name, a, g.name) != nil {
			g.stop(a, model.AllocUpdating)
		}
	}
	return n
}

// budget returns how many allocations may be replaced now.
func (g *group) budget(all int) int {
	if g.rolling == nil {
		return all
	}
	if g.frozen() || g.canarying() {
		return 0
	}
	n := *g.rolling.MaxParallel - g.placed
	for _, a := range g.live {
		if g.deployment == nil || a.DeploymentID != g.deployment.ID {
			continue
		}
		switch s := a.DeploymentStatus; {
		case s == nil || s.Healthy == nil:
			n--
		case !*s.Healthy:
			return 0
		}
	}
	return max(n, 0)
}
