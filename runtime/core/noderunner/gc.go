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
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// GCLimits has the limits for ended allocations' directories. Zero values mean the defaults, which
// are Nomad's where Nomad has the limit.
type GCLimits struct {
	MaxAllocsOnDisk      int           // maximum number of allocations on the disk, including running ones; default: 50
	MaxDiskUsagePercent  float64       // file system usage in percent above which directories are removed; default: 80
	MaxInodeUsagePercent float64       // inode usage in percent above which directories are removed; default: 70
	DiskCheckInterval    time.Duration // time between two disk checks; default: 1 minute
	MaxParallelRemovals  int           // number of directories removed concurrently; default: 2

	// MinEndedTimeForDiskUsageGC is how long an allocation must have ended before MaxDiskUsagePercent
	// and MaxInodeUsagePercent can remove its directory; default: 10 minutes. Nomad has no such
	// limit.
	MinEndedTimeForDiskUsageGC time.Duration
}

func (g GCLimits) withDefaults() GCLimits {
	return GCLimits{
		MaxAllocsOnDisk:      cmp.Or(g.MaxAllocsOnDisk, 50),
		MaxDiskUsagePercent:  cmp.Or(g.MaxDiskUsagePercent, 80),
		MaxInodeUsagePercent: cmp.Or(g.MaxInodeUsagePercent, 70),
		DiskCheckInterval:    cmp.Or(g.DiskCheckInterval, time.Minute),
		MaxParallelRemovals:  cmp.Or(g.MaxParallelRemovals, 2),

		MinEndedTimeForDiskUsageGC: cmp.Or(g.MinEndedTimeForDiskUsageGC, 10*time.Minute),
	}
}

// ErrNotCollectable means an allocation is not on this node or has not ended. The HTTP API returns
// the text, and clients match on it.
//
//lint:ignore ST1005 the text is Nomad's
var ErrNotCollectable = errors.New("No such allocation on client, or allocation not eligible for GC")

// diskUsage is how full the allocations' file system is, in percent.
type diskUsage struct{ usedBlocksPercent, usedInodesPercent float64 }

// gcCandidate is an ended allocation that may still have a directory.
type gcCandidate struct {
	*allocEntry
	allocFailed bool // the client status is failed
}

// areExceeded reports whether chooseAllocsToCollect can choose an allocation.
func (g GCLimits) areExceeded(allocsOnDisk int, usage diskUsage) bool {
	return allocsOnDisk > g.MaxAllocsOnDisk || usage.usedBlocksPercent > g.MaxDiskUsagePercent || usage.usedInodesPercent > g.MaxInodeUsagePercent
}

// chooseAllocsToCollect returns the ended allocations to remove from the disk next, and the reason.
// allocsOnDisk counts all allocations, not only the ended ones. Above MaxAllocsOnDisk it returns the
// allocations that ended first, as Nomad does. Above a usage threshold it returns one allocation, because
// other programs may have filled the disk. It then never chooses an allocation that ended less than
// MinEndedTimeForDiskUsageGC ago, and a failed one only when no other is left.
func (g GCLimits) chooseAllocsToCollect(ended []gcCandidate, allocsOnDisk int, usage diskUsage, now time.Time) (chosen []gcCandidate, reason string) {
	if surplus := allocsOnDisk - g.MaxAllocsOnDisk; surplus > 0 {
		n := min(surplus, g.MaxParallelRemovals, len(ended))
		for i := range n { // after thousands of allocations have ended, sorting for each removal would take longer than the removal
			for j := i + 1; j < len(ended); j++ {
				if compareEndTimes(ended[j], ended[i]) < 0 {
					ended[i], ended[j] = ended[j], ended[i]
				}
			}
		}
		return ended[:n], fmt.Sprintf("%d allocations are on the disk, which is more than gc_max_allocs = %d", allocsOnDisk, g.MaxAllocsOnDisk)
	}
	switch {
	case usage.usedBlocksPercent > g.MaxDiskUsagePercent:
		reason = fmt.Sprintf("disk usage of %.0f %% is above gc_disk_usage_threshold = %g", usage.usedBlocksPercent, g.MaxDiskUsagePercent)
	case usage.usedInodesPercent > g.MaxInodeUsagePercent:
		reason = fmt.Sprintf("inode usage of %.0f %% is above gc_inode_usage_threshold = %g", usage.usedInodesPercent, g.MaxInodeUsagePercent)
	default:
		return nil, ""
	}
	ended = slices.DeleteFunc(ended, func(e gcCandidate) bool { return now.Sub(e.endTime) < g.MinEndedTimeForDiskUsageGC })
	if len(ended) == 0 {
		return nil, ""
	}
	return []gcCandidate{slices.MinFunc(ended, func(a, b gcCandidate) int {
		switch {
		case a.allocFailed == b.allocFailed:
			return compareEndTimes(a, b)
		case a.allocFailed:
			return 1
		}
		return -1
	})}, reason
}

