package noderunner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/cgroup"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// Source is where allocations come from, and where their states go.
type Source interface {
	// Allocs returns the allocations that shall be on this node, and a channel
	// that is closed when the next call has another answer. An allocation that
	// is the same but newer has a higher AllocModifyIndex; one that shall stop
	// and be kept has a DesiredStatus that says so; one that is missing is
	// stopped and removed from the disk.
	Allocs() ([]Assignment, <-chan struct{})

	// Report is called for each change of an allocation, one call at a time for
	// each. It should return soon.
	Report(allocrunner.Update)

	// Ended is called once for an allocation, after its last Report: nothing of
	// it runs any more. err says why it could not be run at all; it is nil for
	// one that was. It is not called when the agent leaves the tasks running.
	Ended(allocID string, err error)

	// CollectAtEnd stores that the directory of an allocation has to be removed when it
	// has ended: Assignment.Collect is true from then on.
	CollectAtEnd(ctx context.Context, allocID string) error

	// Collected is called when the directory of an ended allocation was removed to
	// keep the limits of GC, and says why.
	Collected(allocID, reason string)

	// Removed is called once for an allocation that was missing from Allocs,
	// when it is off the disk.
	Removed(allocID string)
}

// Assignment is an allocation that shall be on this node.
type Assignment struct {
	Alloc *api.Allocation
	// Ended says that nothing of it runs any more and that nothing shall: what it
	// has left on the disk is all that there is.
	Ended bool
	// Started says that an earlier agent has started it: what runs of it is taken
	// over.
	Started bool
	// Purged says that its job was purged: its tasks end also while their drivers are
	// unavailable.
	Purged bool
	// Collect says that its directory has to be removed as soon as it has ended.
	Collect bool
}

// quiet is how long nothing must have changed before Tidy is called.
const quiet = time.Second

// Config is what a Runner is made of.
type Config struct {
	Source Source
	// Alloc is the pattern for the runner of each allocation; Alloc.Alloc,
	// Alloc.Restored, Alloc.Previous and Alloc.Report are filled in, and Alloc.Node
	// if there is a Node.
	Alloc allocrunner.Config
	// Node returns what tasks may know of the node when they are started; may be
	// nil.
	Node func() taskenv.Node
	// OnStop is called when allocations have been told to end, and Tidy when nothing
	// has changed for a second after a burst of changes. Both may be nil.
	OnStop func()
	OnIdle func()
	GC     GC
	Logger hclog.Logger
}

// Runner is the set of allocations on this node.
type Runner struct {
	config  Config
	logger  hclog.Logger
	begun   chan struct{} // closed when the allocations of an earlier agent are known
	collect chan struct{} // holds a tick when there may be too much on the disk
	tidy    *time.Timer   // calls Tidy after a burst of changes

	mu      sync.Mutex
	entries map[string]*entry
	killed  bool // Kill has been called: a runner that is being built is killed too
}

// entry is one allocation of the set. Of one that has ended there is no runner, and
// its alloc is the one that the source has anyway: thousands of them must not weigh
// more than they have to. What it takes to remove one is made again from that.
type entry struct {
	id       string
	alloc    *api.Allocation     // the newest version that the runner has; that of the source without a runner
	runner   *allocrunner.Runner // nil while it is built, if it could not be made, and when it has ended
	ended    time.Time           // zero while something may run
	done     chan struct{}       // closed by Runner.ended; nil when it has ended
	exited   chan struct{}       // closed when Run of the runner has returned; nil when it has ended
	removing bool                // it is being removed, or has been
	removed  bool                // it is off the disk
	collect  bool                // its directory is removed when it has ended

	destroying sync.Mutex // held while it is destroyed; taken before Runner.mu
	destroyed  bool       // guarded by destroying
}

// New returns a runner that has no allocation yet.
func New(c Config) *Runner {
	if c.OnStop == nil {
		c.OnStop = func() {}
	}
	if c.OnIdle == nil {
		c.OnIdle = func() {}
	}
	if c.Alloc.Recovery == nil {
		c.Alloc.Recovery = taskrunner.NewRecoveries()
	}
	return &Runner{
		config:  c,
		logger:  c.Logger.Named("noderunner"),
		begun:   make(chan struct{}),
		collect: make(chan struct{}, 1),
		tidy:    time.AfterFunc(quiet, c.OnIdle),
		entries: make(map[string]*entry),
	}
}

// PreviouslyStarted is closed when Alloc knows what an earlier agent has left.
func (r *Runner) PreviouslyStarted() <-chan struct{} { return r.begun }

