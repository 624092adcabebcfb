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
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// orphan is an allocation with a directory or task records, but without an entry in the state's allocations.
type orphan struct {
	allocID string
	// hasRecords: the state has records for its tasks or its removal. An orphan's files are kept if it has no records, because their
	// owner may need them.
	hasRecords bool
	// isBeingRemoved: the state has a removal record for it, so its tasks must end.
	isBeingRemoved bool
	// nodeRunnerRemovesAlloc: the node runner continues the allocation's removal.
	nodeRunnerRemovesAlloc bool
}

// Cleaner ends and removes orphans: allocations that an earlier agent left behind and that are not
// in the state.
type Cleaner struct {
	Store        *store.Store
	AllocDirRoot string // parent of the allocations' directories
	Rebooted     bool   // the machine has rebooted, so no earlier agent's process is left
	Logger       hclog.Logger

	// StateWasEphemeral means that earlier agents have deleted their state, and have kept the directories.
	StateWasEphemeral bool

	// EndTasksOfUnknownAllocs: unknown allocations' tasks are ended. Otherwise they are left running; see state.UnknownAllocPrefix.
	EndTasksOfUnknownAllocs bool

	// AdoptUnknownAllocs means that unknown allocations are adopted even if the state does not have their jobs.
	AdoptUnknownAllocs bool
	// AdoptAllocsOfNode: only unknown allocations of Adoption.Node are adopted. Servers have assigned them to it, and end those that it should
	// no longer have.
	AdoptAllocsOfNode bool

	// IsTrustedParent reports whether a process gives its descendants their task's environment; see [osprocess.TaskSearch]. It may
	// be nil.
	IsTrustedParent func(pid int) bool

	// OnProcessLeftRunning is called for each unknown task process left running. It may be nil.
	OnProcessLeftRunning func(allocID, task string, p osprocess.ID)

	unknownTaskPorts     processesOfHostPorts
	mu                   sync.Mutex
	unknownAllocIDs      map[string]bool         // ids of unknown allocations; their tasks are left running
	runningUnknownAllocs map[string]RunningAlloc // unknown allocations with a process, by id
	orphansHandled       atomic.Bool             // DestroyOrAdoptOrphans has completed
}

// Adoption is what a Cleaner needs to adopt unknown allocations.
type Adoption struct {
	Node model.NodeFacts // the adopted allocations' node
	// Store stores one job's allocations, together with the job if the state does not have it. edit makes other changes in the
	// same transaction.
	Store func(ctx context.Context, allocs []*api.Allocation, edit func(*store.Txn)) error
	// EndPluginsOfEarlierAgent ends a driver's plugin processes from an earlier agent, unless this agent uses them.
	EndPluginsOfEarlierAgent func(ctx context.Context, driver string) error
}

// OrphansHandled reports whether DestroyOrAdoptOrphans has completed.
func (c *Cleaner) OrphansHandled() bool { return c.orphansHandled.Load() }

// findOrphans returns the orphans, sorted by id.
func (c *Cleaner) findOrphans() (orphans []orphan) {
	snapshot := c.Store.Snapshot()
	known, removing := make(map[string]bool), make(map[string]bool)
	for _, id := range snapshot.AllocIDsWithLocalRecords() {
		known[id] = true
	}
	for _, fact := range snapshot.AgentRecordNames(state.PendingRemovalPrefix) {
		removing[strings.TrimPrefix(fact, state.PendingRemovalPrefix)] = true
	}
	for _, d := range c.Store.Damage() {
		if id, ok := strings.CutPrefix(d.Key, state.PendingRemovalPrefix); ok {
			removing[id] = true // the store has quarantined the allocation's damaged removal record
		}
	}
	maps.Copy(known, removing)
	removed := make(map[string]bool)
	for _, alloc := range snapshot.AllocationsPendingRemoval() {
		removed[alloc.ID] = true
	}
	dirs, err := os.ReadDir(c.AllocDirRoot)
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
			orphans = append(orphans, orphan{id, known[id], removing[id], removed[id]})
		}
	}
	return orphans
}

// orphanCleanupTimeout limits how long one orphan's cleanup may take.
const orphanCleanupTimeout = 10 * time.Second

