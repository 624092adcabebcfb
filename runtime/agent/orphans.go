package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/cgroup"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// pluginKey is the prefix of the records of running plugins.
const pluginKey = "plugin/"

// pluginRecords keeps in the state how to reattach to running plugins.
type pluginRecords struct{ store *store.Store }

var _ supervisor.RecordStore = pluginRecords{}

// pluginRecord is a supervisor.Record with a check for reading it from the state.
type pluginRecord supervisor.Record

// CheckRecord implements the check of [store.Reader.Meta].
func (r *pluginRecord) CheckRecord() error {
	if r.Pid == 0 || r.Addr == "" {
		return errors.New("the record of a plugin process lacks its pid or its address")
	}
	return nil
}

// Plugins implements supervisor.Records. An unreadable record is left out and
// quarantined by the store; its plugin process is replaced.
func (p pluginRecords) Plugins() (map[string]supervisor.Record, error) {
	snapshot := p.store.Snapshot()
	all := make(map[string]supervisor.Record)
	for _, name := range snapshot.MetaKeys(pluginKey) {
		var r pluginRecord
		if known, err := snapshot.Meta(name, &r); err == nil && known {
			all[strings.TrimPrefix(name, pluginKey)] = supervisor.Record(r)
		}
	}
	return all, nil
}

// PutPlugin implements supervisor.Records.
func (p pluginRecords) PutPlugin(key string, r supervisor.Record) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(pluginKey+key, r)
		return nil
	})
	return err
}

// DeletePlugin implements supervisor.Records.
func (p pluginRecords) DeletePlugin(key string) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteMeta(pluginKey + key)
		return nil
	})
	return err
}

// taskRecords reads the records of tasks from a new snapshot in each call: one
// snapshot would stay in memory as long as the agent runs.
type taskRecords struct{ store *store.Store }

var _ allocrunner.RecordReader = taskRecords{}

// TaskLocal implements allocrunner.Records.
func (r taskRecords) TaskLocal(allocID, task string) (state.LocalState, bool, error) {
	return r.store.Snapshot().TaskLocal(allocID, task)
}

// TaskState implements allocrunner.Records.
func (r taskRecords) TaskState(allocID, task string) (*api.TaskState, error) {
	return r.store.Snapshot().TaskState(allocID, task)
}

// AllocHooks implements allocrunner.Records.
func (r taskRecords) AllocHooks(allocID string) map[string]string {
	return r.store.Snapshot().AttachedHooks(allocID)
}

// orphan is an allocation that is on the disk or in task records, but not in the
// state.
type orphan struct {
	id string
	// known is true if the state has records of its tasks or of its removal. The
	// files of an unknown orphan are kept, since their owner may need them.
	known bool
	// leaving is true if the node runner continues its removal.
	leaving bool
}

// orphanCleaner ends and removes allocations that an earlier agent left behind.
type orphanCleaner struct {
	store    *store.Store
	allocs   string // the directory that contains the directories of the allocations
	rebooted bool   // the machine has rebooted: no process of an earlier agent is left
	logger   hclog.Logger

	cleared atomic.Bool // clear has completed
}

// find returns the allocations that an earlier agent left behind and that are not in
// the state.
func (c *orphanCleaner) find() (orphans []orphan) {
	state := c.store.Snapshot()
	known := make(map[string]bool)
	for _, id := range state.LocalAllocations() {
		known[id] = true
	}
	for _, fact := range state.MetaKeys(store.PendingRemovalKey) {
		known[strings.TrimPrefix(fact, store.PendingRemovalKey)] = true
	}
	for _, d := range c.store.Damage() {
		if id, ok := strings.CutPrefix(d.Key, store.PendingRemovalKey); ok {
			known[id] = true // its record was quarantined
		}
	}
	removed := make(map[string]bool)
	for _, alloc := range state.PendingRemovals() {
		removed[alloc.ID] = true
	}
	dirs, err := os.ReadDir(c.allocs)
	if err != nil {
		c.logger.Warn("directories of allocations not read", "error", err)
	}
	ids := slices.Collect(maps.Keys(known))
	for _, dir := range dirs {
		ids = append(ids, dir.Name())
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if state.Allocation(nil, id) == nil {
			orphans = append(orphans, orphan{id, known[id], removed[id]})
		}
	}
	return orphans
}

// orphanDeadline is the time limit for clearing one orphan.
const orphanDeadline = 10 * time.Second

