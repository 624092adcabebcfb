package orphans

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/alloccopy"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// RunningAlloc describes an unknown allocation with a process. The names are empty if its directory has no copy.
type RunningAlloc struct {
	Namespace, JobID, Name string
	IsInstance             bool // the state has the job, so the scheduler places nothing under this name
}

// RunningUnknownAllocs returns the unknown allocations with a process, by ID.
func (c *Cleaner) RunningUnknownAllocs() map[string]RunningAlloc {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.runningUnknownAllocs)
}

// FindUnknownInstance returns the ID of the unknown allocation that runs under a stored job's name, or "". A second allocation
// with this name would run the same tasks twice. It does not block.
func (c *Cleaner) FindUnknownInstance(job *api.Job, allocName string) (allocID string) {
	instance := RunningAlloc{*job.Namespace, *job.ID, allocName, true}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, alloc := range c.runningUnknownAllocs {
		if alloc == instance {
			return id
		}
	}
	return ""
}

// AwaitUnknownTasksEnded blocks until the allocation has no unknown tasks, or returns ctx's cause. It calls onWait before it
// blocks. If a cluster's servers assign the allocation again, a start before that would run its tasks twice.
func (c *Cleaner) AwaitUnknownTasksEnded(ctx context.Context, allocID string, onWait func()) error {
	_, isRunning := c.RunningUnknownAllocs()[allocID]
	if isRunning {
		onWait()
	}
	for ; isRunning; _, isRunning = c.RunningUnknownAllocs()[allocID] {
		if wait.Sleep(ctx, unknownAllocsInterval) != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// deleteUnrecoverableAllocs deletes an allocation's records if a running task has no record and its driver does not know the
// task: the allocation's runner would start the task a second time. It returns the deleted allocations' IDs, which are unknown
// then. An allocation without a process or a copy stays, and so do all in a cluster, because the servers would assign them again.
// Without an adoption, all stay.
func (c *Cleaner) deleteUnrecoverableAllocs(ctx context.Context, drivers driverSource, adoption *Adoption, allocIDs map[string]bool) (deleted map[string]bool) {
	unrecoverable := make(map[string]bool)
	snapshot := c.Store.Snapshot()
	for id := range allocIDs {
		alloc := snapshot.Allocation(nil, id)
		if adoption == nil || c.AdoptAllocsOfNode || alloc == nil || c.readCopy(id) == nil {
			continue
		}
		runs := c.lastRunByTask(id)
		for _, task := range runningTasksWithoutRecord(snapshot.Reader, alloc) {
			run, ok := runs[task]
			if !ok {
				continue
			}
			if err := c.checkDriverFindsTask(ctx, drivers, adoption, run); errors.Is(err, driver.ErrTaskNotFound) {
				unrecoverable[id] = true
			}
		}
	}
	if len(unrecoverable) == 0 {
		return nil
	}
	processes, err := findTaskProcesses(c.taskSearch(unrecoverable))
	deleted = make(map[string]bool)
	for task := range processes {
		deleted[task.AllocID] = true
	}
	_, updateErr := c.Store.Update(ctx, func(tx *store.Txn) error {
		for id := range deleted {
			tx.DeleteAllocationAndQueueRemoval(id)
			tx.DeleteAgentRecord(state.PendingRemovalPrefix + id) // the files stay
			tx.DeleteRunnerRecordsAndServices(id)
		}
		return nil
	})
	if err := errors.Join(err, updateErr); err != nil && ctx.Err() == nil {
		c.Logger.Error("tasks whose records were lost may be started a second time", "error", err)
	}
	if updateErr != nil {
		return nil
	}
	return deleted
}

// readCopy reads an allocation's copy from its directory. It returns nil if there is none, or if it is damaged.
func (c *Cleaner) readCopy(allocID string) *api.Allocation {
	dir, err := allocdir.New(c.AllocDirRoot, allocID)
	if err != nil {
		return nil
	}
	alloc, err := alloccopy.Read(dir, allocID)
	if err != nil || alloc.Job == nil {
		return nil
	}
	return alloc
}

// recordRunningUnknownAllocs records the unknown allocations with a process.
func (c *Cleaner) recordRunningUnknownAllocs(allocIDs map[string]bool) {
	running := make(map[string]RunningAlloc, len(allocIDs))
	for id := range allocIDs {
		var r RunningAlloc
		if alloc := c.readCopy(id); alloc != nil {
			r = RunningAlloc{alloc.Namespace, alloc.JobID, alloc.Name, !c.AdoptAllocsOfNode && c.isJobInState(alloc.Job)}
		}
		if running[id] = r; r.IsInstance {
			c.Logger.Warn("unknown allocation counts as an instance of its job until its tasks end", "alloc_id", id, "job_id", r.JobID, "name", r.Name)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runningUnknownAllocs = running
}

// unknownAllocsInterval is how often WatchUnknownAllocs searches all processes on the machine.
const unknownAllocsInterval = 5 * time.Second

// WatchUnknownAllocs calls onEnd after unknown allocations' tasks have ended, so that their jobs get replacements. It blocks
// until all have ended, or ctx is done. It must be called once, after DestroyOrAdoptOrphans.
func (c *Cleaner) WatchUnknownAllocs(ctx context.Context, onEnd func()) {
	for len(c.RunningUnknownAllocs()) > 0 && wait.Sleep(ctx, unknownAllocsInterval) == nil {
		ended, err := c.forgetEndedUnknownAllocs()
		if err != nil {
			c.Logger.Debug("processes of unknown allocations not found", "error", err)
		}
		if ended {
			onEnd()
		}
	}
}

// forgetEndedUnknownAllocs forgets the unknown allocations without a process, and reports whether there were any. After an error
// it forgets none, because a search may have missed a process.
func (c *Cleaner) forgetEndedUnknownAllocs() (ended bool, err error) {
	left := make(map[string]bool)
	for id := range c.RunningUnknownAllocs() {
		left[id] = true
	}
	tasks, err := findTaskProcesses(c.taskSearch(left))
	if err != nil {
		return false, err
	}
	for task := range tasks {
		delete(left, task.AllocID)
	}
	withUntrustedProcess, err := findAllocsWithProcesses(left)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range left {
		if !withUntrustedProcess[id] {
			c.Logger.Warn("tasks of an unknown allocation have ended", "alloc_id", id)
			delete(c.runningUnknownAllocs, id)
			ended = true
		}
	}
	return ended, nil
}
