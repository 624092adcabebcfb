package scheduler

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// terminalAllocAction is how a plan treats a terminal allocation with desired status run.
type terminalAllocAction uint8

const (
	replaceAlloc           terminalAllocAction = iota // the plan places a new allocation with the same index
	countTerminalAsDone                               // the allocation counts as completed work
	followReschedulePolicy                            // the reschedule policy decides whether and when it is replaced
)

// terminalAllocActions maps job type and client status to the action for a terminal allocation. It does not apply to batch and
// sysbatch allocations with an older job version, which plans ignore.
var terminalAllocActions = map[string]map[string]terminalAllocAction{
	api.JobTypeService:  {api.AllocClientStatusComplete: replaceAlloc, api.AllocClientStatusFailed: followReschedulePolicy, api.AllocClientStatusLost: replaceAlloc},
	api.JobTypeBatch:    {api.AllocClientStatusComplete: countTerminalAsDone, api.AllocClientStatusFailed: followReschedulePolicy, api.AllocClientStatusLost: replaceAlloc},
	api.JobTypeSystem:   {api.AllocClientStatusComplete: replaceAlloc, api.AllocClientStatusFailed: replaceAlloc, api.AllocClientStatusLost: replaceAlloc},
	api.JobTypeSysbatch: {api.AllocClientStatusComplete: countTerminalAsDone, api.AllocClientStatusFailed: countTerminalAsDone, api.AllocClientStatusLost: replaceAlloc},
}

// groupPlan is a plan's part for one job group. classifyOrStopAlloc puts each allocation that counts for the group into one of
// the lists.
// It is large because a group changes the plan, too.
type groupPlan struct {
	*planner
	taskGroup           *api.TaskGroup
	groupName           string
	rollingUpdate       *api.UpdateStrategy // nil if all allocations may change at once
	groupDesiredUpdates *api.DesiredUpdates

	liveOrUnreplacedAllocs []*api.Allocation // allocations that run, or have failed and are not replaced
	rescheduleLater        []*delayedAlloc   // failed allocations for a later plan to replace; liveOrUnreplacedAllocs or unpromotedCanaries has them too
	unpromotedCanaries     []*api.Allocation // the deployment's unpromoted canaries
	migratingAllocs        []*api.Allocation // allocations for which a user or a drain has requested a replacement
	rescheduleNow          []*api.Allocation // failed allocations for this plan to replace
	completedAllocs        []*api.Allocation // terminal allocations without replacement that count as completed work

	hadAllocOfCurrentVersion bool // an allocation with the current version existed before this plan
	// placementsBeforeRollingUpdate counts this plan's placements before replaceOutdatedAllocs. They use up max_parallel.
	placementsBeforeRollingUpdate int
}

func (p *planner) planGroup(spec *api.TaskGroup, allocs []*api.Allocation) {
	g := &groupPlan{planner: p, taskGroup: spec, groupName: *spec.Name, groupDesiredUpdates: p.desiredUpdatesOf(*spec.Name)}
	if u := spec.Update; !isBatchOrSysbatch(p.Job) && u != nil && u.MaxParallel != nil && *u.MaxParallel > 0 {
		g.rollingUpdate = u
	}
	for _, a := range allocs {
		g.classifyOrStopAlloc(a)
	}
	g.stopDuplicateAllocs()
	g.stopAllocsAboveCount()
	inPlace, destroy := g.splitOutdatedAllocs()
	g.addGroupToNewDeploymentIfNeeded(len(inPlace)+len(destroy) > 0, len(destroy) > 0)

	for _, a := range inPlace {
		g.updateInPlace(a)
	}
	g.placeMissingCanaries(destroy)
	g.replaceMigratingAllocs()
	g.replaceFailedAllocs()
	g.placeMissingAllocs()
	destroyed := g.replaceOutdatedAllocs(destroy)
	g.requestFollowUpEvals()
	g.groupDesiredUpdates.Ignore = uint64(len(g.liveOrUnreplacedAllocs) + len(g.unpromotedCanaries) + len(g.completedAllocs) - len(inPlace) - destroyed)
}

