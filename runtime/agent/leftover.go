package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// pluginFact begins the names of the records of running plugins.
const pluginFact = "plugin/"

// pluginRecords keeps in the state how running plugins are found again.
type pluginRecords struct{ store *store.Store }

var _ supervisor.Records = pluginRecords{}

// Plugins implements supervisor.Records. A record that does not read is left out:
// the process is replaced.
func (p pluginRecords) Plugins() (map[string]supervisor.Record, error) {
	snapshot := p.store.Snapshot()
	all := make(map[string]supervisor.Record)
	for _, name := range snapshot.Facts(pluginFact) {
		var r supervisor.Record
		if known, err := snapshot.Fact(name, &r); err == nil && known {
			all[strings.TrimPrefix(name, pluginFact)] = r
		}
	}
	return all, nil
}

// PutPlugin implements supervisor.Records.
func (p pluginRecords) PutPlugin(key string, r supervisor.Record) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutFact(pluginFact+key, r)
		return nil
	})
	return err
}

// DeletePlugin implements supervisor.Records.
func (p pluginRecords) DeletePlugin(key string) error {
	_, err := p.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteFact(pluginFact + key)
		return nil
	})
	return err
}

// taskRecords are the records of tasks as they are when they are asked for: a
// snapshot would be kept in memory as long as the agent runs.
type taskRecords struct{ store *store.Store }

var _ allocrunner.Records = taskRecords{}

// TaskLocal implements allocrunner.Records.
func (r taskRecords) TaskLocal(allocID, task string) (taskrunner.LocalState, bool, error) {
	return r.store.Snapshot().TaskLocal(allocID, task)
}

// TaskState implements allocrunner.Records.
func (r taskRecords) TaskState(allocID, task string) (*api.TaskState, error) {
	return r.store.Snapshot().TaskState(allocID, task)
}

// findOrphans returns the allocations that are not in the state any more, but of
// whose tasks there are records, or whose directory is there: an agent was killed
// while it removed them. Directories are left alone if the state may be at fault.
func (a *Agent) findOrphans() []string {
	state := a.store.Snapshot()
	ids := state.LocalAllocations()
	dirs, err := os.ReadDir(a.AllocDirs())
	if err != nil {
		a.logger.Warn("directories of allocations that are gone stay", "error", err)
	}
	sound := len(a.store.Damage()) == 0 && len(state.Nodes(nil, "")) > 0
	for _, dir := range dirs {
		if sound {
			ids = append(ids, dir.Name())
		} else if state.Allocation(nil, dir.Name()) == nil {
			a.logger.Warn("directory of an allocation that the state does not have", "dir", filepath.Join(a.AllocDirs(), dir.Name()))
		}
	}
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return state.Allocation(nil, id) != nil })
}

// orphanDeadline is how long the end of one orphan may take.
const orphanDeadline = 10 * time.Second

// clearOrphans ends what runs of allocations whose records do not read any more,
// although those of their tasks do. The scheduler would start others beside them.
func (a *Agent) clearOrphans(ctx context.Context) {
	for _, id := range a.orphans {
		if err := a.clearOrphan(ctx, id); err != nil {
			a.logger.Error("tasks of a lost allocation may still run", "alloc_id", id, "error", err)
			continue
		}
		a.logger.Warn("tasks of a lost allocation are ended", "alloc_id", id)
	}
}

func (a *Agent) clearOrphan(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, orphanDeadline)
	defer cancel()
	var errs []error
	records := a.store.Snapshot()
	for _, task := range records.LocalTasks(id) {
		local, known, err := records.TaskLocal(id, task)
		if err != nil || !known || local.StartID == "" {
			errs = append(errs, err)
			continue
		}
		// Nobody knows any more whose task it was; others do not know it.
		for name := range a.Drivers() {
			d, err := a.supervisor.Driver(ctx, name)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if !a.rebooted && local.Handle != nil && d.RecoverTask(ctx, local.Handle) != nil {
				continue
			}
			if err := d.DestroyTask(ctx, local.StartID, true); err != nil {
				a.logger.Debug("orphan is not a task of this driver", "driver", name, "task", task, "error", err)
			}
		}
	}
	if dir, err := allocdir.New(a.AllocDirs(), id); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, dir.Destroy())
	}
	_, err := a.store.Update(ctx, func(tx *store.Txn) error {
		tx.ForgetAllocation(id)
		return nil
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("clear what is left of alloc %s: %w", id, err)
	}
	return nil
}