// drivers is the part of the supervisor that orphanCleaner needs.
type drivers interface {
	Drivers() map[string]supervisor.Info
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// clear ends the tasks of allocations that are not in the state. Otherwise the
// scheduler would start second copies of them.
func (c *orphanCleaner) clear(ctx context.Context, up drivers) {
	for _, o := range c.find() {
		if err := c.clearOne(ctx, up, o); err != nil {
			c.logger.Error("tasks of a lost allocation may still run", "alloc_id", o.id, "error", err)
			continue
		}
		switch {
		case o.leaving:
			c.logger.Debug("removal of an allocation goes on", "alloc_id", o.id)
		case o.known:
			c.logger.Warn("tasks of a lost allocation are ended", "alloc_id", o.id)
		default:
			c.logger.Warn("tasks of a lost allocation are ended; its directory stays until somebody removes it",
				"alloc_id", o.id, "dir", filepath.Join(c.allocs, o.id))
		}
	}
	c.cleared.Store(ctx.Err() == nil)
}

func (c *orphanCleaner) clearOne(ctx context.Context, up drivers, o orphan) error {
	ctx, cancel := context.WithTimeout(ctx, orphanDeadline)
	defer cancel()
	var errs []error
	records := c.store.Snapshot()
	tasks := append(records.LocalTasks(o.id), c.taskDirs(o.id)...)
	slices.Sort(tasks)
	for _, task := range slices.Compact(tasks) {
		local, known, err := records.TaskLocal(o.id, task)
		starts := local.Starts()
		if err != nil || !known {
			starts = []state.PendingDestroy{{ID: o.id + "/" + task + "/" + driver.WildcardStart}}
		}
		for _, start := range starts {
			errs = append(errs, c.destroy(ctx, up, start))
		}
	}
	if !o.known || o.leaving {
		return errors.Join(errs...)
	}
	if dir, err := allocdir.New(c.allocs, o.id); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, dir.Destroy())
	}
	_, err := c.store.Update(ctx, func(tx *store.Txn) error {
		tx.FinishRemoval(o.id)
		return nil
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("clear what is left of alloc %s: %w", o.id, err)
	}
	return nil
}

// destroy destroys a start. Its driver is not recorded, so each driver is called; the
// others do not find the task.
func (c *orphanCleaner) destroy(ctx context.Context, up drivers, start state.PendingDestroy) error {
	var errs []error
	for name := range up.Drivers() {
		d, err := up.Driver(ctx, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !c.rebooted && start.Handle != nil && d.RecoverTask(ctx, start.Handle) != nil {
			continue
		}
		if err := d.DestroyTask(ctx, start.ID, true); err != nil {
			c.logger.Debug("orphan is not a task of this driver", "driver", name, "task_id", start.ID, "error", err)
		}
	}
	return errors.Join(errs...)
}

// closeEnded denies other accounts access to the directories of ended allocations,
// which an earlier version left open.
func (c *orphanCleaner) closeEnded() {
	if os.Geteuid() != 0 {
		return
	}
	dirs, err := os.ReadDir(c.allocs)
	if err != nil {
		return // find has logged it
	}
	state := c.store.Snapshot()
	for _, entry := range dirs {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || info.Mode()&0o007 == 0 {
			continue
		}
		if alloc := state.Allocation(nil, entry.Name()); alloc != nil && !alloc.ClientTerminalStatus() {
			continue // its runner sets the mode
		}
		dir, err := allocdir.New(c.allocs, entry.Name())
		if err == nil {
			err = dir.Close()
		}
		if err != nil {
			c.logger.Error("other accounts of this machine can enter the directory of an allocation", "alloc_id", entry.Name(), "error", err)
		}
	}
}

// removeEmptyCgroups removes empty cgroups of ended allocations, left behind when
// both a driver's process and the agent died. Cgroups of allocations that are not
// in the state belong to another agent and stay.
func (c *orphanCleaner) removeEmptyCgroups() {
	state := c.store.Snapshot()
	cgroup.SweepEmpty(func(allocID string) bool {
		alloc := state.Allocation(nil, allocID)
		return alloc != nil && alloc.ClientTerminalStatus()
	})
}

// taskDirs returns the names of the tasks that have a directory.
func (c *orphanCleaner) taskDirs(id string) (names []string) {
	entries, _ := os.ReadDir(filepath.Join(c.allocs, id))
	for _, e := range entries {
		if e.IsDir() && e.Name() != "alloc" {
			names = append(names, e.Name())
		}
	}
	return names
}
