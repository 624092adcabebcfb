package noderunner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/allocrunner"
)

// GC has the limits for directories of ended allocations. Zero values mean the
// defaults, which are Nomad's where Nomad has the limit.
type GC struct {
	MaxAllocs   int           // maximum number of allocations on the disk, including running ones; default: 50
	DiskUsage   float64       // usage of the file system in percent above which directories are removed; default: 80
	InodeUsage  float64       // usage of inodes in percent above which directories are removed; default: 70
	Interval    time.Duration // time between two checks of the disk; default: 1 minute
	Parallelism int           // number of directories that are removed concurrently; default: 2

	// DiskUsageMinAge is how long an allocation must have ended before DiskUsage
	// and InodeUsage can remove its directory; default: 10 minutes. Nomad has no
	// such limit.
	DiskUsageMinAge time.Duration
}

func (g GC) orDefault() GC {
	return GC{
		MaxAllocs:   cmp.Or(g.MaxAllocs, 50),
		DiskUsage:   cmp.Or(g.DiskUsage, 80),
		InodeUsage:  cmp.Or(g.InodeUsage, 70),
		Interval:    cmp.Or(g.Interval, time.Minute),
		Parallelism: cmp.Or(g.Parallelism, 2),

		DiskUsageMinAge: cmp.Or(g.DiskUsageMinAge, 10*time.Minute),
	}
}

// ErrNotCollectable means that an allocation is not on this node or has not ended.
// The HTTP API returns the text, and clients match on it.
//
//lint:ignore ST1005 the text is Nomad's
var ErrNotCollectable = errors.New("No such allocation on client, or allocation not eligible for GC")

// diskUsage is the usage of the file system in percent.
type diskUsage struct{ usedBlocks, usedInodes float64 }

// gcCandidate is an ended allocation whose directory is on the disk.
type gcCandidate struct {
	*allocEntry
	failed bool
}

// chooseCandidates returns the ended allocations whose directories are removed next, and the
// reason. Above MaxAllocs it returns the oldest, as Nomad does. Above a usage
// threshold it returns one allocation, because other programs may have filled the
// disk: an allocation that ended less than DiskUsageMinAge ago is never chosen, and
// a failed one only when no other is left.
func (g GC) chooseCandidates(ended []gcCandidate, onDisk int, u diskUsage, now time.Time) (chosen []gcCandidate, reason string) {
	if surplus := onDisk - g.MaxAllocs; surplus > 0 {
		slices.SortFunc(ended, compareEndTimes)
		n := min(surplus, g.Parallelism, len(ended))
		return ended[:n], fmt.Sprintf("%d allocations are on the disk, which is more than gc_max_allocs = %d", onDisk, g.MaxAllocs)
	}
	switch {
	case u.usedBlocks > g.DiskUsage:
		reason = fmt.Sprintf("disk usage of %.0f %% is above gc_disk_usage_threshold = %g", u.usedBlocks, g.DiskUsage)
	case u.usedInodes > g.InodeUsage:
		reason = fmt.Sprintf("inode usage of %.0f %% is above gc_inode_usage_threshold = %g", u.usedInodes, g.InodeUsage)
	default:
		return nil, ""
	}
	ended = slices.DeleteFunc(ended, func(e gcCandidate) bool { return now.Sub(e.endTime) < g.DiskUsageMinAge })
	if len(ended) == 0 {
		return nil, ""
	}
	return []gcCandidate{slices.MinFunc(ended, func(a, b gcCandidate) int {
		switch {
		case a.failed == b.failed:
			return compareEndTimes(a, b)
		case a.failed:
			return 1
		}
		return -1
	})}, reason
}

func compareEndTimes(a, b gcCandidate) int {
	return cmp.Or(a.endTime.Compare(b.endTime), strings.Compare(a.id, b.id))
}

// SetGC replaces the limits.
func (r *Runner) SetGC(g GC) {
	r.mu.Lock()
	r.config.GC = g
	r.mu.Unlock()
	notify(r.gcRequested)
}