func isBatchOrSysbatch(job *api.Job) bool {
	return *job.Type == api.JobTypeBatch || *job.Type == api.JobTypeSysbatch
}

// classifyOrStopAlloc adds an allocation to one of groupPlan's lists.
func (g *groupPlan) classifyOrStopAlloc(a *api.Allocation) {
	g.hadAllocOfCurrentVersion = g.hadAllocOfCurrentVersion || g.hasCurrentJobVersion(a)
	switch terminal := a.ClientTerminalStatus(); {
	case isStoppedWithoutReplacement(a):
		if !terminal && a.DesiredStatus == api.AllocDesiredStatusRun {
			g.stopAlloc(a, model.AllocMigrating)
			g.groupDesiredUpdates.Stop++
		}
		if g.hasCurrentJobVersion(a) {
			g.completedAllocs = append(g.completedAllocs, a)
		}
	case !isDesiredRunAndUnreplaced(a):
		// The allocation is ignored: it is stopping, or it has been replaced.
	case isCanary(a) && !g.isNeededCanary(a):
		if !terminal {
			g.stopUnneededAlloc(a)
		}
	case terminal && isBatchOrSysbatch(g.Job) && !g.hasCurrentJobVersion(a):
	case terminal:
		g.classifyTerminalAlloc(a)
	case isReplacementRequested(a):
		g.migratingAllocs = append(g.migratingAllocs, a)
	case isCanary(a):
		g.unpromotedCanaries = append(g.unpromotedCanaries, a)
	default:
		g.liveOrUnreplacedAllocs = append(g.liveOrUnreplacedAllocs, a)
	}
}

func (g *groupPlan) classifyTerminalAlloc(a *api.Allocation) {
	switch terminalAllocActions[*g.Job.Type][a.ClientStatus] {
	case replaceAlloc:
	case countTerminalAsDone:
		g.completedAllocs = append(g.completedAllocs, a)
	case followReschedulePolicy:
		if a.DesiredTransition.ShouldMigrate() {
			g.migratingAllocs = append(g.migratingAllocs, a)
			return
		}
		at, ok := g.rescheduleTime(a)
		switch {
		case ok && at.Sub(g.Now) <= rescheduleBatchWindow:
			g.rescheduleNow = append(g.rescheduleNow, a)
			return
		case ok:
			g.rescheduleLater = append(g.rescheduleLater, &delayedAlloc{a, at})
		}
		if isCanary(a) {
			g.unpromotedCanaries = append(g.unpromotedCanaries, a)
		} else {
			g.liveOrUnreplacedAllocs = append(g.liveOrUnreplacedAllocs, a)
		}
	}
}

// isDesiredRunAndUnreplaced reports whether an allocation is desired to run and has no replacement.
func isDesiredRunAndUnreplaced(a *api.Allocation) bool {
	return a.DesiredStatus == api.AllocDesiredStatusRun && a.NextAllocation == ""
}

func isCanary(a *api.Allocation) bool {
	return a.DeploymentStatus != nil && a.DeploymentStatus.Canary
}

// isNeededCanary reports whether a canary belongs to the active deployment and its group is not
// promoted yet.
func (g *groupPlan) isNeededCanary(a *api.Allocation) bool {
	d := g.currentDeployment
	if d == nil || a.DeploymentID != d.ID || !model.DeploymentActive(d) {
		return false
	}
	state := d.TaskGroups[g.groupName]
	return state != nil && !state.Promoted
}

// isStoppedWithoutReplacement reports whether a user has stopped an allocation for good, without a replacement.
func isStoppedWithoutReplacement(a *api.Allocation) bool {
	return a.DesiredTransition.ShouldDisableMigrationPlacement() && a.NextAllocation == ""
}

