package orphans

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/alloccopy"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// jobKey identifies a job.
type jobKey struct{ namespace, jobID string }

// adoptable is an unknown allocation that can be adopted.
type adoptable struct {
	alloc         *api.Allocation
	lastRunByTask map[string]tracespan.Span
	networkPath   string // path of the group's existing network namespace; empty if there is none
}

// adoptUnknownAllocs stores unknown allocations again if their tasks may run, from the copies in their directories: the
// allocations of jobs in the state, and with AdoptUnknownAllocs also others, together with their jobs. It removes the
// adopted allocations from unknownAllocIDs, and returns their IDs. The allocations' runners recover the tasks.
func (c *Cleaner) adoptUnknownAllocs(ctx context.Context, drivers driverSource, adoption *Adoption, unknownAllocIDs map[string]bool) (adoptedIDs map[string]bool) {
	adoptedIDs = make(map[string]bool)
	if adoption == nil {
		return adoptedIDs
	}
	adoptablesByJob := make(map[jobKey][]*adoptable)
	for id := range unknownAllocIDs {
		adopted, err := c.readAdoptableAlloc(ctx, drivers, adoption, id)
		if err != nil {
			c.Logger.Error("unknown allocation not adopted", "alloc_id", id, "error", err)
		}
		if adopted != nil {
			key := jobKey{adopted.alloc.Namespace, adopted.alloc.JobID}
			adoptablesByJob[key] = append(adoptablesByJob[key], adopted)
		}
	}
	for key, adoptables := range adoptablesByJob {
		allocs := make([]*api.Allocation, len(adoptables))
		for i, adopted := range adoptables {
			allocs[i] = adopted.alloc
		}
		err := adoption.Store(ctx, allocs, func(tx *store.Txn) {
			for _, adopted := range adoptables {
				adopted.putRecords(tx)
			}
		})
		if err != nil {
			c.Logger.Error("unknown allocations not adopted", "job_id", key.jobID, "namespace", key.namespace, "error", err)
			continue
		}
		for _, alloc := range allocs {
			c.Logger.Warn("unknown allocation adopted", "alloc_id", alloc.ID, "job_id", key.jobID, "version", pointer.Value(alloc.Job.Version))
			delete(unknownAllocIDs, alloc.ID)
			adoptedIDs[alloc.ID] = true
		}
	}
	return adoptedIDs
}

// readAdoptableAlloc reads an unknown allocation from its copy, and sets its task states. It returns nil if no task can be
// running, or if the job is not in the state and the operator has not ordered to adopt such jobs.
func (c *Cleaner) readAdoptableAlloc(ctx context.Context, drivers driverSource, adoption *Adoption, allocID string) (*adoptable, error) {
	dir, err := allocdir.New(c.AllocDirRoot, allocID)
	if err != nil {
		return nil, err
	}
	runs := c.lastRunByTask(allocID)
	runningTasks := slices.DeleteFunc(slices.Sorted(maps.Keys(runs)), func(task string) bool { return !runs[task].End.IsZero() })
	if len(runningTasks) == 0 {
		return nil, nil
	}
	alloc, err := alloccopy.Read(dir, allocID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("its directory has no copy of it, because an earlier version has started it: put a copy of the state file back, or end its tasks with agent -end-unknown")
	case err != nil:
		return nil, err
	case alloc.Job == nil || alloc.GetTaskGroup() == nil:
		return nil, fmt.Errorf("its copy has no job with the group %q", alloc.TaskGroup)
	case c.AdoptAllocsOfNode && alloc.NodeID != adoption.Node.ID, !c.AdoptAllocsOfNode && !c.AdoptUnknownAllocs && !c.isJobInState(alloc.Job):
		return nil, nil
	}
	for _, task := range runningTasks {
		if err := c.checkDriverFindsTask(ctx, drivers, adoption, runs[task]); err != nil {
			return nil, fmt.Errorf("task %q: %w", task, err)
		}
	}
	alloc.NodeID, alloc.NodeName = adoption.Node.ID, adoption.Node.Name
	alloc.ClientStatus, alloc.TaskStates = api.AllocClientStatusRunning, make(map[string]*api.TaskState)
	for _, t := range alloc.GetTaskGroup().Tasks {
		s, err := c.Store.Snapshot().TaskState(allocID, t.Name)
		if s == nil || err != nil {
			s = newTaskStateFromRun(alloc.Job, t, runs[t.Name])
		}
		model.AppendTaskEvent(s, model.EventOrphanTaskAdopted(), time.Now())
		alloc.TaskStates[t.Name] = s
	}
	adopted := &adoptable{alloc: alloc, lastRunByTask: runs}
	if path := netns.Path(allocID); model.GroupNetworkUnlessHost(alloc.GetTaskGroup()) != nil {
		if _, err := os.Lstat(path); err == nil {
			adopted.networkPath = path
		}
	}
	return adopted, nil
}

