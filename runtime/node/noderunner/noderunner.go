package noderunner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
)

// AssignmentSource assigns allocations to this node and receives their reports.
type AssignmentSource interface {
	// Allocs returns the allocations that are assigned to this node, and a channel that is
	// closed when the result changes. A new version of an allocation has a higher
	// AllocModifyIndex. An allocation whose DesiredStatus is terminal is stopped and its
	// files are kept; an allocation that is missing is stopped and removed from the disk.
	Allocs() ([]Assignment, <-chan struct{})

	// Report is called for each change of an allocation; the calls for one
	// allocation do not overlap. Report must return soon.
	Report(allocrunner.StatusUpdate)

	// ReportEnded is called once for an allocation, after its last Report, when its tasks
	// and hooks have ended. err is the reason why the allocation could not be run at
	// all; it is nil for an allocation that was run. ReportEnded is not called when the
	// agent leaves the tasks running.
	ReportEnded(allocID string, err error)

	// CollectAtEnd stores that the directory of an allocation must be removed when
	// the allocation has ended. From then on Assignment.CollectWhenEnded is true.
	CollectAtEnd(ctx context.Context, allocID string) error

	// ReportCollected is called when the directory of an ended allocation was removed
	// because of a limit of GC. reason names the limit.
	ReportCollected(allocID, reason string)

	// ReportRemoved is called once for an allocation that was missing from Allocs, when
	// it has been removed from the disk.
	ReportRemoved(allocID string)
}

// Assignment is an allocation that is assigned to this node.
type Assignment struct {
	Alloc *api.Allocation
	// TasksEnded means that the allocation has ended for good: only its files may be
	// left.
	TasksEnded bool
	// StartedEarlier means that an earlier agent has started the allocation: its tasks are
	// restored.
	StartedEarlier bool
	// JobPurged means that the allocation's job was purged: its tasks end even while
	// their drivers are unavailable.
	JobPurged bool
	// CollectWhenEnded means that the directory must be removed as soon as the allocation
	// has ended.
	CollectWhenEnded bool
}

// Config configures a Runner.
type Config struct {
	Source AssignmentSource
	// AllocRunnerConfig is the template for the runner of each allocation. The Runner sets
	// its fields Alloc, Restored, AllocDone and ReportStatus, and Node if TaskEnvNode is
	// not nil.
	AllocRunnerConfig allocrunner.Config
	// TaskEnvNode returns the facts about the node that tasks get when they start. It may
	// be nil.
	TaskEnvNode func() taskenv.Node
	// OnStop is called when the Runner has begun to stop allocations, OnReport with each
	// report of an allocation before the Source gets it, and OnRemove after each removal of
	// an allocation or of its directory. All three may be nil.
	OnStop   func()
	OnReport func(allocrunner.StatusUpdate)
	OnRemove func()
	GC       GC
	Logger   hclog.Logger
}

// Runner runs the allocations of this node.
type Runner struct {
	config               Config
	logger               hclog.Logger
	previousAllocsLoaded chan struct{} // closed when the entries of an earlier agent's allocations exist
	gcRequested          chan struct{} // the channel has a value when the limits of GC must be checked

	mu            sync.Mutex
	entries       map[string]*allocEntry
	killRequested bool // Kill was called, so a runner that is being built must be killed too
}

// allocEntry is one allocation of the Runner. To save memory, an ended entry has no
// runner, and its alloc is shared with the source; destroy builds a new runner.
type allocEntry struct {
	id               string
	alloc            *api.Allocation     // the newest version of the allocation that the runner has; without a runner, the source's version
	runner           *allocrunner.Runner // runs the allocation; nil while it is being built, if building it failed, and after the end
	endTime          time.Time           // time when the allocation ended; zero until then
	tasksEnded       chan struct{}       // closed by Runner.handleAllocEnd; nil after the end
	runReturned      chan struct{}       // closed when the allocation runner's Run has returned; nil if the allocation has ended
	removalStarted   bool                // the removal of the entry has started
	dirRemoved       bool                // the directory was removed, or the removal was tried
	collectWhenEnded bool                // the directory must be removed when the allocation has ended

	destroyMu      sync.Mutex // destroyMu is held during destroyEntry, and locked before Runner.mu
	allocDestroyed bool       // guarded by destroyMu
}

// New returns a Runner without allocations.
func New(c Config) *Runner {
	if c.OnStop == nil {
		c.OnStop = func() {}
	}
	if c.OnReport == nil {
		c.OnReport = func(allocrunner.StatusUpdate) {}
	}
	if c.OnRemove == nil {
		c.OnRemove = func() {}
	}
	if c.AllocRunnerConfig.RecoveryTracker == nil {
		c.AllocRunnerConfig.RecoveryTracker = taskrunner.NewRecoveryTracker()
	}
	return &Runner{
		config:               c,
		logger:               c.Logger.Named("noderunner"),
		previousAllocsLoaded: make(chan struct{}),
		gcRequested:          make(chan struct{}, 1),
		entries:              make(map[string]*allocEntry),
	}
}