// isReplacementRequested reports whether a user or a drain has requested an allocation's replacement.
func isReplacementRequested(a *api.Allocation) bool {
	t := a.DesiredTransition
	return t.ShouldMigrate() || t.Reschedule != nil && *t.Reschedule
}

// rescheduleTime returns the time at which a failed allocation must be replaced, or false if it must
// not be replaced.
func (g *groupPlan) rescheduleTime(a *api.Allocation) (at time.Time, mustReplace bool) {
	t := a.DesiredTransition
	if t.ForceReschedule != nil && *t.ForceReschedule || a.FollowupEvalID != "" && a.FollowupEvalID == g.Eval.ID {
		return g.Now, true
	}
	if d := g.currentDeployment; d != nil && a.DeploymentID == d.ID {
		released := t.Reschedule != nil && *t.Reschedule
		if d.Status != api.DeploymentStatusSuccessful && (!model.DeploymentActive(d) || d.Status == api.DeploymentStatusPaused || !released) {
			return time.Time{}, false
		}
	}
	at, ok := model.NextReschedule(reschedulePolicyOf(a), a.RescheduleTracker, lastTaskFinishTime(a))
	if i := slices.IndexFunc(g.JobEvals, func(e *api.Evaluation) bool { return e.ID == a.FollowupEvalID && model.IsEvalPendingOrBlocked(e) }); ok && i >= 0 {
		at = g.JobEvals[i].WaitUntil // clock steps since the failure have moved the stored time, see moveDeadlines
	}
	return at, ok
}

// reschedulePolicyOf returns the reschedule policy in an allocation's job version, or nil.
func reschedulePolicyOf(a *api.Allocation) *api.ReschedulePolicy {
	if g := model.FindGroup(a.Job, a.TaskGroup); g != nil {
		return g.ReschedulePolicy
	}
	return nil
}

// lastTaskFinishTime returns when an allocation's last task ended. The result is at most the allocation's modification time,
// which is not in the future: replaceFutureTimes replaces times in the future.
func lastTaskFinishTime(a *api.Allocation) time.Time {
	var lastFinish time.Time
	for _, t := range a.TaskStates {
		if t.FinishedAt.After(lastFinish) {
			lastFinish = t.FinishedAt
		}
	}
	if modified := time.Unix(0, a.ModifyTime); lastFinish.IsZero() || a.ModifyTime != 0 && lastFinish.After(modified) {
		return modified
	}
	return lastFinish
}

// stopUnneededAlloc stops an unneeded allocation.
func (g *groupPlan) stopUnneededAlloc(a *api.Allocation) {
	g.stopAlloc(a, model.AllocNotNeeded)
	g.groupDesiredUpdates.Stop++
}

// stopDuplicateAllocs stops all but one allocation with the same name. After a canary's promotion, the canary and the older
// allocation have the same name.
func (g *groupPlan) stopDuplicateAllocs() {
	best := make(map[string]*api.Allocation, len(g.liveOrUnreplacedAllocs))
	n := 0
	for _, list := range [][]*api.Allocation{g.liveOrUnreplacedAllocs, g.migratingAllocs, g.rescheduleNow} {
		for _, a := range list {
			if isCanary(a) {
				continue
			}
			n++
			if b := best[a.Name]; b == nil || g.isPreferredToKeep(a, b) {
				best[a.Name] = a
			}
		}
	}
	if len(best) < n {
		g.stopAllocsIf(func(a *api.Allocation) bool { return !isCanary(a) && best[a.Name] != a })
	}
}