// driverSource has the supervisor methods for a Cleaner.
type driverSource interface {
	WaitBrieflyForFirstReports(ctx context.Context) error
	DriverInfoByName() map[string]supervisor.DriverInfo
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// DestroyOrAdoptOrphans continues an earlier agent's removal of orphans. The others are unknown allocations: it adopts those with
// a job in the state, so that the scheduler starts no second copies of their tasks, and all if AdoptUnknownAllocs is set. It
// leaves the remaining tasks running and logs them. If adoption is nil, it adopts none.
func (c *Cleaner) DestroyOrAdoptOrphans(ctx context.Context, drivers driverSource, adoption *Adoption) {
	orphans, recovered := c.findOrphans(), c.AllocsWithoutTaskRecord()
	if len(orphans)+len(recovered) > 0 {
		// An orphan task's driver is not always known, and can be a plugin without a cached description.
		if err := drivers.WaitBrieflyForFirstReports(ctx); err != nil {
			return
		}
	}
	if len(c.Store.Damage()) > 0 && adoption != nil {
		c.endFormerPlugins(ctx, drivers, adoption)
	}
	if lost := c.deleteUnrecoverableAllocs(ctx, drivers, adoption, recovered); len(lost) > 0 {
		orphans = c.findOrphans()
		maps.DeleteFunc(recovered, func(id string, _ bool) bool { return lost[id] })
	}
	unknown, err := c.findAndRecordUnknownAllocs(ctx, orphans)
	if err != nil && ctx.Err() == nil {
		c.Logger.Error("unknown allocations not recorded; the next agent may end their tasks", "error", err)
	}
	adopted := c.adoptUnknownAllocs(ctx, drivers, adoption, unknown)
	c.setUnknownAllocIDs(unknown)
	maps.Copy(recovered, adopted)
	c.logUnknownAllocsAndRecordPorts(unknown, recovered)
	ended := make(map[string]bool)
	for _, o := range orphans {
		if unknown[o.allocID] || adopted[o.allocID] {
			continue
		}
		if err := c.destroyTasksOfOrphan(ctx, drivers, o); err != nil {
			c.logTasksMayRun(o, err)
			continue
		}
		ended[o.allocID] = true
	}
	endErr := c.endProcesses(ctx, ended)
	running, lookErr := findAllocsWithProcesses(ended)
	for _, o := range orphans {
		if !ended[o.allocID] {
			continue
		}
		err := errors.Join(endErr, lookErr)
		if err == nil && running[o.allocID] {
			err = errors.New("no driver has its tasks, but processes run that name the allocation in their environment or have its directory mounted: end them, and start the agent again")
		}
		if err != nil {
			c.logTasksMayRun(o, err)
			continue
		}
		if err := c.cleanUpOrphan(ctx, o); err != nil {
			c.Logger.Error("the rest of a lost allocation is not removed; the next agent tries again", "alloc_id", o.allocID, "error", err)
			continue
		}
		switch {
		case o.nodeRunnerRemovesAlloc:
			c.Logger.Debug("removal of an allocation continues", "alloc_id", o.allocID)
		case o.hasRecords:
			c.Logger.Warn("tasks of a lost allocation are ended", "alloc_id", o.allocID)
		default:
			level := hclog.Warn
			if c.StateWasEphemeral {
				level = hclog.Info // such an agent's orphans are expected
			}
			c.Logger.Log(level, "tasks of a lost allocation are ended; remove its directory when its files are not needed",
				"alloc_id", o.allocID, "dir", filepath.Join(c.AllocDirRoot, o.allocID))
		}
	}
	c.orphansHandled.Store(ctx.Err() == nil)
}

// endFormerPlugins ends an earlier agent's plugin processes after the state has lost their records: such a process takes its
// tasks' exit statuses, and no agent connects to it again.
func (c *Cleaner) endFormerPlugins(ctx context.Context, drivers driverSource, adoption *Adoption) {
	for name := range drivers.DriverInfoByName() {
		if err := adoption.EndPluginsOfEarlierAgent(ctx, name); err != nil {
			c.Logger.Debug("former processes of a driver not ended", "driver", name, "error", err)
		}
	}
}

// AllocsWithoutTaskRecord returns the allocations in the state with a running task but without its record. Their runners may only
// start after DestroyOrAdoptOrphans, which makes an allocation unknown if no driver finds its task.
func (c *Cleaner) AllocsWithoutTaskRecord() map[string]bool {
	ids := make(map[string]bool)
	snapshot := c.Store.Snapshot()
	for _, alloc := range snapshot.WithoutEndedEvents().Allocations(nil, "") {
		if len(runningTasksWithoutRecord(snapshot.Reader, alloc)) > 0 {
			ids[alloc.ID] = true
		}
	}
	return ids
}

// runningTasksWithoutRecord returns the names of an allocation's running tasks without a record.
func runningTasksWithoutRecord(r store.Reader, alloc *api.Allocation) (names []string) {
	if alloc.ClientTerminalStatus() {
		return nil
	}
	for name, task := range alloc.TaskStates {
		if task.State != model.TaskRunning {
			continue
		}
		if !r.HasTaskFields(alloc.ID, name) {
			names = append(names, name)
		}
	}
	return names
}

func (c *Cleaner) setUnknownAllocIDs(ids map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknownAllocIDs = ids
}

func (c *Cleaner) isUnknownAlloc(allocID string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unknownAllocIDs[allocID]
}

func (c *Cleaner) logTasksMayRun(o orphan, err error) {
	c.Logger.Error("tasks of a lost allocation may still run", "alloc_id", o.allocID, "error", err)
}

// destroyTasksOfOrphan destroys an orphan's tasks in all drivers. After an error the records stay, because the next agent
// destroys the tasks by them.
func (c *Cleaner) destroyTasksOfOrphan(ctx context.Context, drivers driverSource, o orphan) error {
	ctx, cancel := context.WithTimeout(ctx, orphanCleanupTimeout)
	defer cancel()
	var errs []error
	records := c.Store.Snapshot()
	tasks := append(records.TaskNamesWithLocalRecords(o.allocID), c.taskDirNames(o.allocID)...)
	slices.Sort(tasks)
	for _, task := range slices.Compact(tasks) {
		local, known, err := records.TaskFields(o.allocID, task)
		starts := local.StartsToDestroy()
		if err != nil || !known {
			starts = []record.PendingDestroy{{StartID: o.allocID + "/" + task + "/" + driver.WildcardStart}}
		}
		for _, start := range starts {
			switch handle, err := records.TaskHandle(o.allocID, task, start.StartID); {
			case err != nil:
				start.Handle = nil // each driver would take the rest for another driver's handle
			case handle != nil:
				start.Handle = handle
			}
			errs = append(errs, c.destroyTaskStartInAllDrivers(ctx, drivers, start))
		}
	}
	return errors.Join(errs...)
}

// findAllocsWithProcesses returns the allocations that any user's process names in its environment or has mounted. It finds more
// processes than endProcesses may end: another account can forge an environment.
func findAllocsWithProcesses(allocIDs map[string]bool) (map[string]bool, error) {
	if len(allocIDs) == 0 {
		return nil, nil
	}
	found, mountErr := allocdir.FindAllocsMountedElsewhere(slices.Collect(maps.Keys(allocIDs)))
	tasks, envErr := osprocess.AllTaskEnvIDs()
	for task := range tasks {
		if allocIDs[task.AllocID] && mountErr == nil {
			found[task.AllocID] = true
		}
	}
	return found, errors.Join(mountErr, envErr)
}

// cleanUpOrphan removes an orphan's cgroups and network after its tasks have ended and, if it has records, its directory and the
// records. It unmounts everything below a directory that stays.
func (c *Cleaner) cleanUpOrphan(ctx context.Context, o orphan) error {
	ctx, cancel := context.WithTimeout(ctx, orphanCleanupTimeout)
	defer cancel()
	cgroup.RemoveEmptyOfAllocs(func(allocID string) bool { return allocID == o.allocID })
	errs := []error{hostnet.RemoveLeftoverNetwork(o.allocID)}
	if o.nodeRunnerRemovesAlloc {
		return errors.Join(errs...)
	}
	dir, err := allocdir.New(c.AllocDirRoot, o.allocID)
	switch {
	case err != nil:
		errs = append(errs, err)
	case o.hasRecords:
		errs = append(errs, dir.Destroy())
	default:
		errs = append(errs, dir.DropAllSecretsAndUnmount())
	}
	err = errors.Join(errs...)
	if o.hasRecords && err == nil { // otherwise the next agent removes the rest, which it finds by the records
		_, err = c.Store.Update(ctx, func(tx *store.Txn) error {
			tx.FinishAllocationRemoval(o.allocID)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("clear what is left of alloc %s: %w", o.allocID, err)
	}
	return nil
}

// destroyTaskStartInAllDrivers destroys an orphan task's start. The records do not name the driver, so it destroys the start in
// each driver; only the driver that started the task finds it.
func (c *Cleaner) destroyTaskStartInAllDrivers(ctx context.Context, drivers driverSource, start record.PendingDestroy) error {
	var errs []error
	for name := range drivers.DriverInfoByName() {
		if err := c.destroyTaskStart(ctx, drivers, name, start); err != nil {
			errs = append(errs, fmt.Errorf("destroy task %s in driver %q: %w", start.StartID, name, err))
		}
	}
	return errors.Join(errs...)
}

// destroyTaskStart destroys a start in one driver. If the plugin process exits during a call, destroyTaskStart repeats it in the next
// process. It returns nil if the driver has destroyed the start or does not have it.
func (c *Cleaner) destroyTaskStart(ctx context.Context, drivers driverSource, driverName string, start record.PendingDestroy) error {
	for {
		d, err := drivers.Driver(ctx, driverName)
		if err != nil {
			return err
		}
		if !c.Rebooted && start.Handle != nil {
			err = d.RecoverTask(ctx, start.Handle)
			if err != nil && !errors.Is(err, driver.ErrPluginDown) && !driver.IsRecoverable(err) && ctx.Err() == nil {
				return nil // drivers return their own errors for another driver's handle
			}
		}
		if err == nil {
			err = d.DestroyTask(ctx, start.StartID, true)
		}
		switch {
		case errors.Is(err, driver.ErrTaskNotFound):
			return nil
		case !errors.Is(err, driver.ErrPluginDown) || ctx.Err() != nil:
			return err
		}
	}
}

// CleanUpAfterEndedAllocs cleans up after the state's ended allocations: it denies other accounts access to their directories,
// removes their empty cgroups, and unmounts what an earlier agent or a task has left mounted below the directories.
func (c *Cleaner) CleanUpAfterEndedAllocs() {
	c.denyAccessToDirsOfEndedAllocs()
	c.removeEmptyCgroupsOfEndedAllocs()
	if err := c.unmountDirsOfEndedAllocs(); err != nil {
		c.Logger.Warn("file systems stay mounted in the directories of ended allocations", "error", err)
	}
}

// unmountDirsOfEndedAllocs unmounts everything below ended allocations' directories: no runner does that once the end is stored.
// It leaves an allocation's mounts if a process names or has mounted the allocation.
func (c *Cleaner) unmountDirsOfEndedAllocs() error {
	if os.Geteuid() != 0 {
		return nil // only root has mounted something
	}
	ended := c.Store.Snapshot().EndedAllocations()
	mounted, err := allocdir.FindAllocsWithMounts(c.AllocDirRoot, ended)
	if len(mounted) == 0 || err != nil {
		return err
	}
	inUse, err := findAllocsWithProcesses(mounted)
	if err != nil {
		return err
	}
	return allocdir.UnmountAllocDirs(c.AllocDirRoot, func(allocID string) bool { return inUse[allocID] || !mounted[allocID] })
}

// denyAccessToDirsOfEndedAllocs denies other accounts access to ended allocations' directories, which an earlier version of this
// program left accessible.
func (c *Cleaner) denyAccessToDirsOfEndedAllocs() {
	if os.Geteuid() != 0 {
		return
	}
	dirs, err := os.ReadDir(c.AllocDirRoot)
	if err != nil {
		return // findOrphans has logged the error
	}
	snapshot := c.Store.Snapshot()
	for _, entry := range dirs {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || info.Mode()&0o007 == 0 {
			continue
		}
		if alloc := snapshot.WithoutEndedEvents().Allocation(nil, entry.Name()); alloc != nil && !alloc.ClientTerminalStatus() {
			continue // the allocation's runner sets the directory's mode
		}
		if c.isUnknownAlloc(entry.Name()) {
			continue // the unknown allocation's tasks may run and need the directory
		}
		dir, err := allocdir.New(c.AllocDirRoot, entry.Name())
		if err == nil {
			err = dir.RestrictToRoot()
		}
		if err != nil {
			c.Logger.Error("other accounts of this machine can enter the directory of an allocation", "alloc_id", entry.Name(), "error", err)
		}
	}
}

// removeEmptyCgroupsOfEndedAllocs removes ended allocations' empty cgroups, which stay when both a driver process and the agent
// die. It keeps the cgroups for allocations outside the state, because they may belong to another agent.
func (c *Cleaner) removeEmptyCgroupsOfEndedAllocs() {
	snapshot := c.Store.Snapshot()
	cgroup.RemoveEmptyOfAllocs(func(allocID string) bool {
		alloc := snapshot.WithoutEndedEvents().Allocation(nil, allocID)
		return alloc != nil && alloc.ClientTerminalStatus()
	})
}

// taskDirNames returns the names of tasks with a directory in an allocation's directory.
func (c *Cleaner) taskDirNames(allocID string) (names []string) {
	entries, _ := os.ReadDir(filepath.Join(c.AllocDirRoot, allocID))
	for _, e := range entries {
		if e.IsDir() && e.Name() != "alloc" {
			names = append(names, e.Name())
		}
	}
	return names
}