// Run keeps the allocations as the source wants them until ctx ends, and then
// returns when all of them have ended: if the cause is
// allocrunner.ErrShutdown their tasks are left running, else they are stopped.
// It is called once.
func (r *Runner) Run(ctx context.Context) {
	defer r.tidy.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.runCollection(ctx) })
	begin := sync.OnceFunc(func() { close(r.begun) })
	for !errors.Is(context.Cause(ctx), allocrunner.ErrShutdown) { // a restore would only be cut short
		wanted, changed := r.config.Source.Allocs()
		if r.reconcile(ctx, wanted, &running) {
			r.tidy.Reset(quiet)
			r.config.OnStop()
		}
		begin()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// reconcile acts on the difference between what is wanted and what there is. It
// reports whether something that may run has to end. Only Run calls it. The
// runners are built without the lock: that opens directories and reads records.
func (r *Runner) reconcile(ctx context.Context, wanted []Assignment, running *sync.WaitGroup) (ending bool) {
	r.mu.Lock()
	change := compare(wanted, r.entries)
	r.mu.Unlock()

	added := make([]*entry, len(change.start))
	for i, a := range change.start {
		added[i] = r.newEntry(a)
	}
	r.apply(change, added, running)
	for i, e := range added {
		switch {
		case !change.start[i].Ended:
			r.start(ctx, e, change.start[i], running)
		case e.collect:
			running.Go(func() { r.gcBatch([]candidate{{entry: e}}, "") })
		}
	}
	r.purge(wanted)
	if len(added) > 0 {
		tick(r.collect)
	}
	return change.ending
}

// purge passes on which allocations belong to purged jobs.
func (r *Runner) purge(wanted []Assignment) {
	for _, a := range wanted {
		if !a.Purged {
			continue
		}
		if runner := r.Alloc(a.Alloc.ID); runner != nil {
			runner.Purge()
		}
	}
}

func (r *Runner) newEntry(a Assignment) *entry {
	e := &entry{id: a.Alloc.ID, alloc: a.Alloc, collect: a.Collect}
	if a.Ended {
		// A clock that was ahead must not make it the last to be collected.
		if e.ended = time.Unix(0, a.Alloc.ModifyTime); e.ended.After(time.Now()) {
			e.ended = time.Now()
		}
		e.removed = !r.onDisk(e.id)
		return e
	}
	e.done, e.exited = make(chan struct{}), make(chan struct{})
	return e
}

// apply makes a change of the set, with the entries that it adds.
func (r *Runner) apply(change difference, added []*entry, running *sync.WaitGroup) {
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
		e.removing = true
		running.Go(func() { r.remove(e) })
	}
}

// start builds the runner of an entry and runs it.
func (r *Runner) start(ctx context.Context, e *entry, a Assignment, running *sync.WaitGroup) {
	config := r.config.Alloc
	config.Alloc = a.Alloc
	if r.config.Node != nil {
		config.Node = r.config.Node()
	}
	// Of one that has begun the records may be lost; what it was last known to do
	// counts then.
	config.Restored = a.Started || a.Alloc.ClientStatus != api.AllocClientStatusPending
	config.Previous = r.over
	config.Report = func(u allocrunner.Update) {
		r.tidy.Reset(quiet)
		r.config.Source.Report(u)
	}
	runner, err := allocrunner.New(config)
	if err != nil {
		r.logger.Error("alloc cannot be run", "alloc_id", e.id, "error", err)
		close(e.exited)
		running.Go(func() { r.ended(e, err) })
		return
	}
	r.mu.Lock()
	e.runner = runner
	if r.killed {
		runner.Kill()
	}
	r.mu.Unlock()
	running.Go(func() {
		runner.Run(ctx)
		close(e.exited)
		if runner.Finished() {
			r.ended(e, nil)
		}
	})
}

// over returns a channel that is closed when nothing of an allocation runs on
// this node.
func (r *Runner) over(id string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[id]; e != nil && e.exited != nil {
		return e.exited
	}
	none := make(chan struct{})
	close(none)
	return none
}

// LeftRunning returns the drivers that have tasks after the end of Run, and the
// hooks that take part in them.
func (r *Runner) LeftRunning() map[supervisor.PluginKey]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	needed := make(map[supervisor.PluginKey]bool)
	for _, e := range r.entries {
		if e.runner != nil {
			for _, what := range e.runner.LeftRunning() {
				needed[what] = true
			}
		}
	}
	return needed
}

// Uses reports whether an allocation that has not ended has a task of a driver, or
// a hook.
func (r *Runner) Uses(what supervisor.PluginKey) bool { return len(r.Users(what)) > 0 }

// Users returns the ids of the allocations for which Uses is true.
func (r *Runner) Users(what supervisor.PluginKey) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.entries {
		if e.runner != nil && e.ended.IsZero() && e.runner.Needs(what) {
			ids = append(ids, id)
		}
	}
	return ids
}

