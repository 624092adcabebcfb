package noderunner

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// AssignmentSource assigns allocations to this node and receives their reports.
type AssignmentSource interface {
	// Assignments returns this node's allocations. changed is closed when the result changes. A new
	// allocation version has a higher AllocModifyIndex. An allocation with a terminal DesiredStatus is
	// stopped and its files are kept; a missing allocation is stopped and removed from the disk.
	Assignments() (assignments []Assignment, changed <-chan struct{})

	// ReportStatus is called for each allocation change; the calls for one allocation do not
	// overlap. ReportStatus must return soon.
	ReportStatus(model.AllocReport)

	// ReportEnded is called once for an allocation, after its last ReportStatus, when its tasks and
	// hooks have ended. notRunErr is why the allocation could not be run at all; it is nil if the
	// allocation was run. ReportEnded is not called when the agent leaves the tasks running.
	ReportEnded(allocID string, notRunErr error)

	// StoreRemoveDirAtEnd stores the request to remove an allocation's directory when the
	// allocation has ended. From then on Assignment.RemoveDirWhenEnded is true.
	StoreRemoveDirAtEnd(ctx context.Context, allocID string) error

	// ReportDirRemoved is called after an ended allocation's directory was removed because a
	// GCLimits limit was exceeded.
	ReportDirRemoved(allocID, exceededLimit string)

	// ReportAllocRemoved is called once for an allocation missing from Assignments, after the
	// allocation has been removed from the disk.
	ReportAllocRemoved(allocID string)
}

// Assignment is an allocation assigned to this node.
type Assignment struct {
	Alloc *api.Allocation
	// AllocEnded means the allocation has ended for good, so it is not run. Its directory may still
	// exist.
	AllocEnded bool
	// StartedByEarlierAgent means an earlier agent has started the allocation, so its tasks are
	// restored.
	StartedByEarlierAgent bool
	// JobPurged means the allocation's job was purged, so its tasks are ended even while their
	// drivers are unavailable.
	JobPurged bool
	// RemoveDirWhenEnded means the directory must be removed as soon as the allocation has ended.
	RemoveDirWhenEnded bool
}

// Config configures a Runner.
type Config struct {
	Source AssignmentSource
	// AllocRunnerTemplate is the template for each allocation's runner. The Runner sets its fields
	// Alloc, RanUnderEarlierAgent, AllocDone and ReportStatus, and Node if NodeForTasks is not nil.
	AllocRunnerTemplate allocrunner.Config
	// NodeForTasks returns the node facts for tasks when they start. It may be nil.
	NodeForTasks func() taskenv.Node
	// AllocDirRoot is the parent of the allocations' directories. GCLimits apply to its file system.
	AllocDirRoot string
	// OnStopping is called when the Runner has begun to stop allocations, OnStatusReport with each
	// allocation report before the Source gets it, and OnAllocDirRemoved after each removal of an
	// allocation or its directory. All three may be nil.
	OnStopping        func()
	OnStatusReport    func(model.AllocReport)
	OnAllocDirRemoved func()
	GCLimits          GCLimits
	Logger            hclog.Logger
}

// Runner runs this node's allocations.
type Runner struct {
	config             Config
	logger             hclog.Logger
	storedAllocsLoaded chan struct{} // closed when entryByAllocID has the earlier agent's allocations
	gcRequested        chan struct{} // receives a value when the GC limits must be checked; capacity 1
	entryRemoved       chan struct{} // receives a value when a lost allocation's entry was removed, so it can start again; capacity 1

	mu               sync.Mutex
	entryByAllocID   map[string]*allocEntry
	endedTransitions endedTransitions
	killRequested    bool // ForceKillAllAllocs was called, so a runner under construction must be killed too
}

// allocEntry is one of the Runner's allocations. To save memory, an ended entry has no runner, and
// its alloc is shared with the source; destroyAlloc builds a new runner.
type allocEntry struct {
	id                  string
	alloc               *api.Allocation     // newest version passed to the runner; without a runner, the source's version
	runner              *allocrunner.Runner // runs the allocation; nil while it is being built, if building it failed, and after the end
	endTime             time.Time           // when the allocation ended; zero until then
	allocEnded          chan struct{}       // closed by recordAndReportAllocEnd; nil after the allocation's end
	runReturned         chan struct{}       // closed when the runner's Run has returned; nil after the allocation's end
	entryRemovalStarted bool                // the entry's removal has started
	dirRemovalAttempted bool                // the directory was removed, or its removal has failed
	removeDirWhenEnded  bool                // the directory must be removed when the allocation has ended

	destroyCallMu  sync.Mutex // held during destroyEntryOnce; locked before Runner.mu
	allocDestroyed bool       // destroyAlloc has succeeded; guarded by destroyCallMu
}

