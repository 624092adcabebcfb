package orphans

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// orphan is an allocation that is on the disk or in task records, but not in the
// state.
type orphan struct {
	id string
	// hasRecords is true if the state has records of its tasks or of its removal. The
	// files of an unknown orphan are kept, since their owner may need them.
	hasRecords bool
	// removalPending is true if the node runner continues its removal.
	removalPending bool
}

// Cleaner ends and removes allocations that an earlier agent left behind.
type Cleaner struct {
	Store     *store.Store
	AllocDirs string // the directory that contains the directories of the allocations
	Rebooted  bool   // the machine has rebooted, so no process of an earlier agent is left
	Logger    hclog.Logger

	// EphemeralState means that earlier agents have deleted their state, and have kept the directories.
	EphemeralState bool

	// EndUnknown means that the tasks of unknown allocations are ended, which are left running otherwise: see state.UnknownAllocPrefix.
	EndUnknown bool

	// AdoptUnknown means that the tasks of unknown allocations are adopted: they get records, made from what their processes and their
	// drivers tell. DynamicUsers are the ids of the users that the agent chooses for tasks, and Node is the node that runs them.
	// EndFormerPlugins ends the processes of a driver that earlier agents have left and that this agent does not use. StoreAdopted stores
	// a job whose allocations run.
	AdoptUnknown     bool
	DynamicUsers     idrange.Range
	Node             model.NodeFacts
	EndFormerPlugins func(ctx context.Context, driver string) error
	StoreAdopted     func(context.Context, AdoptedJob) error

	// OnUnknownProcess is called for each process of an unknown task that is left running. It may be nil.
	OnUnknownProcess func(allocID, task string, p osprocess.ID)

	ports            unknownPorts
	mu               sync.Mutex
	unknown          map[string]bool // ids of unknown allocations
	orphansDestroyed atomic.Bool     // DestroyOrphans has completed
}

// OrphansDestroyed reports whether DestroyOrphans has completed.
func (c *Cleaner) OrphansDestroyed() bool { return c.orphansDestroyed.Load() }

// findOrphans returns the allocations that an earlier agent left behind and that are not in
// the state.
func (c *Cleaner) findOrphans() (orphans []orphan) {
	snapshot := c.Store.Snapshot()
	known := make(map[string]bool)
	for _, id := range snapshot.LocalAllocations() {
		known[id] = true
	}
	for _, fact := range snapshot.MetaKeys(state.PendingRemovalPrefix) {
		known[strings.TrimPrefix(fact, state.PendingRemovalPrefix)] = true
	}
	for _, d := range c.Store.Damage() {
		if id, ok := strings.CutPrefix(d.Key, state.PendingRemovalPrefix); ok {
			known[id] = true // the removal record of the allocation was quarantined
		}
	}
	removed := make(map[string]bool)
	for _, alloc := range snapshot.PendingRemovals() {
		removed[alloc.ID] = true
	}
	dirs, err := os.ReadDir(c.AllocDirs)
	if err != nil {
		c.Logger.Warn("directories of allocations not read", "error", err)
	}
	ids := slices.Collect(maps.Keys(known))
	for _, dir := range dirs {
		ids = append(ids, dir.Name())
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if snapshot.Allocation(nil, id) == nil {
			orphans = append(orphans, orphan{id, known[id], removed[id]})
		}
	}
	return orphans
}

// orphanCleanupTimeout is the time limit for clearing one orphan.
const orphanCleanupTimeout = 10 * time.Second