// ended notes that nothing of an allocation runs any more, and lets go of its runner.
func (r *Runner) ended(e *entry, err error) {
	r.mu.Lock()
	e.ended, e.runner = time.Now(), nil
	close(e.done)
	e.done, e.exited = nil, nil
	collect := e.collect
	r.mu.Unlock()
	r.config.Source.Ended(e.id, err)
	if collect {
		r.gcBatch([]candidate{{entry: e}}, "")
	}
	tick(r.collect)
}

// remove stops an allocation and takes it off the disk. It does not end early:
// what is not removed now would stay for ever.
func (r *Runner) remove(e *entry) {
	if runner := r.Alloc(e.id); runner != nil {
		runner.Purge()
		runner.Stop()
		<-runner.Done()
	}
	if err := r.destroy(e); err != nil {
		r.logger.Error("alloc left something behind", "alloc_id", e.id, "error", err)
	}
	r.mu.Lock()
	delete(r.entries, e.id)
	r.mu.Unlock()
	r.config.Source.Removed(e.id)
}

// destroy takes an allocation off the disk that has ended, unless that is done:
// it may be collected first, and removed later.
func (r *Runner) destroy(e *entry) error {
	e.destroying.Lock()
	defer e.destroying.Unlock()
	if e.destroyed {
		return nil
	}
	r.mu.Lock()
	runner, alloc := e.runner, e.alloc
	r.mu.Unlock()
	err := r.destroyOnce(runner, alloc)
	e.destroyed = err == nil
	if e.destroyed {
		removeCgroups(alloc)
	}
	return err
}

// removeCgroups removes the empty cgroups that are left of an allocation, because
// a driver's process died before it removed them.
func removeCgroups(alloc *api.Allocation) {
	if alloc.Job == nil {
		return
	}
	if group := alloc.GetTaskGroup(); group != nil {
		for _, task := range group.Tasks {
			cgroup.RemoveEmpty(alloc.ID, task.Name)
		}
	}
}

func (r *Runner) destroyOnce(runner *allocrunner.Runner, alloc *api.Allocation) error {
	if runner == nil {
		config := r.config.Alloc
		config.Alloc, config.Report = alloc, func(allocrunner.Update) {}
		var err error
		if runner, err = allocrunner.New(config); err != nil {
			// It was never run, by this agent at least. Its directory is all we know of.
			dir, err := allocdir.New(r.config.Alloc.AllocDirRoot, alloc.ID)
			if err != nil {
				return err
			}
			return dir.Destroy()
		}
	}
	return runner.Destroy(context.Background())
}

func (r *Runner) onDisk(allocID string) bool {
	dir, err := allocdir.New(r.config.Alloc.AllocDirRoot, allocID)
	if err != nil {
		return false
	}
	root, err := dir.Open()
	if err != nil {
		return false
	}
	root.Close()
	return true
}

// Alloc returns the runner of an allocation, nil if it has none: it is not here, or
// nothing of it runs any more.
func (r *Runner) Alloc(id string) *allocrunner.Runner {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[id]; e != nil {
		return e.runner
	}
	return nil
}

// Kill ends all allocations at once, without order and without their poststop
// tasks. It does not wait.
func (r *Runner) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killed = true
	for _, e := range r.entries {
		if e.runner != nil {
			e.runner.Kill()
		}
	}
}

// TaskEvent passes what a driver says about a task on to the allocation.
func (r *Runner) TaskEvent(driverName string, event driver.TaskEvent) {
	runner := r.Alloc(event.AllocID)
	if runner == nil || !runner.TaskEvent(event) {
		r.logger.Debug("event for a task that is not here", "driver", driverName, "alloc_id", event.AllocID, "task", event.TaskName)
	}
}

// difference is what separates the node from what is wanted.
type difference struct {
	start  []Assignment
	update []*api.Allocation
	remove []string
	ending bool // what may run has to end
}

// compare has no side effects. A runner is never given an older version, and an
// allocation that is being removed is started again only when it is gone. Reports
// do not make a version newer, but where there is no runner, the one with the last
// report is the one to have.
func compare(wanted []Assignment, have map[string]*entry) difference {
	var d difference
	keep := make(map[string]bool, len(wanted))
	for _, a := range wanted {
		id := a.Alloc.ID
		keep[id] = true
		e := have[id]
		switch {
		case e == nil:
			d.start = append(d.start, a)
		case e.removing, a.Alloc == e.alloc:
		case e.runner == nil, a.Alloc.AllocModifyIndex > e.alloc.AllocModifyIndex:
			d.update = append(d.update, a.Alloc)
			d.ending = d.ending || e.runner != nil && a.Alloc.ServerTerminalStatus()
		}
	}
	for id, e := range have {
		if !keep[id] && !e.removing {
			d.remove = append(d.remove, id)
			d.ending = d.ending || e.runner != nil
		}
	}
	return d
}

func tick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