// New returns a Runner without allocations.
func New(c Config) *Runner {
	if c.OnStopping == nil {
		c.OnStopping = func() {}
	}
	if c.OnStatusReport == nil {
		c.OnStatusReport = func(model.AllocReport) {}
	}
	if c.OnAllocDirRemoved == nil {
		c.OnAllocDirRemoved = func() {}
	}
	if c.AllocRunnerTemplate.RecoveryTracker == nil {
		c.AllocRunnerTemplate.RecoveryTracker = taskdriver.NewRecoveryTracker()
	}
	return &Runner{
		config:             c,
		logger:             c.Logger.Named("noderunner"),
		storedAllocsLoaded: make(chan struct{}),
		gcRequested:        make(chan struct{}, 1),
		entryRemoved:       make(chan struct{}, 1),
		entryByAllocID:     make(map[string]*allocEntry),
	}
}

// StoredAllocsLoaded returns a channel that is closed when the earlier agent's allocations are
// loaded, so that AllocRunner finds them.
func (r *Runner) StoredAllocsLoaded() <-chan struct{} { return r.storedAllocsLoaded }

// HasLoadedStoredAllocs reports whether the StoredAllocsLoaded channel is closed.
func (r *Runner) HasLoadedStoredAllocs() bool {
	return wait.IsClosed(r.storedAllocsLoaded)
}

// Run runs the source's allocations until ctx is done. If the cause is allocrunner.ErrShutdown, it
// leaves the tasks running; otherwise it stops them. Run returns when all allocation runners have
// returned. It must be called once.
func (r *Runner) Run(ctx context.Context) {
	var runningWG sync.WaitGroup
	defer runningWG.Wait()
	runningWG.Go(func() { r.runGarbageCollection(ctx) })
	closePreviousAllocsLoaded := sync.OnceFunc(func() { close(r.storedAllocsLoaded) })
	for !errors.Is(context.Cause(ctx), allocrunner.ErrShutdown) { // a shutdown must not interrupt the restore
		wanted, changed := r.config.Source.Assignments()
		if r.applyAssignments(ctx, wanted, &runningWG) {
			r.config.OnStopping()
		}
		closePreviousAllocsLoaded()
		select {
		case <-changed:
		case <-r.entryRemoved:
		case <-ctx.Done():
			return
		}
	}
}

// applyAssignments starts, updates and removes allocations to match the assignments in wanted. It
// reports whether a running allocation must stop. Only Run calls it. It builds new allocations'
// runners without mu, because building opens directories and reads records.
func (r *Runner) applyAssignments(ctx context.Context, wanted []Assignment, runningWG *sync.WaitGroup) (stopsLiveAlloc bool) {
	r.mu.Lock()
	change := compareAssignments(wanted, r.entryByAllocID)
	r.mu.Unlock()

	added := make([]*allocEntry, len(change.toStart))
	for i, a := range change.toStart {
		added[i] = r.newAllocEntry(a)
	}
	r.applyEntryChanges(ctx, change, added, runningWG)
	for i, e := range added {
		switch {
		case !change.toStart[i].AllocEnded:
			r.startAllocRunner(ctx, e, change.toStart[i], runningWG)
		case e.removeDirWhenEnded:
			runningWG.Go(func() { r.removeDirsOfEndedAllocs([]gcCandidate{{allocEntry: e}}, "") })
		}
	}
	r.forwardJobPurges(wanted)
	if len(added) > 0 {
		wait.Notify(r.gcRequested)
	}
	return change.stopsLiveAlloc
}

// forwardJobPurges calls AllowTaskEndWithoutDriver on each runner with a purged job.
func (r *Runner) forwardJobPurges(assignments []Assignment) {
	for _, a := range assignments {
		if !a.JobPurged {
			continue
		}
		if runner := r.AllocRunner(a.Alloc.ID); runner != nil {
			runner.AllowTaskEndWithoutDriver()
		}
	}
}

func (r *Runner) newAllocEntry(a Assignment) *allocEntry {
	e := &allocEntry{id: a.Alloc.ID, alloc: a.Alloc, removeDirWhenEnded: a.RemoveDirWhenEnded}
	if a.AllocEnded {
		// A future time comes from a clock that was ahead. Such an entry's directory would be
		// collected last.
		if e.endTime = time.Unix(0, a.Alloc.ModifyTime); e.endTime.After(time.Now()) {
			e.endTime = time.Now()
		}
		e.dirRemovalAttempted = !r.config.AllocRunnerTemplate.Machine.MayHaveAllocDir(e.id)
		return e
	}
	e.allocEnded, e.runReturned = make(chan struct{}), make(chan struct{})
	return e
}