// PreviousAllocsLoaded returns a channel that is closed when Alloc finds the
// allocations of an earlier agent.
func (r *Runner) PreviousAllocsLoaded() <-chan struct{} { return r.previousAllocsLoaded }

// HasLoadedPreviousAllocs reports whether Alloc finds the allocations of an earlier agent.
func (r *Runner) HasLoadedPreviousAllocs() bool {
	select {
	case <-r.previousAllocsLoaded:
		return true
	default:
		return false
	}
}

// Run runs the allocations that the source assigns until ctx ends. If the cause is
// allocrunner.ErrShutdown, tasks are left running; otherwise they are stopped. Run
// returns when all runners have returned. It must be called once.
func (r *Runner) Run(ctx context.Context) {
	var runningWG sync.WaitGroup
	defer runningWG.Wait()
	runningWG.Go(func() { r.runGarbageCollection(ctx) })
	closePreviousAllocsLoaded := sync.OnceFunc(func() { close(r.previousAllocsLoaded) })
	for !errors.Is(context.Cause(ctx), allocrunner.ErrShutdown) { // a shutdown must not interrupt the restore
		wanted, changed := r.config.Source.Allocs()
		if r.reconcile(ctx, wanted, &runningWG) {
			r.config.OnStop()
		}
		closePreviousAllocsLoaded()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// reconcile starts, updates and removes allocations so that they match the assignments
// in wanted. It reports whether an allocation that may run must end. Only Run calls it.
// The runners are built without the lock, because that opens directories and reads
// records.
func (r *Runner) reconcile(ctx context.Context, wanted []Assignment, running *sync.WaitGroup) (ending bool) {
	r.mu.Lock()
	change := compareAssignments(wanted, r.entries)
	r.mu.Unlock()

	added := make([]*allocEntry, len(change.start))
	for i, a := range change.start {
		added[i] = r.newEntry(a)
	}
	r.applyAssignmentChanges(ctx, change, added, running)
	for i, e := range added {
		switch {
		case !change.start[i].TasksEnded:
			r.startEntry(ctx, e, change.start[i], running)
		case e.collectWhenEnded:
			running.Go(func() { r.collectBatch([]gcCandidate{{allocEntry: e}}, "") })
		}
	}
	r.forwardPurges(wanted)
	if len(added) > 0 {
		notify(r.gcRequested)
	}
	return change.stopsRunning
}

// forwardPurges forwards to the runners that their jobs were purged.
func (r *Runner) forwardPurges(wanted []Assignment) {
	for _, a := range wanted {
		if !a.JobPurged {
			continue
		}
		if runner := r.Alloc(a.Alloc.ID); runner != nil {
			runner.Purge()
		}
	}
}

func (r *Runner) newEntry(a Assignment) *allocEntry {
	e := &allocEntry{id: a.Alloc.ID, alloc: a.Alloc, collectWhenEnded: a.CollectWhenEnded}
	if a.TasksEnded {
		// A time in the future, from a clock that was ahead, would make the entry the last
		// one to be collected.
		if e.endTime = time.Unix(0, a.Alloc.ModifyTime); e.endTime.After(time.Now()) {
			e.endTime = time.Now()
		}
		e.dirRemoved = !r.hasAllocDir(e.id)
		return e
	}
	e.tasksEnded, e.runReturned = make(chan struct{}), make(chan struct{})
	return e
}

// applyAssignmentChanges changes the entries and updates their runners.
func (r *Runner) applyAssignmentChanges(ctx context.Context, change assignmentChanges, added []*allocEntry, running *sync.WaitGroup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range added {
		r.entries[e.id] = e
	}
	for _, alloc := range change.update {
		e := r.entries[alloc.ID]
		e.alloc = alloc
		if e.runner != nil {
			e.runner.Update(alloc)
		}
	}
	for _, id := range change.remove {
		e := r.entries[id]
		e.removalStarted = true
		running.Go(func() { r.removeEntry(ctx, e) })
	}
}

// startEntry builds the allocation runner of an entry and runs it.
func (r *Runner) startEntry(ctx context.Context, e *allocEntry, a Assignment, running *sync.WaitGroup) {
	config := r.config.AllocRunnerConfig
	config.Alloc = a.Alloc
	if r.config.TaskEnvNode != nil {
		config.Node = r.config.TaskEnvNode()
	}
	// If the records of a started allocation are lost, StartedEarlier is false, and the
	// client status shows that the allocation was started.
	config.Restored = a.StartedEarlier || a.Alloc.ClientStatus != api.AllocClientStatusPending
	config.AllocDone = r.tasksEnded
	config.ReportStatus = func(u allocrunner.StatusUpdate) {
		r.config.OnReport(u)
		r.config.Source.Report(u)
	}
	runner, err := allocrunner.New(config)
	if err != nil {
		r.logger.Error("alloc cannot be run", "alloc_id", e.id, "error", err)
		close(e.runReturned)
		running.Go(func() { r.handleAllocEnd(e, err) })
		return
	}
	r.mu.Lock()
	e.runner = runner
	if r.killRequested {
		runner.Kill()
	}
	r.mu.Unlock()
	running.Go(func() {
		runner.Run(ctx)
		close(e.runReturned)
		if runner.Finished() {
			r.handleAllocEnd(e, nil)
		}
	})
}

// tasksEnded returns a channel that is closed when all tasks of an allocation on this
// node have ended.
func (r *Runner) tasksEnded(id string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[id]; e != nil && e.runReturned != nil {
		return e.runReturned
	}
	none := make(chan struct{})
	close(none)
	return none
}

// PluginsLeftRunning returns the drivers and hooks of the tasks that continue after Run.
func (r *Runner) PluginsLeftRunning() map[supervisor.PluginKey]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	needed := make(map[supervisor.PluginKey]bool)
	for _, e := range r.entries {
		if e.runner != nil {
			for _, what := range e.runner.PluginsLeftRunning() {
				needed[what] = true
			}
		}
	}
	return needed
}

// UsesPlugin reports whether an allocation that has not ended uses a driver or a hook.
func (r *Runner) UsesPlugin(what supervisor.PluginKey) bool {
	return len(r.AllocsUsingPlugin(what)) > 0
}

// AllocsUsingPlugin returns the ids of the allocations that have not ended and use a
// driver or a hook.
func (r *Runner) AllocsUsingPlugin(what supervisor.PluginKey) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.entries {
		if e.runner != nil && e.endTime.IsZero() && e.runner.NeedsPlugin(what) {
			ids = append(ids, id)
		}
	}
	return ids
}

