package orphans

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// unknownAllocTask is an unknown allocation's running task.
type unknownAllocTask struct {
	allocID, taskName, driverName string
	processes                     []osprocess.ID
}

// processesOfHostPorts holds the host ports that unknown task processes may use. Its methods may be called concurrently.
type processesOfHostPorts struct {
	mu                  sync.Mutex
	processesByHostPort map[int][]osprocess.ID
}

func (u *processesOfHostPorts) addProcessOfPort(port int, p osprocess.ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.processesByHostPort == nil {
		u.processesByHostPort = make(map[int][]osprocess.ID)
	}
	u.processesByHostPort[port] = append(u.processesByHostPort[port], p)
}

// UnknownTaskUsesHostPort reports whether a host port was assigned to a running task in an unknown allocation.
func (c *Cleaner) UnknownTaskUsesHostPort(port int) bool {
	c.unknownTaskPorts.mu.Lock()
	defer c.unknownTaskPorts.mu.Unlock()
	return slices.ContainsFunc(c.unknownTaskPorts.processesByHostPort[port], osprocess.ID.Alive)
}

// findAndRecordUnknownAllocs returns the unknown allocations' IDs: the orphans with tasks to be left running. It records the IDs
// for a later foreground run in the data directory, and deletes recorded IDs no longer among them.
func (c *Cleaner) findAndRecordUnknownAllocs(ctx context.Context, orphans []orphan) (map[string]bool, error) {
	unknown := make(map[string]bool)
	if !c.StateWasEphemeral && !c.EndTasksOfUnknownAllocs {
		for _, o := range orphans {
			if !o.isBeingRemoved {
				unknown[o.allocID] = true
			}
		}
	}
	_, err := c.Store.Update(ctx, func(tx *store.Txn) error {
		recorded := make(map[string]bool)
		for _, name := range tx.AgentRecordNames(state.UnknownAllocPrefix) {
			id := strings.TrimPrefix(name, state.UnknownAllocPrefix)
			if recorded[id] = true; !unknown[id] {
				tx.DeleteAgentRecord(name)
			}
		}
		for id := range unknown {
			if !recorded[id] {
				tx.PutAgentRecord(state.UnknownAllocPrefix+id, true)
			}
		}
		return nil
	})
	return unknown, err
}

// logUnknownAllocsAndRecordPorts logs the unknown allocations' running tasks, and records the ports assigned to them. It calls
// OnProcessLeftRunning for their processes, and for the processes of allocations with runners that recover tasks without a
// record.
func (c *Cleaner) logUnknownAllocsAndRecordPorts(ids, recoveredIDs map[string]bool) {
	if len(ids)+len(recoveredIDs) == 0 {
		return
	}
	searched := maps.Clone(ids)
	maps.Copy(searched, recoveredIDs)
	tasksByAlloc, err := c.findUnknownTasks(searched)
	if err != nil {
		c.Logger.Error("tasks of unknown allocations may run", "error", err)
	}
	running := 0
	withoutProcess := make(map[string]bool)
	for id := range searched {
		tasks := tasksByAlloc[id]
		for _, t := range tasks {
			var pids []int
			for _, p := range t.processes {
				pids = append(pids, p.PID)
				if c.OnProcessLeftRunning != nil {
					c.OnProcessLeftRunning(id, t.taskName, p)
				}
				if recoveredIDs[id] {
					continue
				}
				for _, port := range hostPortsInEnv(p) {
					c.unknownTaskPorts.addProcessOfPort(port, p)
				}
			}
			if recoveredIDs[id] {
				continue
			}
			c.Logger.Warn("task of an unknown allocation runs, and continues", "alloc_id", id, "task", t.taskName, "driver", t.driverName, "pids", pids)
			running++
		}
		if len(tasks) == 0 && err == nil && !recoveredIDs[id] {
			withoutProcess[id] = true
		}
	}
	withUntrustedProcess := c.unmountAndLogDirsToRemove(withoutProcess)
	withProcess := maps.Clone(ids)
	maps.DeleteFunc(withProcess, func(id string, _ bool) bool { return withoutProcess[id] && !withUntrustedProcess[id] })
	c.recordRunningUnknownAllocs(withProcess)
	if running > 0 {
		c.Logger.Warn("the state has lost the jobs of running tasks: put a copy of the state file back, or start the agent once with -adopt-unknown to adopt the tasks of unknown allocations, or with -end-unknown to end them", "tasks", running)
	}
}