// applyEntryChanges adds the new entries, passes new versions to other entries' runners, and starts
// removing the unwanted entries.
func (r *Runner) applyEntryChanges(ctx context.Context, change assignmentChanges, added []*allocEntry, runningWG *sync.WaitGroup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range added {
		r.entryByAllocID[e.id] = e
	}
	for _, alloc := range change.allocsToUpdate {
		e := r.entryByAllocID[alloc.ID]
		e.alloc = alloc
		if e.runner != nil {
			e.runner.Update(alloc)
		}
	}
	for _, id := range change.idsToRemove {
		e := r.entryByAllocID[id]
		e.entryRemovalStarted = true
		runningWG.Go(func() { r.stopAndRemoveEntry(ctx, e) })
	}
}

// startAllocRunner builds and runs an entry's allocation runner.
func (r *Runner) startAllocRunner(ctx context.Context, e *allocEntry, a Assignment, runningWG *sync.WaitGroup) {
	config := r.config.AllocRunnerTemplate
	config.Alloc = a.Alloc
	if r.config.NodeForTasks != nil {
		config.Node = r.config.NodeForTasks()
	}
	// If a started allocation's records are lost, StartedByEarlierAgent is false, and the client
	// status shows that the allocation was started.
	config.RanUnderEarlierAgent = a.StartedByEarlierAgent || a.Alloc.ClientStatus != api.AllocClientStatusPending
	config.AllocDone = r.allocRunReturned
	config.ReportStatus = func(u model.AllocReport) {
		r.config.OnStatusReport(u)
		r.config.Source.ReportStatus(u)
	}
	runner, err := allocrunner.New(config)
	if err != nil {
		r.logger.Error("alloc cannot be run", "alloc_id", e.id, "error", err)
		close(e.runReturned)
		runningWG.Go(func() { r.recordAndReportAllocEnd(e, nil, err) })
		return
	}
	r.mu.Lock()
	e.runner = runner
	if r.killRequested {
		runner.ForceKill()
	}
	r.mu.Unlock()
	runningWG.Go(func() {
		runner.Run(ctx)
		close(e.runReturned)
		if runner.EndedForGood() {
			r.recordAndReportAllocEnd(e, runner.TransitionsByTask(), nil)
		}
	})
}

// allocRunReturned returns a channel that is closed when the allocation's runner has returned from
// Run, so none of its tasks or hooks runs. The channel is already closed if the allocation is
// unknown or has ended.
func (r *Runner) allocRunReturned(id string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entryByAllocID[id]; e != nil && e.runReturned != nil {
		return e.runReturned
	}
	none := make(chan struct{})
	close(none)
	return none
}

// PluginsNeededAfterShutdown returns the plugins needed by tasks that continue to run after Run has
// returned.
func (r *Runner) PluginsNeededAfterShutdown() map[core.Plugin]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	needed := make(map[core.Plugin]bool)
	for _, e := range r.entryByAllocID {
		if e.runner != nil {
			for _, what := range e.runner.PluginsNeededAfterShutdown() {
				needed[what] = true
			}
		}
	}
	return needed
}

// UsesPlugin reports whether an allocation uses the given driver or hook. Ended allocations do not count.
func (r *Runner) UsesPlugin(key core.Plugin) bool {
	return len(r.AllocsUsingPlugin(key)) > 0
}