// stopAllocsIf stops the allocations for which unneeded returns true, and removes them from groupPlan's lists. It also stops
// failed allocations, so that no later plan replaces them.
func (g *groupPlan) stopAllocsIf(unneeded func(*api.Allocation) bool) {
	for _, list := range []*[]*api.Allocation{&g.liveOrUnreplacedAllocs, &g.migratingAllocs, &g.rescheduleNow} {
		*list = slices.DeleteFunc(*list, func(a *api.Allocation) bool {
			if unneeded(a) {
				g.stopUnneededAlloc(a)
				return true
			}
			return false
		})
	}
	g.rescheduleLater = slices.DeleteFunc(g.rescheduleLater, func(l *delayedAlloc) bool { return !isCanary(l.alloc) && unneeded(l.alloc) })
}

// isPreferredToKeep reports whether stopDuplicateAllocs keeps a rather than b: it prefers allocations that are not terminal,
// then the current job version, then the newest.
func (g *groupPlan) isPreferredToKeep(a, b *api.Allocation) bool {
	if x, y := model.AllocTerminal(a), model.AllocTerminal(b); x != y {
		return y
	}
	if x, y := g.hasCurrentJobVersion(a), g.hasCurrentJobVersion(b); x != y {
		return x
	}
	return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.CreateTime, b.CreateTime), strings.Compare(a.ID, b.ID)) > 0
}

// stopAllocsAboveCount stops as many allocations as the group has above its count: those with the highest indexes.
func (g *groupPlan) stopAllocsAboveCount() {
	var all []*api.Allocation
	for _, list := range [][]*api.Allocation{g.liveOrUnreplacedAllocs, g.migratingAllocs, g.rescheduleNow, g.completedAllocs} {
		for _, a := range list {
			if !isCanary(a) {
				all = append(all, a)
			}
		}
	}
	excess := len(all) - *g.taskGroup.Count
	if excess <= 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b *api.Allocation) int { return cmp.Compare(allocIndex(b), allocIndex(a)) })
	cut := make(map[*api.Allocation]bool, excess)
	for _, a := range all[:excess] {
		cut[a] = true
	}
	g.stopAllocsIf(func(a *api.Allocation) bool { return cut[a] })
	g.completedAllocs = slices.DeleteFunc(g.completedAllocs, func(a *api.Allocation) bool { return cut[a] })
}

// allocIndex returns the index at the end of an allocation's name, such as 3 in "web.cache[3]".
func allocIndex(a *api.Allocation) int {
	open := strings.LastIndexByte(a.Name, '[')
	if n, err := strconv.Atoi(strings.TrimSuffix(a.Name[open+1:], "]")); err == nil {
		return n
	}
	return 0
}

// splitOutdatedAllocs returns the allocations with older job versions, each list sorted by index: the ones it can update in
// place, and the ones it must replace.
func (g *groupPlan) splitOutdatedAllocs() (inPlace, destroy []*api.Allocation) {
	for _, a := range g.liveOrUnreplacedAllocs {
		switch {
		case g.hasCurrentJobVersion(a):
		case model.AllocTerminal(a) || g.needsDestructiveUpdate(a):
			destroy = append(destroy, a)
		default:
			inPlace = append(inPlace, a)
		}
	}
	sortByAllocIndex(inPlace)
	sortByAllocIndex(destroy)
	return inPlace, destroy
}

func sortByAllocIndex(allocs []*api.Allocation) {
	slices.SortStableFunc(allocs, func(a, b *api.Allocation) int { return cmp.Compare(allocIndex(a), allocIndex(b)) })
}

// updateInPlace gives a running allocation the current job version.
func (g *groupPlan) updateInPlace(a *api.Allocation) {
	c := g.editableCopyOfAlloc(a)
	c.Job = g.Job
	c.EvalID = g.Eval.ID
	c.DeploymentID, c.DeploymentStatus = "", nil
	if state := g.activeDeploymentState(); state != nil {
		c.DeploymentID = g.currentDeployment.ID
		state.PlacedAllocs++
		g.setProgressDeadlineIfUnset(state)
	}
	g.groupDesiredUpdates.InPlaceUpdate++
}