// handleAllocEnd records that an allocation has ended, and drops its runner.
func (r *Runner) handleAllocEnd(e *allocEntry, err error) {
	r.mu.Lock()
	e.endTime, e.runner = time.Now(), nil
	close(e.tasksEnded)
	e.tasksEnded, e.runReturned = nil, nil
	collect := e.collectWhenEnded
	r.mu.Unlock()
	r.config.Source.ReportEnded(e.id, err)
	if collect {
		r.collectBatch([]gcCandidate{{allocEntry: e}}, "")
	}
	notify(r.gcRequested)
}

// removeEntry stops an allocation and removes it from the disk. The end of ctx does not
// end the removal, because files that it leaves behind would stay forever. Only a removal
// that finds no free descriptor is left to the next agent then.
func (r *Runner) removeEntry(ctx context.Context, e *allocEntry) {
	if runner := r.Alloc(e.id); runner != nil {
		runner.Purge()
		runner.Stop()
		<-runner.Done()
	}
	waiting := func(err error) {
		r.logger.Warn("alloc not removed, the removal is repeated", "alloc_id", e.id, "error", err)
	}
	err := descriptors.Retry(ctx, waiting, func() error { return r.destroyEntry(e) })
	if osprocess.IsResourceExhausted(err) {
		return
	}
	if err != nil {
		r.logger.Error("alloc left something behind", "alloc_id", e.id, "error", err)
	}
	r.mu.Lock()
	delete(r.entries, e.id)
	r.mu.Unlock()
	r.config.Source.ReportRemoved(e.id)
	r.config.OnRemove()
}

// destroyEntry removes an ended allocation from the disk, unless that was done before:
// an allocation may first be collected and later be removed.
func (r *Runner) destroyEntry(e *allocEntry) error {
	e.destroyMu.Lock()
	defer e.destroyMu.Unlock()
	if e.allocDestroyed {
		return nil
	}
	r.mu.Lock()
	runner, alloc := e.runner, e.alloc
	r.mu.Unlock()
	err := r.destroyOnce(runner, alloc)
	e.allocDestroyed = err == nil
	if e.allocDestroyed {
		removeCgroups(alloc)
	}
	return err
}

// removeCgroups removes empty cgroups of an allocation, left behind by a driver
// process that died.
func removeCgroups(alloc *api.Allocation) {
	if alloc.Job == nil {
		return
	}
	if group := alloc.GetTaskGroup(); group != nil {
		for _, task := range group.Tasks {
			cgroup.RemoveEmptyCgroups(alloc.ID, task.Name)
		}
	}
}