// isJobInState reports whether the state has the job, one of its versions, or an allocation of it, from which the scheduler
// recovers the job. A job that was registered again after the loss of its record is another job.
func (c *Cleaner) isJobInState(job *api.Job) bool {
	snapshot := c.Store.Snapshot()
	stored := snapshot.JobVersions(nil, *job.Namespace, *job.ID)
	if current := snapshot.Job(nil, *job.Namespace, *job.ID); current != nil {
		stored = append(stored, current)
	}
	for _, alloc := range snapshot.AllocationsByJob(nil, *job.Namespace, *job.ID) {
		if alloc.Job != nil && !model.AllocTerminal(alloc) { // a stopping allocation's job may have been purged
			stored = append(stored, alloc.Job)
		}
	}
	return slices.ContainsFunc(stored, func(s *api.Job) bool { return pointer.Value(s.CreateIndex) == pointer.Value(job.CreateIndex) })
}

// adoptTimeout limits how long the driver calls for one task may take together.
const adoptTimeout = 30 * time.Second

// checkDriverFindsTask returns an error if the driver cannot find a run's task, because only the plugin process that has
// started it knows it. If a driver searches for its tasks but its process does not know the task yet, checkDriverFindsTask
// ends the former process, which would take the task's exit status.
func (c *Cleaner) checkDriverFindsTask(ctx context.Context, drivers driverSource, adoption *Adoption, run tracespan.Span) error {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	d, err := drivers.Driver(ctx, run.Plugin)
	if err != nil {
		return err
	}
	status, err := d.InspectTask(ctx, run.Name)
	switch {
	case err != nil:
		return fmt.Errorf("driver %q: %w", run.Plugin, err)
	case status.StartStatus != nil && status.StartStatus.Phase == driver.StartNotFound:
		if err := adoption.EndPluginsOfEarlierAgent(ctx, run.Plugin); err != nil {
			return fmt.Errorf("end the former process of driver %q: %w", run.Plugin, err)
		}
	}
	return nil
}

// newTaskStateFromRun returns a task's state from its last run, because its record is lost. A task that would have been
// restarted after its run counts as pending, so its runner starts it.
func newTaskStateFromRun(job *api.Job, t *api.Task, run tracespan.Span) *api.TaskState {
	s := &api.TaskState{State: model.TaskPending}
	stage := lifecycle.StageOf("", false)
	if l := t.Lifecycle; l != nil {
		stage = lifecycle.StageOf(l.Hook, l.Sidecar)
	}
	isFinite := stage.Ephemeral() || stage == lifecycle.MainTask && *job.Type != api.JobTypeService && *job.Type != api.JobTypeSystem
	switch {
	case run.Start.IsZero():
	case run.End.IsZero():
		s.State, s.StartedAt = model.TaskRunning, run.Start.UTC()
	case isFinite && !run.Failed:
		s.State, s.StartedAt, s.FinishedAt = model.TaskDead, run.Start.UTC(), run.End.UTC()
	}
	return s
}

// putRecords stores the task records and the allocation's network. It accesses no file, because transactions wait for each
// other.
func (a *adoptable) putRecords(tx *store.Txn) {
	tx.DeleteAgentRecord(state.UnknownAllocPrefix + a.alloc.ID)
	group := a.alloc.GetTaskGroup()
	for _, t := range group.Tasks {
		s := a.alloc.TaskStates[t.Name]
		local, hasRecord, err := tx.TaskFields(a.alloc.ID, t.Name)
		switch {
		case hasRecord && err == nil:
		case s.State == model.TaskDead:
			local = record.Fields{RunComplete: true}
		case s.State == model.TaskRunning:
			local = record.Fields{StartID: a.lastRunByTask[t.Name].Name}
			local.Handle, _ = tx.TaskHandle(a.alloc.ID, t.Name, local.StartID) // the store reports an unreadable handle
		default:
			continue // the runner starts a task without a record
		}
		tx.PutTask(a.alloc.ID, t.Name, local, s)
	}
	if name := state.NetworkPrefix + a.alloc.ID; a.networkPath != "" && !tx.HasAgentRecord(name) {
		tx.PutAgentRecord(name, state.NewNetworkRecord(state.AllocNetwork{
			AllocID: a.alloc.ID, Mode: model.GroupNetworkUnlessHost(group).Mode,
			Isolation: &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: a.networkPath},
		}))
	}
}