// placeMissingCanaries places the new job version's missing canaries, at first with the names of outdated allocations; these
// continue to run until the promotion.
func (g *groupPlan) placeMissingCanaries(outdated []*api.Allocation) {
	if !g.hasUnpromotedCanaries() || g.isDeploymentPausedOrFailed() {
		return
	}
	taken := make(map[int]bool)
	for _, a := range slices.Concat(g.unpromotedCanaries, g.onlyCanaries(g.migratingAllocs), g.onlyCanaries(g.rescheduleNow)) {
		taken[allocIndex(a)] = true
	}
	missing := g.activeDeploymentState().DesiredCanaries - len(taken)
	var canaryIndexes []int
	for _, a := range outdated {
		if i := allocIndex(a); !taken[i] {
			taken[i] = true
			canaryIndexes = append(canaryIndexes, i)
		}
	}
	for _, a := range g.liveOrUnreplacedAllocs {
		taken[allocIndex(a)] = true
	}
	for i := 0; len(canaryIndexes) < missing; i++ {
		if !taken[i] {
			canaryIndexes = append(canaryIndexes, i)
		}
	}
	for _, i := range canaryIndexes[:max(missing, 0)] {
		g.groupDesiredUpdates.Canary++
		if a := g.placeAllocOrRecordFailure(g.Job, model.AllocName(g.Job, g.taskGroup, i), nil, g.groupName); a != nil {
			g.markCanary(a)
		}
	}
}

func (g *groupPlan) onlyCanaries(allocs []*api.Allocation) []*api.Allocation {
	return slices.DeleteFunc(slices.Clone(allocs), func(a *api.Allocation) bool { return !isCanary(a) })
}

func (g *groupPlan) markCanary(a *api.Allocation) {
	a.DeploymentStatus = &api.AllocDeploymentStatus{Canary: true}
	state := g.groupDeploymentState(g.groupName)
	state.PlacedCanaries = append(state.PlacedCanaries, a.ID)
}

// versionForReplacement returns the job version for an allocation's replacement: usually the current version. While the current
// version's canaries are not promoted, and after its deployment has failed, the replacement keeps the version of the replaced
// allocation.
func (g *groupPlan) versionForReplacement(a *api.Allocation) *api.Job {
	d := g.currentDeployment
	currentIsUnproven := g.hasUnpromotedCanaries() || d != nil && d.Status == api.DeploymentStatusFailed
	if currentIsUnproven && !g.hasCurrentJobVersion(a) && model.FindGroup(a.Job, g.groupName) != nil {
		return a.Job
	}
	return g.Job
}

// replaceMigratingAllocs replaces the allocations for which a user or a drain has requested a replacement.
func (g *groupPlan) replaceMigratingAllocs() {
	sortByAllocIndex(g.migratingAllocs)
	for _, a := range g.migratingAllocs {
		description := model.AllocMigrating
		if !a.DesiredTransition.ShouldMigrate() {
			description = ""
		}
		g.groupDesiredUpdates.Migrate++
		g.stopAlloc(a, description)
		if b := g.placeAllocOrRecordFailure(g.versionForReplacement(a), a.Name, a, g.groupName); b != nil {
			b.RescheduleTracker = a.RescheduleTracker
			g.placementsBeforeRollingUpdate++
			if isCanary(a) {
				g.markCanary(b)
			}
		}
	}
}

func (g *groupPlan) replaceFailedAllocs() {
	sortByAllocIndex(g.rescheduleNow)
	for _, a := range g.rescheduleNow {
		g.groupDesiredUpdates.RescheduleNow++
		b := g.placeAllocOrRecordFailure(g.versionForReplacement(a), a.Name, a, g.groupName)
		if b == nil {
			continue
		}
		b.RescheduleTracker = model.AppendRescheduleEvent(reschedulePolicyOf(a), a.RescheduleTracker, api.RescheduleEvent{
			RescheduleTime: g.Now.UnixNano(),
			PrevAllocID:    a.ID,
			PrevNodeID:     a.NodeID,
		})
		g.stopAlloc(a, model.AllocRescheduled)
		g.placementsBeforeRollingUpdate++
		if isCanary(a) {
			g.markCanary(b)
		}
	}
}