func compareEndTimes(a, b gcCandidate) int {
	return cmp.Or(a.endTime.Compare(b.endTime), strings.Compare(a.id, b.id))
}

// SetGCLimitsAndCheck replaces the limits and requests a check.
func (r *Runner) SetGCLimitsAndCheck(g GCLimits) {
	r.mu.Lock()
	r.config.GCLimits = g
	r.mu.Unlock()
	wait.Notify(r.gcRequested)
}

// runGarbageCollection removes ended allocations' directories as long as a limit is exceeded. It
// checks the limits at each interval and on request, until ctx is done.
func (r *Runner) runGarbageCollection(ctx context.Context) {
	for {
		r.mu.Lock()
		gc := r.config.GCLimits.withDefaults()
		r.mu.Unlock()
		r.removeExcessAllocDirs(ctx, gc)
		timer := time.NewTimer(gc.DiskCheckInterval)
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

// removeExcessAllocDirs removes ended allocations' directories until no limit is exceeded or no
// directory can be removed.
func (r *Runner) removeExcessAllocDirs(ctx context.Context, limits GCLimits) {
	for ctx.Err() == nil {
		onDisk, usage := r.countAllocsOnDisk(), r.measureDiskUsage()
		if !limits.areExceeded(onDisk, usage) {
			return // before listing the ended allocations, because thousands may end and each end requests a check
		}
		chosen, reason := limits.chooseAllocsToCollect(r.findEndedAllocsOnDisk(), onDisk, usage, time.Now())
		if len(chosen) == 0 {
			return
		}
		r.removeDirsOfEndedAllocs(chosen, reason)
	}
}

// removeDirsOfEndedAllocs removes allocations concurrently. It reports the removals to the source
// unless exceededLimit is empty, as for a user's request.
func (r *Runner) removeDirsOfEndedAllocs(candidates []gcCandidate, exceededLimit string) {
	var collectWG sync.WaitGroup
	for _, e := range candidates {
		collectWG.Go(func() {
			if err := r.removeDirOfEndedAllocOnce(e.allocEntry); err != nil {
				r.logger.Error("alloc directory not removed", "alloc_id", e.id, "error", err)
				return
			}
			r.logger.Info("alloc directory removed", "alloc_id", e.id, "reason", cmp.Or(exceededLimit, "requested"))
			if exceededLimit != "" {
				r.config.Source.ReportDirRemoved(e.id, exceededLimit)
			}
		})
	}
	collectWG.Wait()
}

// removeDirOfEndedAllocOnce removes an ended allocation from the disk. After a failure this agent does not repeat
// the removal, because it would repeat it forever; the next agent does. If the removal failed for lack of a free
// file descriptor, this agent can repeat it.
func (r *Runner) removeDirOfEndedAllocOnce(e *allocEntry) error {
	r.mu.Lock()
	done := e.dirRemovalAttempted
	e.dirRemovalAttempted = true
	r.endedTransitions.remove(e.id)
	r.mu.Unlock()
	if done {
		return nil
	}
	defer r.config.OnAllocDirRemoved()
	err := r.destroyEntryOnce(e)
	if osprocess.IsResourceExhausted(err) {
		r.mu.Lock()
		e.dirRemovalAttempted = false
		r.mu.Unlock()
	}
	return err
}

// findEndedAllocsOnDisk returns the ended allocations for which mayBeOnDiskLocked is true.
func (r *Runner) findEndedAllocsOnDisk() (ended []gcCandidate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entryByAllocID {
		if e.mayBeOnDiskLocked() && !e.endTime.IsZero() {
			ended = append(ended, gcCandidate{e, e.alloc.ClientStatus == api.AllocClientStatusFailed})
		}
	}
	return ended
}

// countAllocsOnDisk counts the allocations, running or ended, for which mayBeOnDiskLocked is true.
func (r *Runner) countAllocsOnDisk() (onDisk int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entryByAllocID {
		if e.mayBeOnDiskLocked() {
			onDisk++
		}
	}
	return onDisk
}

// mayBeOnDiskLocked reports whether the removal of the allocation's directory has not started. The caller holds the
// Runner's mu.
func (e *allocEntry) mayBeOnDiskLocked() bool {
	return !e.dirRemovalAttempted && !e.entryRemovalStarted
}

// measureDiskUsage returns the usage of the allocations' file system as df shows it: blocks
// reserved for root count neither as used nor as available. An unknown value is 0.
func (r *Runner) measureDiskUsage() diskUsage {
	var st unix.Statfs_t
	if err := unix.Statfs(r.config.AllocDirRoot, &st); err != nil {
		return diskUsage{}
	}
	var u diskUsage
	if used := st.Blocks - st.Bfree; used+st.Bavail > 0 {
		u.usedBlocksPercent = 100 * float64(used) / float64(used+st.Bavail)
	}
	if st.Files > 0 {
		u.usedInodesPercent = 100 * float64(st.Files-st.Ffree) / float64(st.Files)
	}
	return u
}

// RemoveDirOfEndedAlloc removes an ended allocation from the disk. If its tasks have ended and only its hooks
// still run, RemoveDirOfEndedAlloc waits until the hooks have returned or ctx is done, because callers cannot see
// hooks. If a driver must still destroy an ended task, RemoveDirOfEndedAlloc stores the request and returns nil,
// and the directory is removed when the allocation has ended. It also returns nil for an allocation already
// removed.
func (r *Runner) RemoveDirOfEndedAlloc(ctx context.Context, allocID string) error {
	r.mu.Lock()
	e := r.entryByAllocID[allocID]
	if e == nil || e.entryRemovalStarted {
		r.mu.Unlock()
		return ErrNotCollectable
	}
	over, runner := e.allocEnded, e.runner
	r.mu.Unlock()
	if over != nil {
		if !onlyHooksCanRun(runner) {
			return ErrNotCollectable
		}
		destroying, err := runner.AwaitTasksEnded(ctx)
		if err != nil {
			return err
		}
		if destroying {
			return r.requestRemoveDirAtEnd(ctx, e)
		}
		select {
		case <-over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return r.removeDirOfEndedAllocOnce(e)
}

// requestRemoveDirAtEnd stores the request to remove an allocation's directory when the allocation
// has ended. If it has ended in the meantime, requestRemoveDirAtEnd removes the directory.
func (r *Runner) requestRemoveDirAtEnd(ctx context.Context, e *allocEntry) error {
	if err := r.config.Source.StoreRemoveDirAtEnd(ctx, e.id); err != nil {
		return err
	}
	r.mu.Lock()
	e.removeDirWhenEnded = true
	ended := !e.endTime.IsZero()
	r.mu.Unlock()
	if ended {
		return r.removeDirOfEndedAllocOnce(e)
	}
	r.logger.Info("alloc directory not removed before the driver has destroyed a task", "alloc_id", e.id)
	return nil
}

// onlyHooksCanRun reports whether all the allocation's tasks have ended, so that only its hooks may
// still run.
func onlyHooksCanRun(runner *allocrunner.Runner) bool {
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

// RemoveDirsOfAllEndedAllocs removes all ended allocations from the disk. It blocks until they are
// removed.
func (r *Runner) RemoveDirsOfAllEndedAllocs() {
	r.removeDirsOfEndedAllocs(r.findEndedAllocsOnDisk(), "")
}