// runGarbageCollection removes directories of ended allocations above the limits, until
// ctx ends.
func (r *Runner) runGarbageCollection(ctx context.Context) {
	for {
		r.mu.Lock()
		gc := r.config.GC.orDefault()
		r.mu.Unlock()
		r.collectExcessAllocs(ctx, gc)
		timer := time.NewTimer(gc.Interval)
		select {
		case <-timer.C:
		case <-r.gcRequested:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// collectExcessAllocs removes directories until the limits are met or no directory can be
// removed.
func (r *Runner) collectExcessAllocs(ctx context.Context, gc GC) {
	for ctx.Err() == nil {
		ended, onDisk := r.collectableEntries()
		chosen, reason := gc.chooseCandidates(ended, onDisk, r.diskUsage(), time.Now())
		if len(chosen) == 0 {
			return
		}
		r.collectBatch(chosen, reason)
	}
}

// collectBatch removes allocations concurrently. It reports the removals to the source
// if there is a reason; for a request of a user, reason is empty.
func (r *Runner) collectBatch(list []gcCandidate, reason string) {
	var collectWG sync.WaitGroup
	for _, e := range list {
		collectWG.Go(func() {
			if err := r.collectAlloc(e.allocEntry); err != nil {
				r.logger.Error("alloc directory not removed", "alloc_id", e.id, "error", err)
				return
			}
			r.logger.Info("alloc directory removed", "alloc_id", e.id, "reason", cmp.Or(reason, "requested"))
			if reason != "" {
				r.config.Source.ReportCollected(e.id, reason)
			}
		})
	}
	collectWG.Wait()
}

// collectAlloc removes an ended allocation from the disk. A failed removal is repeated by
// the next agent only, because this agent would repeat it forever, unless it failed
// because there was no free descriptor.
func (r *Runner) collectAlloc(e *allocEntry) error {
	r.mu.Lock()
	done := e.dirRemoved
	e.dirRemoved = true
	r.mu.Unlock()
	if done {
		return nil
	}
	defer r.config.OnRemove()
	err := r.destroyEntry(e)
	if osprocess.IsResourceExhausted(err) {
		r.mu.Lock()
		e.dirRemoved = false
		r.mu.Unlock()
	}
	return err
}

// collectableEntries returns the ended allocations that are on the disk, and the number of
// all allocations on the disk.
func (r *Runner) collectableEntries() (ended []gcCandidate, onDisk int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.dirRemoved || e.removalStarted {
			continue
		}
		onDisk++
		if !e.endTime.IsZero() {
			ended = append(ended, gcCandidate{e, e.alloc.ClientStatus == api.AllocClientStatusFailed})
		}
	}
	return ended, onDisk
}

// diskUsage returns the usage of the allocations' file system as df shows it:
// blocks that are reserved for root count neither as used nor as available. An
// unknown value is 0.
func (r *Runner) diskUsage() diskUsage {
	var st unix.Statfs_t
	if err := unix.Statfs(r.config.AllocRunnerConfig.AllocDirRoot, &st); err != nil {
		return diskUsage{}
	}
	var u diskUsage
	if used := st.Blocks - st.Bfree; used+st.Bavail > 0 {
		u.usedBlocks = 100 * float64(used) / float64(used+st.Bavail)
	}
	if st.Files > 0 {
		u.usedInodes = 100 * float64(st.Files-st.Ffree) / float64(st.Files)
	}
	return u
}

// Collect removes an ended allocation from the disk. If its tasks have ended and
// only its hooks still run, Collect waits for them as long as ctx allows, because
// callers cannot see them. If a task only waits for its driver to destroy it,
// Collect stores the request and returns, and the directory is removed when the
// allocation has ended. An allocation that is already removed is not an error.
func (r *Runner) Collect(ctx context.Context, id string) error {
	r.mu.Lock()
	e := r.entries[id]
	if e == nil || e.removalStarted {
		r.mu.Unlock()
		return ErrNotCollectable
	}
	over, runner := e.tasksEnded, e.runner
	r.mu.Unlock()
	if over != nil {
		if !hooksRunning(runner) {
			return ErrNotCollectable
		}
		destroying, err := runner.AwaitTasks(ctx)
		if err != nil {
			return err
		}
		if destroying {
			return r.requestCollectAtEnd(ctx, e)
		}
		select {
		case <-over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return r.collectAlloc(e)
}

// requestCollectAtEnd stores the request to remove an allocation when it has ended.
func (r *Runner) requestCollectAtEnd(ctx context.Context, e *allocEntry) error {
	if err := r.config.Source.CollectAtEnd(ctx, e.id); err != nil {
		return err
	}
	r.mu.Lock()
	e.collectWhenEnded = true
	ended := !e.endTime.IsZero()
	r.mu.Unlock()
	if ended {
		return r.collectAlloc(e)
	}
	r.logger.Info("alloc directory not removed before the driver has destroyed a task", "alloc_id", e.id)
	return nil
}

// hooksRunning reports whether all tasks of an allocation have ended, so that only
// its hooks may still run.
func hooksRunning(runner *allocrunner.Runner) bool {
	if runner == nil {
		return false
	}
	status := runner.Status()
	for _, task := range status.TaskStates {
		if task.State != model.TaskDead {
			return false
		}
	}
	return status.Terminal()
}

// CollectAll removes all ended allocations from the disk. It blocks until they are
// removed.
func (r *Runner) CollectAll() {
	ended, _ := r.collectableEntries()
	r.collectBatch(ended, "")
}
