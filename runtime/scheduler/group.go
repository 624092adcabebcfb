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

// terminalAction is what becomes of the place of an allocation that is through, but that
// nobody has told to stop.
type terminalAction uint8

const (
	refill terminalAction = iota // the place is empty: the next plan fills it
	counts                       // the work is done
	retry                        // the reschedule policy says
)

// terminalActions is the whole difference between the types of jobs when allocations end.
// A batch or sysbatch allocation of an older version has no place at all.
var terminalActions = map[string]map[string]terminalAction{
	api.JobTypeService:  {api.AllocClientStatusComplete: refill, api.AllocClientStatusFailed: retry, api.AllocClientStatusLost: refill},
	api.JobTypeBatch:    {api.AllocClientStatusComplete: counts, api.AllocClientStatusFailed: retry, api.AllocClientStatusLost: refill},
	api.JobTypeSystem:   {api.AllocClientStatusComplete: refill, api.AllocClientStatusFailed: refill, api.AllocClientStatusLost: refill},
	api.JobTypeSysbatch: {api.AllocClientStatusComplete: counts, api.AllocClientStatusFailed: counts, api.AllocClientStatusLost: refill},
}

// group is the plan for one group that the job has. Each allocation that has a
// place is in one of its lists.
type group struct {
	*planner
	spec    *api.TaskGroup
	name    string
	rolling *api.UpdateStrategy // nil if all may change at once
	updates *api.DesiredUpdates

	live     []*api.Allocation // run, or have failed and stay so
	later    []*delayed        // have failed, and are replaced at some time; in live too
	canaries []*api.Allocation // of the deployment, not promoted
	migrate  []*api.Allocation // are to be replaced because somebody said so
	now      []*api.Allocation // have failed, and are replaced now
	done     []*api.Allocation // have done their work

	hadVersion bool // an allocation of this version was there before
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
	g.cut()
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

// sort puts an allocation into the list where it belongs.
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
		// It is on its way out, or has been replaced.
	case isCanary(a) && !g.ours(a):
		if !terminal {
			g.drop(a)
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
			g.later = append(g.later, &delayed{a, at})
		}
		if isCanary(a) {
			g.canaries = append(g.canaries, a)
		} else {
			g.live = append(g.live, a)
		}
	}
}

// hasPlace tells whether an allocation is wanted, and nothing has replaced it.
func hasPlace(a *api.Allocation) bool {
	return a.DesiredStatus == api.AllocDesiredStatusRun && a.NextAllocation == ""
}

func isCanary(a *api.Allocation) bool {
	return a.DeploymentStatus != nil && a.DeploymentStatus.Canary
}

// ours tells whether a canary belongs to the deployment, which still needs it.
func (g *group) ours(a *api.Allocation) bool {
	d := g.deployment
	if d == nil || a.DeploymentID != d.ID || !model.DeploymentActive(d) {
		return false
	}
	state := d.TaskGroups[g.name]
	return state != nil && !state.Promoted
}

// stoppedForGood tells whether somebody has stopped an allocation for good.
func stoppedForGood(a *api.Allocation) bool {
	return a.DesiredTransition.ShouldDisableMigrationPlacement() && a.NextAllocation == ""
}

// shouldMigrate tells whether somebody has asked for another allocation instead.
func shouldMigrate(a *api.Allocation) bool {
	t := a.DesiredTransition
	return t.ShouldMigrate() || t.Reschedule != nil && *t.Reschedule
}

// rescheduleTime says when a failed allocation is to be replaced; false means
// that it stays as it is.
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
		at = g.Evals[i].WaitUntil // the clock may have been stepped since the failure
	}
	return at, ok
}

// policyOf returns the policy that an allocation was placed under.
func policyOf(a *api.Allocation) *api.ReschedulePolicy {
	if g := model.Group(a.Job, a.TaskGroup); g != nil {
		return g.ReschedulePolicy
	}
	return nil
}

// failedAt is when the last task of an allocation ended. It was reported no later
// than the last change of the allocation, which forgetFuture keeps out of the future.
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

// drop stops an allocation that is not needed any more.
func (g *group) drop(a *api.Allocation) {
	g.stop(a, model.AllocNotNeeded)
	g.updates.Stop++
}

// dedupe leaves one allocation of each name. Two are there when a canary has
// been promoted.
func (g *group) dedupe() {
	best := make(map[string]*api.Allocation, len(g.live))
	n := 0
	for _, list := range [][]*api.Allocation{g.live, g.migrate, g.now} {
		for _, a := range list {
			if isCanary(a) {
				continue
			}
			n++
			if b := best[a.Name]; b == nil || g.better(a, b) {
				best[a.Name] = a
			}
		}
	}
	if len(best) < n {
		g.remove(func(a *api.Allocation) bool { return !isCanary(a) && best[a.Name] != a })
	}
}

// remove stops allocations that have lost their place, those that have failed
// included: nothing must call them back to life.
func (g *group) remove(lost func(*api.Allocation) bool) {
	for _, list := range []*[]*api.Allocation{&g.live, &g.migrate, &g.now} {
		*list = slices.DeleteFunc(*list, func(a *api.Allocation) bool {
			if lost(a) {
				g.drop(a)
				return true
			}
			return false
		})
	}
	g.later = slices.DeleteFunc(g.later, func(l *delayed) bool { return !isCanary(l.alloc) && lost(l.alloc) })
}

func (g *group) better(a, b *api.Allocation) bool {
	if x, y := model.Terminal(a), model.Terminal(b); x != y {
		return y
	}
	if x, y := g.current(a), g.current(b); x != y {
		return x
	}
	return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.CreateTime, b.CreateTime), strings.Compare(a.ID, b.ID)) > 0
}

// cut stops what is more than the group shall have, the highest index first.
func (g *group) cut() {
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

// indexOf reads the number at the end of an allocation's name.
func indexOf(a *api.Allocation) int {
	open := strings.LastIndexByte(a.Name, '[')
	if n, err := strconv.Atoi(strings.TrimSuffix(a.Name[open+1:], "]")); err == nil {
		return n
	}
	return 0
}

// split finds those of older versions: the ones that can be updated in place,
// and the ones that must be replaced, both in the order of their names.
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

// placeCanaries puts allocations of the new version beside those of the old one
// that they will replace.
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

// versionFor is the version that replaces an allocation. While a new one has not
// proven itself, the old one is replaced by its like.
func (g *group) versionFor(a *api.Allocation) *api.Job {
	d := g.deployment
	unproven := g.canarying() || d != nil && d.Status == api.DeploymentStatusFailed
	if unproven && !g.current(a) && model.Group(a.Job, g.name) != nil {
		return a.Job
	}
	return g.Job
}

// replaceMoved replaces what somebody wants to be replaced.
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

// delay asks for an evaluation at the time of each later replacement.
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

// replacedHere tells whether the plan has replaced the allocation already.
func (g *group) replacedHere(a *api.Allocation) bool {
	c := g.planner.updates[a.ID]
	return c != nil && c.NextAllocation != ""
}

// fill places what is missing, under the lowest names that are free.
func (g *group) fill() {
	missing := *g.spec.Count - len(g.live) - len(g.now) - len(g.migrate) - len(g.done)
	missing += len(g.canariesOf(g.now)) + len(g.canariesOf(g.migrate))
	// A system job is not held back: each evaluation replaces what has failed.
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

// destroy replaces allocations of older versions, as many as may be replaced at
// once, and returns their number.
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

// budget is how many allocations may be replaced now.
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