// driverSource is the part of the supervisor that a Cleaner needs.
type driverSource interface {
	Drivers() map[string]supervisor.DriverInfo
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// DestroyOrphans ends the tasks of allocations that are not in the state. The scheduler would
// otherwise start second copies of these tasks. If the whole state was lost, it leaves the tasks running and logs them.
func (c *Cleaner) DestroyOrphans(ctx context.Context, up driverSource) {
	orphans := c.findOrphans()
	unknown, err := c.findUnknown(ctx, orphans)
	if err != nil && ctx.Err() == nil {
		c.Logger.Error("unknown allocations not recorded; the next agent may end their tasks", "error", err)
	}
	c.setUnknown(unknown)
	adopted := make(map[string]bool)
	if c.AdoptUnknown {
		adopted = c.adoptUnknown(ctx, up, unknown)
		c.setUnknown(unknown)
	}
	c.reportUnknown(unknown)
	for _, o := range orphans {
		if unknown[o.id] || adopted[o.id] {
			continue
		}
		if err := c.cleanOrphan(ctx, up, o); err != nil {
			c.Logger.Error("tasks of a lost allocation may still run", "alloc_id", o.id, "error", err)
			continue
		}
		switch {
		case o.removalPending:
			c.Logger.Debug("removal of an allocation continues", "alloc_id", o.id)
		case o.hasRecords:
			c.Logger.Warn("tasks of a lost allocation are ended", "alloc_id", o.id)
		default:
			level := hclog.Warn
			if c.EphemeralState {
				level = hclog.Info // the agent has no records of earlier runs, and keeps their directories
			}
			c.Logger.Log(level, "tasks of a lost allocation are ended; remove its directory when its files are not needed",
				"alloc_id", o.id, "dir", filepath.Join(c.AllocDirs, o.id))
		}
	}
	c.orphansDestroyed.Store(ctx.Err() == nil)
}

func (c *Cleaner) setUnknown(ids map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown = ids
}

func (c *Cleaner) isUnknown(allocID string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unknown[allocID]
}

func (c *Cleaner) cleanOrphan(ctx context.Context, up driverSource, o orphan) error {
	ctx, cancel := context.WithTimeout(ctx, orphanCleanupTimeout)
	defer cancel()
	var errs []error
	records := c.Store.Snapshot()
	tasks := append(records.LocalTasks(o.id), c.taskDirs(o.id)...)
	slices.Sort(tasks)
	for _, task := range slices.Compact(tasks) {
		local, known, err := records.TaskLocalState(o.id, task)
		starts := local.PendingDestroys()
		if err != nil || !known {
			starts = []state.PendingDestroy{{ID: o.id + "/" + task + "/" + driver.WildcardStart}}
		}
		for _, start := range starts {
			errs = append(errs, c.destroyTaskStart(ctx, up, start))
		}
	}
	if c.EndUnknown {
		errs = append(errs, c.endProcesses(ctx, o.id, slices.Compact(tasks)))
	}
	errs = append(errs, hostnet.RemoveLeftover(o.id))
	if !o.hasRecords || o.removalPending {
		return errors.Join(errs...)
	}
	if dir, err := allocdir.New(c.AllocDirs, o.id); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, dir.Destroy())
	}
	_, err := c.Store.Update(ctx, func(tx *store.Txn) error {
		tx.FinishAllocationRemoval(o.id)
		return nil
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("clear what is left of alloc %s: %w", o.id, err)
	}
	return nil
}

// destroyTaskStart destroys a start. Its driver is not recorded, so DestroyTask is called on
// each driver; drivers that did not start it do not find the task.
func (c *Cleaner) destroyTaskStart(ctx context.Context, up driverSource, start state.PendingDestroy) error {
	var errs []error
	for name := range up.Drivers() {
		d, err := up.Driver(ctx, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !c.Rebooted && start.Handle != nil && d.RecoverTask(ctx, start.Handle) != nil {
			continue
		}
		if err := d.DestroyTask(ctx, start.ID, true); err != nil {
			c.Logger.Debug("orphan is not a task of this driver", "driver", name, "task_id", start.ID, "error", err)
		}
	}
	return errors.Join(errs...)
}

// CleanEndedAllocs cleans up after allocations in the state that have ended: it closes their
// directories to other accounts and removes their empty cgroups.
func (c *Cleaner) CleanEndedAllocs() {
	c.denyAccessToEndedAllocs()
	c.removeEmptyCgroups()
}

// denyAccessToEndedAllocs denies other accounts access to the directories of ended allocations,
// which an earlier version left open.
func (c *Cleaner) denyAccessToEndedAllocs() {
	if os.Geteuid() != 0 {
		return
	}
	dirs, err := os.ReadDir(c.AllocDirs)
	if err != nil {
		return // find has logged it
	}
	snapshot := c.Store.Snapshot()
	for _, entry := range dirs {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || info.Mode()&0o007 == 0 {
			continue
		}
		if alloc := snapshot.Allocation(nil, entry.Name()); alloc != nil && !alloc.ClientTerminalStatus() {
			continue // its runner sets the mode
		}
		if c.isUnknown(entry.Name()) {
			continue // its tasks may run
		}
		dir, err := allocdir.New(c.AllocDirs, entry.Name())
		if err == nil {
			err = dir.DenyAccess()
		}
		if err != nil {
			c.Logger.Error("other accounts of this machine can enter the directory of an allocation", "alloc_id", entry.Name(), "error", err)
		}
	}
}

// removeEmptyCgroups removes empty cgroups of ended allocations, left behind when
// both a driver's process and the agent died. Cgroups of allocations that are not
// in the state belong to another agent and stay.
func (c *Cleaner) removeEmptyCgroups() {
	snapshot := c.Store.Snapshot()
	cgroup.RemoveEmptyOfEndedAllocs(func(allocID string) bool {
		alloc := snapshot.Allocation(nil, allocID)
		return alloc != nil && alloc.ClientTerminalStatus()
	})
}

// taskDirs returns the names of the tasks that have a directory.
func (c *Cleaner) taskDirs(id string) (names []string) {
	entries, _ := os.ReadDir(filepath.Join(c.AllocDirs, id))
	for _, e := range entries {
		if e.IsDir() && e.Name() != "alloc" {
			names = append(names, e.Name())
		}
	}
	return names
}
