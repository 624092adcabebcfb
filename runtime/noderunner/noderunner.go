package noderunner

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
)

// Source is where allocations come from, and where their states go.
type Source interface {
	// Allocs returns the allocations that shall be on this node, and a channel
	// that is closed when the next call has another answer. An allocation that
	// is the same but newer has a higher AllocModifyIndex; one that shall stop
	// and be kept has a DesiredStatus that says so; one that is missing is
	// stopped and removed from the disk.
	Allocs() ([]*api.Allocation, <-chan struct{})

	// Report is called for each change of an allocation, one call at a time for
	// each. It should return soon.
	Report(allocrunner.Update)

	// Ended is called once for an allocation, after its last Report: nothing of
	// it runs any more. err says why it could not be run at all; it is nil for
	// one that was.
	Ended(allocID string, err error)

	// Removed is called once for an allocation that was missing from Allocs,
	// when it is off the disk.
	Removed(allocID string)
}

// quiet is how long nothing must have changed before memory is given back. The
// start of an allocation needs several times what its life needs, most of it
// the stacks of the calls that start it.
const quiet = time.Second

// Config is what a Runner is made of.
type Config struct {
	Source Source
	// Alloc is the pattern for the runner of each allocation; Alloc.Alloc and
	// Alloc.Report are filled in.
	Alloc  allocrunner.Config
	Logger hclog.Logger
}

// Runner is the set of allocations on this node.
type Runner struct {
	config Config
	logger hclog.Logger
	tidy   *time.Timer // gives memory back after a burst of changes

	mu      sync.Mutex
	entries map[string]*entry
}

// entry is one allocation of the set.
type entry struct {
	index  uint64              // AllocModifyIndex of the newest version that the runner has
	runner *allocrunner.Runner // nil if it could not be made
	gone   bool                // it is being removed
}

// New returns a runner that has no allocation yet.
func New(c Config) *Runner {
	return &Runner{
		config:  c,
		logger:  c.Logger.Named("noderunner"),
		tidy:    time.AfterFunc(quiet, debug.FreeOSMemory),
		entries: make(map[string]*entry),
	}
}

// Run keeps the allocations as the source wants them until ctx ends, and then
// returns when all of them have ended: if the cause is
// allocrunner.ErrShutdown their tasks are left running, else they are stopped.
// It is called once.
func (r *Runner) Run(ctx context.Context) {
	defer r.tidy.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		wanted, changed := r.config.Source.Allocs()
		r.reconcile(ctx, wanted, &running)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// reconcile acts on the difference between what is wanted and what there is.
func (r *Runner) reconcile(ctx context.Context, wanted []*api.Allocation, running *sync.WaitGroup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change := compare(wanted, r.entries)
	for _, alloc := range change.start {
		r.startLocked(ctx, alloc, running)
	}
	for _, alloc := range change.update {
		e := r.entries[alloc.ID]
		e.index = alloc.AllocModifyIndex
		e.runner.Update(alloc)
	}
	for _, id := range change.remove {
		e := r.entries[id]
		e.gone = true
		running.Go(func() { r.remove(id, e) })
	}
}

func (r *Runner) startLocked(ctx context.Context, alloc *api.Allocation, running *sync.WaitGroup) {
	config := r.config.Alloc
	config.Alloc = alloc
	config.Report = func(u allocrunner.Update) {
		r.tidy.Reset(quiet)
		r.config.Source.Report(u)
	}
	runner, err := allocrunner.New(config)
	r.entries[alloc.ID] = &entry{index: alloc.AllocModifyIndex, runner: runner}
	if err != nil {
		r.logger.Error("alloc cannot be run", "alloc_id", alloc.ID, "error", err)
		running.Go(func() { r.config.Source.Ended(alloc.ID, err) })
		return
	}
	running.Go(func() {
		runner.Run(ctx)
		r.config.Source.Ended(alloc.ID, nil)
	})
}

// remove stops an allocation and takes it off the disk. It does not end early:
// what is not removed now would stay for ever.
func (r *Runner) remove(id string, e *entry) {
	if e.runner != nil {
		e.runner.Stop()
		<-e.runner.Done()
		if err := e.runner.Destroy(context.Background()); err != nil {
			r.logger.Error("alloc left something behind", "alloc_id", id, "error", err)
		}
	}
	r.mu.Lock()
	delete(r.entries, id)
	r.mu.Unlock()
	r.config.Source.Removed(id)
}

// Kill ends all allocations at once, without order and without their poststop
// tasks. It does not wait.
func (r *Runner) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.runner != nil {
			e.runner.Kill()
		}
	}
}

// TaskEvent passes what a driver says about a task on to the allocation.
func (r *Runner) TaskEvent(driverName string, event driver.TaskEvent) {
	r.mu.Lock()
	e := r.entries[event.AllocID]
	r.mu.Unlock()
	if e == nil || e.runner == nil || !e.runner.TaskEvent(event) {
		r.logger.Debug("event for a task that is not here", "driver", driverName, "alloc_id", event.AllocID, "task", event.TaskName)
	}
}

// difference is what separates the node from what is wanted.
type difference struct {
	start  []*api.Allocation
	update []*api.Allocation
	remove []string
}

// compare has no side effects. A runner is never given an older version, and an
// allocation that is being removed is started again only when it is gone.
func compare(wanted []*api.Allocation, have map[string]*entry) difference {
	var d difference
	keep := make(map[string]bool, len(wanted))
	for _, alloc := range wanted {
		keep[alloc.ID] = true
		e := have[alloc.ID]
		switch {
		case e == nil:
			d.start = append(d.start, alloc)
		case e.runner != nil && !e.gone && alloc.AllocModifyIndex > e.index:
			d.update = append(d.update, alloc)
		}
	}
	for id, e := range have {
		if !keep[id] && !e.gone {
			d.remove = append(d.remove, id)
		}
	}
	return d
}