// AllocsUsingPlugin returns the sorted ids of all allocations with the given driver or hook, except ended
// ones.
func (r *Runner) AllocsUsingPlugin(key core.Plugin) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.entryByAllocID {
		if e.runner != nil && e.endTime.IsZero() && e.runner.UsesPlugin(key) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// recordAndReportAllocEnd records an allocation's end, releases its runner, and reports the end to the
// source. notRunErr is why the allocation could not be run.
func (r *Runner) recordAndReportAllocEnd(e *allocEntry, transitionsByTask map[string][]tasksteps.Transition, notRunErr error) {
	ended := packAllocTransitions(e.id, transitionsByTask)
	r.mu.Lock()
	e.endTime, e.runner = time.Now(), nil
	if !e.entryRemovalStarted {
		r.endedTransitions.add(ended)
	}
	close(e.allocEnded)
	e.allocEnded, e.runReturned = nil, nil
	collect := e.removeDirWhenEnded
	r.mu.Unlock()
	r.config.Source.ReportEnded(e.id, notRunErr)
	if collect {
		r.removeDirsOfEndedAllocs([]gcCandidate{{allocEntry: e}}, "")
	}
	wait.Notify(r.gcRequested)
}

// stopAndRemoveEntry stops an allocation, removes it from the disk and deletes its entry. The removal
// continues when ctx is done, because files left behind would stay forever. Only a removal that finds
// no free file descriptor is then left to the next agent.
func (r *Runner) stopAndRemoveEntry(ctx context.Context, e *allocEntry) {
	if runner := r.AllocRunner(e.id); runner != nil {
		runner.AllowTaskEndWithoutDriver()
		runner.Stop()
		<-runner.Done()
	}
	waiting := func(err error) {
		r.logger.Warn("alloc not removed, the removal is repeated", "alloc_id", e.id, "error", err)
	}
	err := descriptors.Retry(ctx, waiting, func() error { return r.destroyEntryOnce(e) })
	if osprocess.IsResourceExhausted(err) {
		return
	}
	if err != nil {
		r.logger.Error("alloc left something behind", "alloc_id", e.id, "error", err)
	}
	r.mu.Lock()
	delete(r.entryByAllocID, e.id)
	r.endedTransitions.remove(e.id)
	wasLost := e.alloc.ClientStatus == api.AllocClientStatusLost
	r.mu.Unlock()
	r.config.Source.ReportAllocRemoved(e.id)
	r.config.OnAllocDirRemoved()
	if wasLost {
		wait.Notify(r.entryRemoved)
	}
}

// destroyEntryOnce removes an ended allocation from the disk, unless an earlier call has done so: an
// allocation may first be collected and later be removed.
func (r *Runner) destroyEntryOnce(e *allocEntry) error {
	e.destroyCallMu.Lock()
	defer e.destroyCallMu.Unlock()
	if e.allocDestroyed {
		return nil
	}
	r.mu.Lock()
	runner, alloc := e.runner, e.alloc
	r.mu.Unlock()
	err := r.destroyAlloc(runner, alloc)
	e.allocDestroyed = err == nil
	if e.allocDestroyed {
		removeEmptyCgroupsOfAlloc(alloc)
	}
	return err
}

// removeEmptyCgroupsOfAlloc removes an allocation's empty cgroups, which a dead driver process may have left
// behind.
func removeEmptyCgroupsOfAlloc(alloc *api.Allocation) {
	var group *api.TaskGroup
	if alloc.Job != nil {
		group = alloc.GetTaskGroup()
	}
	if group == nil { // the task names are lost
		cgroup.RemoveEmptyOfAllocs(func(allocID string) bool { return allocID == alloc.ID })
		return
	}
	for _, task := range group.Tasks {
		cgroup.RemoveEmptyCgroups(alloc.ID, task.Name)
	}
}

func (r *Runner) destroyAlloc(runnerOrNil *allocrunner.Runner, alloc *api.Allocation) error {
	if runnerOrNil == nil {
		config := r.config.AllocRunnerTemplate
		config.Alloc, config.ReportStatus = alloc, func(model.AllocReport) {}
		var err error
		if runnerOrNil, err = allocrunner.NewEnded(config); err != nil {
			r.logger.Warn("removing an alloc without its hooks, because no runner can be built for it", "alloc_id", alloc.ID, "error", err)
			return r.config.AllocRunnerTemplate.Machine.RemoveAllocDir(alloc.ID)
		}
	}
	return runnerOrNil.Destroy(context.Background())
}

// AllocRunner returns an allocation's runner. It returns nil if the allocation is not on this node or has
// ended, or if its runner is still being built.
func (r *Runner) AllocRunner(allocID string) *allocrunner.Runner {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entryByAllocID[allocID]; e != nil {
		return e.runner
	}
	return nil
}

// AppendRunningTasks appends to list all allocations' tasks with a running process.
func (r *Runner) AppendRunningTasks(list []allocrunner.RunningTask) []allocrunner.RunningTask {
	for _, runner := range r.activeRunners() {
		list = runner.AppendRunningTasks(list)
	}
	return list
}

// activeRunners returns the runners for all allocations except ended ones.
func (r *Runner) activeRunners() (runners []*allocrunner.Runner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entryByAllocID {
		if e.runner != nil && e.endTime.IsZero() {
			runners = append(runners, e.runner)
		}
	}
	return runners
}

// ForceKillAllAllocs force kills all allocations' tasks at once, without hooks, kill order, delays and
// poststop tasks. It does not block.
func (r *Runner) ForceKillAllAllocs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killRequested = true
	for _, e := range r.entryByAllocID {
		if e.runner != nil {
			e.runner.ForceKill()
		}
	}
}