// unmountAndLogDirsToRemove logs unknown allocations without a process: the operator can remove their directories. It first
// removes their empty cgroups and their networks, and unmounts everything below the directories. It returns the allocations that
// a process names in its environment or has mounted.
func (c *Cleaner) unmountAndLogDirsToRemove(allocIDs map[string]bool) (withUntrustedProcess map[string]bool) {
	withUntrustedProcess, err := findAllocsWithProcesses(allocIDs)
	if err == nil {
		err = allocdir.UnmountAllocDirs(c.AllocDirRoot, func(allocID string) bool { return withUntrustedProcess[allocID] || !allocIDs[allocID] })
	}
	cgroup.RemoveEmptyOfAllocs(func(allocID string) bool { return allocIDs[allocID] })
	for id := range allocIDs {
		dir := filepath.Join(c.AllocDirRoot, id)
		dirErr := err
		if dirErr == nil && !withUntrustedProcess[id] {
			dirErr = hostnet.RemoveLeftoverNetwork(id)
		}
		switch {
		case dirErr != nil:
			c.Logger.Error("allocation is unknown, and no process of its tasks was found; unmount what is mounted in its directory before you remove it", "alloc_id", id, "dir", dir, "error", dirErr)
		case withUntrustedProcess[id]:
			c.Logger.Warn("allocation is unknown, and a process, such as that of a container, names it in its environment or has its directory mounted; end the process and restart the agent before you remove the directory", "alloc_id", id, "dir", dir)
		default:
			c.Logger.Warn("allocation is unknown, and no process of its tasks was found; remove its directory when its files are not needed", "alloc_id", id, "dir", dir)
		}
	}
	return withUntrustedProcess
}

// findUnknownTasks returns unknown allocations' running tasks, sorted by name, by allocation id.
func (c *Cleaner) findUnknownTasks(allocIDs map[string]bool) (map[string][]unknownAllocTask, error) {
	found, err := findTaskProcesses(c.taskSearch(allocIDs))
	tasks := make(map[string][]unknownAllocTask)
	for task, processes := range found {
		driverName := c.lastRunByTask(task.AllocID)[task.Task].Plugin
		tasks[task.AllocID] = append(tasks[task.AllocID], unknownAllocTask{task.AllocID, task.Task, driverName, processes})
	}
	for _, ofAlloc := range tasks {
		slices.SortFunc(ofAlloc, func(a, b unknownAllocTask) int { return strings.Compare(a.taskName, b.taskName) })
	}
	return tasks, err
}

// findTaskProcesses is a variable for tests, which count the passes over all processes on the machine.
var findTaskProcesses = osprocess.FindTaskProcesses

// taskSearch returns the search for the allocations' processes.
func (c *Cleaner) taskSearch(allocIDs map[string]bool) osprocess.TaskSearch {
	return osprocess.TaskSearch{
		IncludesAlloc: func(allocID string) bool { return allocIDs[allocID] }, AllocDirRoot: c.AllocDirRoot, IsTrustedParent: c.IsTrustedParent,
	}
}

// lastRunByTask returns each task's last run in an unknown allocation's time line, by task name.
func (c *Cleaner) lastRunByTask(allocID string) map[string]tracespan.Span {
	dir, err := allocdir.New(c.AllocDirRoot, allocID)
	if err != nil {
		return nil
	}
	runs, err := timeline.NewFile(dir, nil, c.Logger).LastRunByTask()
	if err != nil {
		c.Logger.Debug("time line of an unknown allocation not read", "alloc_id", allocID, "error", err)
	}
	return runs
}

// hostPortsInEnv returns the host ports in a task process's NOMAD_HOST_PORT_ variables.
func hostPortsInEnv(p osprocess.ID) (ports []int) {
	env, err := osprocess.ReadEnv(p.PID)
	if err != nil {
		return nil // the process has exited, or belongs to another user
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		name, value, _ := strings.Cut(string(entry), "=")
		if !strings.HasPrefix(name, "NOMAD_HOST_PORT_") {
			continue
		}
		if port, err := strconv.Atoi(value); err == nil {
			ports = append(ports, port)
		}
	}
	return ports
}

// endProcesses ends the orphans' processes not ended by a driver, in one search for all: if a driver does not search for tasks,
// it does not find them. With an error processes can still run.
func (c *Cleaner) endProcesses(ctx context.Context, orphanIDs map[string]bool) error {
	if len(orphanIDs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, orphanCleanupTimeout)
	defer cancel()
	killed, err := osprocess.KillTaskProcesses(ctx, c.taskSearch(orphanIDs))
	for task, processes := range killed {
		c.Logger.Warn("processes of a lost task are ended", "alloc_id", task.AllocID, "task", task.Task, "processes", len(processes))
	}
	if err != nil {
		return fmt.Errorf("end the processes of its tasks: %w", err)
	}
	return nil
}