// requestFollowUpEvals makes the planner create follow-up evaluations for failed allocations that need a later replacement and
// have no pending follow-up evaluation.
func (g *groupPlan) requestFollowUpEvals() {
	for _, l := range g.rescheduleLater {
		if g.isReplacedByPlan(l.alloc) {
			continue
		}
		g.groupDesiredUpdates.RescheduleLater++
		if !slices.ContainsFunc(g.JobEvals, func(e *api.Evaluation) bool {
			return e.ID == l.alloc.FollowupEvalID && model.IsEvalPendingOrBlocked(e)
		}) {
			g.planner.delayedAllocs = append(g.planner.delayedAllocs, l)
		}
	}
}

// isReplacedByPlan reports whether this plan has placed the allocation's replacement.
func (g *groupPlan) isReplacedByPlan(a *api.Allocation) bool {
	c := g.planner.updatedAllocsByID[a.ID]
	return c != nil && c.NextAllocation != ""
}

// placeMissingAllocs places as many allocations as the group has below its count, at the lowest free indexes.
func (g *groupPlan) placeMissingAllocs() {
	missing := *g.taskGroup.Count - len(g.liveOrUnreplacedAllocs) - len(g.rescheduleNow) - len(g.migratingAllocs) - len(g.completedAllocs)
	missing += len(g.onlyCanaries(g.rescheduleNow)) + len(g.onlyCanaries(g.migratingAllocs))
	// A rolling update does not delay a system job's placements: each evaluation replaces its failed allocations.
	delayed := g.rollingUpdate != nil && *g.Job.Type != api.JobTypeSystem && (g.isDeploymentPausedOrFailed() || g.hasUnpromotedCanaries())
	if missing <= 0 || delayed {
		return
	}
	taken := make(map[int]bool, *g.taskGroup.Count)
	for _, list := range [][]*api.Allocation{g.liveOrUnreplacedAllocs, g.rescheduleNow, g.migratingAllocs, g.completedAllocs} {
		for _, a := range list {
			taken[allocIndex(a)] = true
		}
	}
	for i := 0; missing > 0; i++ {
		if taken[i] {
			continue
		}
		missing--
		g.groupDesiredUpdates.Place++
		if g.placeAllocOrRecordFailure(g.Job, model.AllocName(g.Job, g.taskGroup, i), nil, g.groupName) != nil {
			g.placementsBeforeRollingUpdate++
		}
	}
}

// replaceOutdatedAllocs replaces as many outdated allocations as the rolling update allows now. It returns the number of
// attempted replacements.
func (g *groupPlan) replaceOutdatedAllocs(outdated []*api.Allocation) (triedCount int) {
	n := min(g.replacementLimit(len(outdated)), len(outdated))
	for _, a := range outdated[:n] {
		g.groupDesiredUpdates.DestructiveUpdate++
		if g.placeAllocOrRecordFailure(g.Job, a.Name, a, g.groupName) != nil {
			g.stopAlloc(a, model.AllocUpdating)
		}
	}
	return n
}

// replacementLimit returns how many outdated allocations this plan may replace: all without a rolling update, otherwise
// max_parallel minus the allocations placed by this plan or with undecided health.
func (g *groupPlan) replacementLimit(outdated int) int {
	if g.rollingUpdate == nil {
		return outdated
	}
	if g.isDeploymentPausedOrFailed() || g.hasUnpromotedCanaries() {
		return 0
	}
	n := *g.rollingUpdate.MaxParallel - g.placementsBeforeRollingUpdate
	for _, a := range g.liveOrUnreplacedAllocs {
		if g.currentDeployment == nil || a.DeploymentID != g.currentDeployment.ID {
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