func (r *Runner) destroyOnce(runner *allocrunner.Runner, alloc *api.Allocation) error {
	if runner == nil {
		config := r.config.AllocRunnerConfig
		config.Alloc, config.ReportStatus = alloc, func(allocrunner.StatusUpdate) {}
		var err error
		if runner, err = allocrunner.New(config); err != nil {
			// The allocation never ran under this agent, so only its directory is known.
			dir, err := allocdir.New(r.config.AllocRunnerConfig.AllocDirRoot, alloc.ID)
			if err != nil {
				return err
			}
			return dir.Destroy()
		}
	}
	return runner.Destroy(context.Background())
}

func (r *Runner) hasAllocDir(allocID string) bool {
	dir, err := allocdir.New(r.config.AllocRunnerConfig.AllocDirRoot, allocID)
	if err != nil {
		return false
	}
	root, err := dir.Open()
	if err != nil {
		return osprocess.IsResourceExhausted(err) // the directory may exist
	}
	root.Close()
	return true
}

// Alloc returns the runner of an allocation. It is nil if the allocation is not on
// this node, has ended, or has a runner that is still being built.
func (r *Runner) Alloc(id string) *allocrunner.Runner {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[id]; e != nil {
		return e.runner
	}
	return nil
}

// KillAllocs force kills all allocations at once, without their shutdown order and their
// poststop tasks. It does not wait.
func (r *Runner) KillAllocs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killRequested = true
	for _, e := range r.entries {
		if e.runner != nil {
			e.runner.Kill()
		}
	}
}

// destroyTimeout is how long KillUndestroyed waits for the drivers of ended tasks.
const destroyTimeout = 5 * time.Second

// KillUndestroyed waits until all tasks have ended, which another call has requested. If a driver has not destroyed a task
// within destroyTimeout after that, KillUndestroyed calls onGiveUp and then KillAllocs, so that Run does not wait for
// the driver any longer. It returns early when ctx is done.
func (r *Runner) KillUndestroyed(ctx context.Context, onGiveUp func()) {
	if destroying, err := r.awaitTasks(ctx); err != nil || !destroying {
		return
	}
	select {
	case <-time.After(destroyTimeout):
	case <-ctx.Done():
		return
	}
	if destroying, err := r.awaitTasks(ctx); err == nil && destroying {
		onGiveUp()
		r.KillAllocs()
	}
}

// awaitTasks is [allocrunner.Runner.AwaitTasks] for all allocations.
func (r *Runner) awaitTasks(ctx context.Context) (destroying bool, err error) {
	r.mu.Lock()
	var runners []*allocrunner.Runner
	for _, e := range r.entries {
		if e.runner != nil {
			runners = append(runners, e.runner)
		}
	}
	r.mu.Unlock()
	for _, runner := range runners {
		one, err := runner.AwaitTasks(ctx)
		if err != nil {
			return false, err
		}
		destroying = destroying || one
	}
	return destroying, nil
}

// HandleTaskEvent forwards a driver's event to the allocation of the task.
func (r *Runner) HandleTaskEvent(driverName string, event driver.TaskEvent) {
	runner := r.Alloc(event.AllocID)
	if runner == nil || !runner.TaskEvent(event) {
		r.logger.Debug("event for a task that is not here", "driver", driverName, "alloc_id", event.AllocID, "task", event.TaskName)
	}
}

// assignmentChanges is the change from the current to the wanted allocations.
type assignmentChanges struct {
	start        []Assignment
	update       []*api.Allocation
	remove       []string
	stopsRunning bool // an allocation that may still run must end
}

// compareAssignments returns the difference between the wanted assignments and the
// entries that the Runner has. It has no side effects. A runner never gets an older
// version, and an allocation that is being removed starts again only after its removal.
// Reports do not increase AllocModifyIndex, but an entry without a runner takes any
// other version, which has the last report.
func compareAssignments(wanted []Assignment, have map[string]*allocEntry) assignmentChanges {
	var d assignmentChanges
	keep := make(map[string]bool, len(wanted))
	for _, a := range wanted {
		id := a.Alloc.ID
		keep[id] = true
		e := have[id]
		switch {
		case e == nil:
			d.start = append(d.start, a)
		case e.removalStarted, a.Alloc == e.alloc:
		case e.runner == nil, a.Alloc.AllocModifyIndex > e.alloc.AllocModifyIndex:
			d.update = append(d.update, a.Alloc)
			d.stopsRunning = d.stopsRunning || e.runner != nil && a.Alloc.ServerTerminalStatus()
		}
	}
	for id, e := range have {
		if !keep[id] && !e.removalStarted {
			d.remove = append(d.remove, id)
			d.stopsRunning = d.stopsRunning || e.runner != nil
		}
	}
	return d
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
