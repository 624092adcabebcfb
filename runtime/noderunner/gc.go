package noderunner

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// GC says how much may lie on the disk that nobody runs any more. Zero values
// stand for the defaults, which are Nomad's.
type GC struct {
	MaxAllocs   int           // on the disk, those that run included; 50
	DiskUsage   float64       // percent of the file system; 80
	InodeUsage  float64       // 70
	Interval    time.Duration // between two looks at the disk; 1 minute
	Parallelism int           // 2
}

func (g GC) orDefault() GC {
	return GC{
		MaxAllocs:   cmp.Or(g.MaxAllocs, 50),
		DiskUsage:   cmp.Or(g.DiskUsage, 80),
		InodeUsage:  cmp.Or(g.InodeUsage, 70),
		Interval:    cmp.Or(g.Interval, time.Minute),
		Parallelism: cmp.Or(g.Parallelism, 2),
	}
}

// ErrNotCollectable means that an allocation is not here, or has not ended. The
// HTTP API shows the text, and clients match on it.
//
//lint:ignore ST1005 the text is Nomad's
var ErrNotCollectable = errors.New("No such allocation on client, or allocation not eligible for GC")

// usage is how full the disk is, in percent.
type usage struct{ disk, inodes float64 }

// tooMany returns how many allocations have to go from the disk, as far as is
// known before the first of them has gone.
func (g GC) tooMany(onDisk int, u usage) int {
	surplus := max(0, onDisk-g.MaxAllocs)
	if u.disk > g.DiskUsage || u.inodes > g.InodeUsage {
		return max(1, surplus)
	}
	return surplus
}

// SetGC replaces the limits.
func (r *Runner) SetGC(g GC) {
	r.mu.Lock()
	r.config.GC = g
	r.mu.Unlock()
	tick(r.collect)
}

// runCollection takes ended allocations off the disk while there is too much.
func (r *Runner) runCollection(ctx context.Context) {
	for {
		r.mu.Lock()
		gc := r.config.GC.orDefault()
		r.mu.Unlock()
		r.collectOldest(ctx, gc)
		timer := time.NewTimer(gc.Interval)
		select {
		case <-timer.C:
		case <-r.collect:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// collectOldest collects, oldest first, until there is room.
func (r *Runner) collectOldest(ctx context.Context, gc GC) {
	for ctx.Err() == nil {
		victims, onDisk := r.collectable()
		n := min(gc.tooMany(onDisk, r.diskUsage()), gc.Parallelism, len(victims))
		if n == 0 {
			return // most of the time
		}
		slices.SortFunc(victims, func(a, b *entry) int {
			return cmp.Or(a.ended.Compare(b.ended), strings.Compare(a.id, b.id))
		})
		r.collectThese(victims[:n])
	}
}

// collectThese collects some allocations beside each other.
func (r *Runner) collectThese(victims []*entry) {
	var collecting sync.WaitGroup
	for _, e := range victims {
		collecting.Go(func() {
			if err := r.collectOne(e); err != nil {
				r.logger.Error("alloc directory not removed", "alloc_id", e.id, "error", err)
			} else {
				r.logger.Info("alloc directory removed", "alloc_id", e.id)
			}
		})
	}
	collecting.Wait()
}

// collectOne takes an ended allocation off the disk. One that cannot be removed
// is not tried again before the next agent: it would be tried for ever.
func (r *Runner) collectOne(e *entry) error {
	r.mu.Lock()
	done := e.off
	e.off = true
	r.mu.Unlock()
	if done {
		return nil
	}
	return r.destroy(e)
}

// collectable returns the ended allocations that are on the disk, and how many are
// on the disk at all.
func (r *Runner) collectable() (ended []*entry, onDisk int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.off || e.gone {
			continue
		}
		onDisk++
		if !e.ended.IsZero() {
			ended = append(ended, e)
		}
	}
	return ended, onDisk
}

// diskUsage looks at the file system of the allocations, and tells what df tells:
// blocks that nobody but root may have are neither used nor there. What is not
// known is 0.
func (r *Runner) diskUsage() usage {
	var st unix.Statfs_t
	if err := unix.Statfs(r.config.Alloc.AllocDirRoot, &st); err != nil {
		return usage{}
	}
	var u usage
	if used := st.Blocks - st.Bfree; used+st.Bavail > 0 {
		u.disk = 100 * float64(used) / float64(used+st.Bavail)
	}
	if st.Files > 0 {
		u.inodes = 100 * float64(st.Files-st.Ffree) / float64(st.Files)
	}
	return u
}

// Collect takes one ended allocation off the disk. One whose tasks have ended is
// waited for, as long as ctx allows, while its hooks tidy up: those who ask cannot
// see them. One that is off already is no error.
func (r *Runner) Collect(ctx context.Context, id string) error {
	r.mu.Lock()
	e := r.entries[id]
	if e == nil || e.gone {
		r.mu.Unlock()
		return ErrNotCollectable
	}
	over, runner := e.over, e.runner
	r.mu.Unlock()
	if over != nil {
		if !tidiesUp(runner) {
			return ErrNotCollectable
		}
		select {
		case <-over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return r.collectOne(e)
}

// tidiesUp reports whether only hooks of an allocation may still run.
func tidiesUp(runner *allocrunner.Runner) bool {
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

// CollectAll takes all ended allocations off the disk.
func (r *Runner) CollectAll() {
	victims, _ := r.collectable()
	r.collectThese(victims)
}