// destroyTimeout is how long ForceKillAllocsIfDestroyTimesOut waits for drivers to destroy ended tasks.
const destroyTimeout = 5 * time.Second

// ForceKillAllocsIfDestroyTimesOut waits until all tasks have ended; the caller must have requested their end. If a
// driver has not destroyed an ended task within destroyTimeout after that, ForceKillAllocsIfDestroyTimesOut calls
// onTimeout and then ForceKillAllAllocs, so that Run does not wait for the driver. It returns early when ctx is done.
func (r *Runner) ForceKillAllocsIfDestroyTimesOut(ctx context.Context, onTimeout func()) {
	if destroying, err := r.awaitAllTasksEnded(ctx); err != nil || !destroying {
		return
	}
	select {
	case <-time.After(destroyTimeout):
	case <-ctx.Done():
		return
	}
	if destroying, err := r.awaitAllTasksEnded(ctx); err == nil && destroying {
		onTimeout()
		r.ForceKillAllAllocs()
	}
}

// awaitAllTasksEnded is [allocrunner.Runner.AwaitTasksEnded] for all allocations.
func (r *Runner) awaitAllTasksEnded(ctx context.Context) (destroyPending bool, err error) {
	r.mu.Lock()
	var runners []*allocrunner.Runner
	for _, e := range r.entryByAllocID {
		if e.runner != nil {
			runners = append(runners, e.runner)
		}
	}
	r.mu.Unlock()
	for _, runner := range runners {
		one, err := runner.AwaitTasksEnded(ctx)
		if err != nil {
			return false, err
		}
		destroyPending = destroyPending || one
	}
	return destroyPending, nil
}

// ForwardTaskEvent forwards a driver's event to the task's allocation.
func (r *Runner) ForwardTaskEvent(driverName string, event driver.TaskEvent) {
	runner := r.AllocRunner(event.AllocID)
	if runner == nil || !runner.EmitDriverEvent(event) {
		r.logger.Debug("event for a task that is not here", "driver", driverName, "alloc_id", event.AllocID, "task", event.TaskName)
	}
}

// EmitDeviceEvents adds an event to each task that has not ended and has one of the devices. textByDevice has the event texts
// by model.DeviceInstanceName.
func (r *Runner) EmitDeviceEvents(textByDevice map[string]string) {
	for _, runner := range r.activeRunners() {
		runner.EmitDeviceEvents(textByDevice)
	}
}

// assignmentChanges is the difference between the entries and the wanted assignments.
type assignmentChanges struct {
	toStart        []Assignment
	allocsToUpdate []*api.Allocation
	idsToRemove    []string
	stopsLiveAlloc bool // a running allocation must stop
}

// compareAssignments returns the difference between the wanted assignments and the Runner's
// entries. It has no side effects. A runner never gets an older version, and an allocation being
// removed starts again only after its removal. Reports do not increase AllocModifyIndex, so an
// entry without a runner takes any version other than its own, to have the last report.
func compareAssignments(wanted []Assignment, entryByAllocID map[string]*allocEntry) assignmentChanges {
	var d assignmentChanges
	keep := make(map[string]bool, len(wanted))
	for _, a := range wanted {
		id := a.Alloc.ID
		e := entryByAllocID[id]
		// Restored servers have not given it up. Only they declare an allocation lost, so no runner has ended it here.
		runsAgain := e != nil && e.runner == nil && e.alloc.ClientStatus == api.AllocClientStatusLost && !a.AllocEnded
		keep[id] = !runsAgain
		switch {
		case e == nil:
			d.toStart = append(d.toStart, a)
		case runsAgain: // it starts when its entry has been removed
		case e.entryRemovalStarted, a.Alloc == e.alloc:
		case e.runner == nil, a.Alloc.AllocModifyIndex > e.alloc.AllocModifyIndex:
			d.allocsToUpdate = append(d.allocsToUpdate, a.Alloc)
			d.stopsLiveAlloc = d.stopsLiveAlloc || e.runner != nil && a.Alloc.ServerTerminalStatus()
		}
	}
	for id, e := range entryByAllocID {
		if !keep[id] && !e.entryRemovalStarted {
			d.idsToRemove = append(d.idsToRemove, id)
			d.stopsLiveAlloc = d.stopsLiveAlloc || e.runner != nil
		}
	}
	return d
}
