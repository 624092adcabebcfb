package orphans

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// AdoptedJob is a job whose record was lost, rebuilt from the environments of its running tasks.
type AdoptedJob struct {
	Job    *api.Job
	Allocs []*api.Allocation // running allocations, without Job
	// StoreTaskRecords stores the records of the allocations' tasks in the transaction that stores the job.
	StoreTaskRecords func(*store.Txn)
}

// jobKey identifies a job.
type jobKey struct{ namespace, jobID string }

// adoptedAlloc is an unknown allocation whose drivers have returned the handles of all of its running tasks.
type adoptedAlloc struct {
	allocID      string
	envOfOneTask taskEnvVars // environment of one of its tasks
	tasks        []adoptedTask
}

// adoptedTask is a running task of an adopted allocation, with the data from its processes and its driver.
type adoptedTask struct {
	unknownAllocTask
	env           taskEnvVars
	processUser   string // user of the processes; empty for the user of the agent
	dynamicUserID uint32 // user id if an earlier agent has chosen it from DynamicUserIDs; otherwise 0
	handle        *driver.Handle
	network       *driver.NetworkOverride
}

// adoptUnknownAllocs stores records of jobs, allocations and tasks for the unknown allocations whose drivers find all
// of their running tasks. It removes these allocations from unknownAllocIDs, and returns their ids. If one task of an
// allocation cannot be adopted, it adopts no task of the allocation.
func (c *Cleaner) adoptUnknownAllocs(ctx context.Context, drivers driverSource, unknownAllocIDs map[string]bool) (adoptedAllocIDs map[string]bool) {
	adoptedAllocIDs = make(map[string]bool)
	jobs := make(map[jobKey][]*adoptedAlloc)
	if len(unknownAllocIDs) == 0 {
		return adoptedAllocIDs
	}
	tasks, err := c.findUnknownTasks(unknownAllocIDs)
	if err != nil {
		c.Logger.Error("unknown allocations not adopted", "error", err)
		return adoptedAllocIDs
	}
	for id := range unknownAllocIDs {
		alloc, err := c.findAdoptableAlloc(ctx, drivers, id, tasks[id])
		if err != nil {
			c.Logger.Error("unknown allocation not adopted", "alloc_id", id, "error", err)
		}
		if err != nil || alloc == nil {
			continue
		}
		key := jobKey{cmp.Or(alloc.envOfOneTask["NOMAD_NAMESPACE"], api.DefaultNamespace), alloc.envOfOneTask["NOMAD_JOB_ID"]}
		jobs[key] = append(jobs[key], alloc)
	}
	for key, allocs := range jobs {
		if err := c.StoreAdoptedJob(ctx, c.newAdoptedJob(key, allocs)); err != nil {
			c.Logger.Error("unknown allocations not adopted", "job_id", key.jobID, "namespace", key.namespace, "error", err)
			continue
		}
		for _, alloc := range allocs {
			delete(unknownAllocIDs, alloc.allocID)
			adoptedAllocIDs[alloc.allocID] = true
			for _, t := range alloc.tasks {
				c.Logger.Warn("task of an unknown allocation adopted", "alloc_id", alloc.allocID, "job_id", key.jobID, "task", t.taskName, "driver", t.driverName, "task_id", t.startID)
				for _, p := range t.processes {
					c.OnProcessLeftRunning(alloc.allocID, t.taskName, p)
				}
			}
		}
	}
	return adoptedAllocIDs
}

// findAdoptableAlloc returns an unknown allocation with the handles of its running tasks. It returns nil if no task of it runs.
func (c *Cleaner) findAdoptableAlloc(ctx context.Context, drivers driverSource, allocID string, tasks []unknownAllocTask) (*adoptedAlloc, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	dir, err := allocdir.New(c.AllocDirRoot, allocID)
	if err != nil {
		return nil, err
	}
	alloc := &adoptedAlloc{allocID: allocID}
	for _, found := range tasks {
		t := adoptedTask{unknownAllocTask: found}
		if err := c.recoverTaskAndSetHandle(ctx, drivers, dir, &t); err != nil {
			return nil, fmt.Errorf("task %q: %w", t.taskName, err)
		}
		alloc.tasks = append(alloc.tasks, t)
	}
	alloc.envOfOneTask = alloc.tasks[0].env
	return alloc, nil
}

// adoptTimeout limits how long the driver calls for one task may take together.
const adoptTimeout = 30 * time.Second

// recoverTaskAndSetHandle sets the handle and the network of a task from an answer of its driver, after it has read the
// processes of the task.
func (c *Cleaner) recoverTaskAndSetHandle(ctx context.Context, drivers driverSource, dir *allocdir.Dir, t *adoptedTask) error {
	if t.startID == "" || t.driverName == "" {
		return errors.New("its start is not in the time line of the allocation")
	}
	if err := t.readEnvAndUserOfOldestProcess(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	d, err := drivers.Driver(ctx, t.driverName)
	if err != nil {
		return err
	}
	status, err := d.InspectTask(ctx, t.startID)
	if err == nil && status.StartStatus != nil && status.StartStatus.Phase == driver.StartNotFound {
		// The former plugin process still waits for the task's process, and would take its exit status.
		if err := c.EndPluginsOfEarlierAgent(ctx, t.driverName); err != nil {
			return fmt.Errorf("end the former process of driver %q: %w", t.driverName, err)
		}
		if err := d.RecoverTask(ctx, &driver.Handle{Config: t.newDriverConfig(dir, c.Node), State: driver.TaskRunning}); err != nil {
			return fmt.Errorf("driver %q does not find it: %w", t.driverName, err)
		}
		status, err = d.InspectTask(ctx, t.startID)
	}
	if err != nil {
		return fmt.Errorf("driver %q: %w", t.driverName, err)
	}
	if status.StartStatus == nil || status.StartStatus.Phase != driver.StartReturned {
		return fmt.Errorf("driver %q returns no handle, because it is not made with the SDK of nomad-lite: its tasks are known only to the plugin process that has started them", t.driverName)
	}
	t.handle, t.network = status.StartStatus.Handle, status.NetworkOverride
	return nil
}

// taskEnvVars is the environment of a task's process, by variable.
type taskEnvVars map[string]string

func (e taskEnvVars) intOrZero(name string) int {
	n, _ := strconv.Atoi(e[name]) // a missing or invalid value counts as 0
	return n
}

// readEnvAndUserOfOldestProcess sets the environment and the user of the task from its oldest readable process.
func (t *adoptedTask) readEnvAndUserOfOldestProcess(c *Cleaner) error {
	processes := slices.Clone(t.processes)
	slices.SortFunc(processes, func(a, b osprocess.ID) int { return cmp.Compare(a.StartTime, b.StartTime) })
	for _, p := range processes {
		text, err := osprocess.ReadEnv(p.PID)
		if err != nil {
			continue // another process of the task can be readable
		}
		env := make(taskEnvVars)
		for entry := range bytes.SplitSeq(text, []byte{0}) {
			if name, value, ok := strings.Cut(string(entry), "="); ok {
				env[name] = value
			}
		}
		var st unix.Stat_t
		if env["NOMAD_JOB_ID"] == "" || env["NOMAD_GROUP_NAME"] == "" || unix.Stat(filepath.Join("/proc", strconv.Itoa(p.PID)), &st) != nil {
			continue
		}
		t.env = env
		switch {
		case c.DynamicUserIDs.First <= st.Uid && st.Uid <= c.DynamicUserIDs.Last && st.Uid != 0:
			t.dynamicUserID = st.Uid
		case int(st.Uid) != os.Geteuid():
			t.processUser = fmt.Sprintf("%d:%d", st.Uid, st.Gid)
		}
		return nil
	}
	return errors.New("no process of the task has the names of its job and its group in a readable environment: some programs overwrite their environment, and their tasks cannot be adopted; put a copy of the state file back, or end the task with agent -end-unknown")
}

// newDriverConfig returns the driver.TaskConfig of the task's start, without the parts that the environment does not contain.
func (t *adoptedTask) newDriverConfig(dir *allocdir.Dir, node model.NodeFacts) *driver.TaskConfig {
	stdout, stderr := logs.FIFOPaths(logs.Task{AllocID: t.allocID, Name: t.taskName, LogDir: dir.LogDir()})
	for _, path := range []*string{&stdout, &stderr} {
		if _, err := os.Lstat(*path); err != nil {
			*path = os.DevNull // the output of the task is not collected
		}
	}
	config := &driver.TaskConfig{
		ID: t.startID, Name: t.taskName, AllocID: t.allocID, AllocDir: dir.Path(), StdoutPath: stdout, StderrPath: stderr,
		JobName: t.env["NOMAD_JOB_NAME"], JobID: t.env["NOMAD_JOB_ID"], ParentJobID: t.env["NOMAD_JOB_PARENT_ID"],
		TaskGroupName: t.env["NOMAD_GROUP_NAME"], Namespace: t.env["NOMAD_NAMESPACE"],
		NodeID: node.ID, NodeName: node.Name, NetworkIsolation: existingGroupNetwork(t.allocID), Env: t.env, User: cmp.Or(t.processUser, runnerhooks.WorkloadUserNameOrEmpty(t.dynamicUserID)),
		Resources: &driver.Resources{CPUShares: int64(t.env.intOrZero("NOMAD_CPU_LIMIT")), MemoryMB: int64(t.env.intOrZero("NOMAD_MEMORY_LIMIT")), MemoryMaxMB: int64(t.env.intOrZero("NOMAD_MEMORY_MAX_LIMIT"))},
	}
	if t.reservedCoreCount() > 0 {
		// The earlier agent has created the cgroup of a task with reserved cores.
		if groups, err := osprocess.TaskCgroups(t.allocID, t.taskName); err == nil && len(groups) > 0 {
			config.Resources.Linux.CpusetCgroup, config.Resources.Linux.CpusetCpus = string(groups[0]), t.env["NOMAD_CPU_CORES"]
		}
	}
	return config
}

// reservedCoreCount returns the number of cores that are reserved for the task.
func (t *adoptedTask) reservedCoreCount() int {
	return len(cgroup.ParseCPUList(t.env["NOMAD_CPU_CORES"]))
}

// existingGroupNetwork returns the network namespace that an earlier agent has created for an allocation, nil if there is none.
func existingGroupNetwork(allocID string) *driver.NetworkIsolation {
	path := netns.Path(allocID)
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	return &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: path}
}

// newAdoptedJob returns a job with these allocations. It is a batch job without restarts, because the configs of its tasks are
// lost, so that no task of it can be started.
func (c *Cleaner) newAdoptedJob(key jobKey, allocs []*adoptedAlloc) AdoptedJob {
	env := allocs[0].envOfOneTask
	adopted := AdoptedJob{Job: &api.Job{
		ID: new(key.jobID), Name: new(cmp.Or(env["NOMAD_JOB_NAME"], key.jobID)), Namespace: new(key.namespace), Region: new(env["NOMAD_REGION"]),
		Type: new(api.JobTypeBatch), Datacenters: []string{"*"}, Meta: map[string]string{model.AdoptedJobMeta: "true"},
	}}
	if parent := env["NOMAD_JOB_PARENT_ID"]; parent != "" {
		adopted.Job.ParentID = &parent
	}
	groups := make(map[string][]*adoptedAlloc)
	for _, alloc := range allocs {
		groups[alloc.envOfOneTask["NOMAD_GROUP_NAME"]] = append(groups[alloc.envOfOneTask["NOMAD_GROUP_NAME"]], alloc)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		adopted.Job.TaskGroups = append(adopted.Job.TaskGroups, newAdoptedGroup(name, groups[name]))
	}
	for _, alloc := range allocs {
		record := alloc.newAllocation(key)
		record.NodeID, record.NodeName = c.Node.ID, c.Node.Name
		adopted.Allocs = append(adopted.Allocs, record)
	}
	adopted.StoreTaskRecords = func(tx *store.Txn) {
		for _, alloc := range allocs {
			alloc.storeTaskAndNetworkRecords(tx, adopted.Job)
		}
	}
	return adopted
}

// newAdoptedGroup returns a group with all tasks that run in the given allocations.
func newAdoptedGroup(name string, allocs []*adoptedAlloc) *api.TaskGroup {
	group := &api.TaskGroup{
		Name: &name, Count: new(len(allocs)),
		RestartPolicy:    &api.RestartPolicy{Attempts: new(0), Mode: new("fail")},
		ReschedulePolicy: &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)},
	}
	known := make(map[string]bool)
	for _, alloc := range allocs {
		if existingGroupNetwork(alloc.allocID) != nil {
			group.Networks = []*api.NetworkResource{{Mode: "bridge"}}
		}
		for _, t := range alloc.tasks {
			if known[t.taskName] {
				continue
			}
			known[t.taskName] = true
			task := &api.Task{Name: t.taskName, Driver: t.driverName, User: t.processUser, Config: map[string]any{}, Resources: &api.Resources{}}
			if cpu := t.env.intOrZero("NOMAD_CPU_LIMIT"); cpu > 0 && t.reservedCoreCount() == 0 {
				task.Resources.CPU = &cpu
			}
			if cores := t.reservedCoreCount(); cores > 0 {
				task.Resources.Cores = &cores
			}
			if memory := t.env.intOrZero("NOMAD_MEMORY_LIMIT"); memory > 0 {
				task.Resources.MemoryMB = &memory
			}
			group.Tasks = append(group.Tasks, task)
		}
	}
	return group
}

// newAllocation returns the api.Allocation for the adopted allocation, without its node.
func (a *adoptedAlloc) newAllocation(key jobKey) *api.Allocation {
	alloc := &api.Allocation{
		ID: a.allocID, Name: cmp.Or(a.envOfOneTask["NOMAD_ALLOC_NAME"], fmt.Sprintf("%s.%s[0]", key.jobID, a.envOfOneTask["NOMAD_GROUP_NAME"])),
		Namespace: key.namespace, JobID: key.jobID, TaskGroup: a.envOfOneTask["NOMAD_GROUP_NAME"],
		DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusRunning,
		AllocatedResources: &api.AllocatedResources{Tasks: make(map[string]*api.AllocatedTaskResources)},
		TaskStates:         make(map[string]*api.TaskState),
	}
	ports := make(map[string]bool)
	network := &api.NetworkResource{}
	for _, t := range a.tasks {
		alloc.AllocatedResources.Tasks[t.taskName] = &api.AllocatedTaskResources{
			Cpu:    api.AllocatedCpuResources{CpuShares: int64(t.env.intOrZero("NOMAD_CPU_LIMIT"))},
			Memory: api.AllocatedMemoryResources{MemoryMB: int64(t.env.intOrZero("NOMAD_MEMORY_LIMIT")), MemoryMaxMB: int64(t.env.intOrZero("NOMAD_MEMORY_MAX_LIMIT"))},
		}
		alloc.TaskStates[t.taskName] = t.newTaskState()
		for _, variable := range slices.Sorted(maps.Keys(t.env)) {
			label, ok := strings.CutPrefix(variable, "NOMAD_HOST_PORT_")
			port := t.env.intOrZero(variable)
			if !ok || port == 0 || ports[label] {
				continue
			}
			ports[label] = true
			mapping := api.PortMapping{Label: label, Value: port, To: t.env.intOrZero("NOMAD_PORT_" + label), HostIP: t.env["NOMAD_HOST_IP_"+label]}
			alloc.AllocatedResources.Shared.Ports = append(alloc.AllocatedResources.Shared.Ports, mapping)
			network.DynamicPorts = append(network.DynamicPorts, api.Port{Label: label, Value: port, To: mapping.To})
		}
	}
	if existingGroupNetwork(a.allocID) != nil {
		network.Mode = "bridge"
	}
	if len(ports) > 0 || network.Mode != "" {
		alloc.AllocatedResources.Shared.Networks = []*api.NetworkResource{network}
	}
	return alloc
}

// storeTaskAndNetworkRecords stores the records from which the runner of the allocation restores the tasks. A task of
// the group that does not run in this allocation counts as ended.
func (a *adoptedAlloc) storeTaskAndNetworkRecords(tx *store.Txn, job *api.Job) {
	for _, t := range model.FindGroup(job, a.envOfOneTask["NOMAD_GROUP_NAME"]).Tasks {
		i := slices.IndexFunc(a.tasks, func(running adoptedTask) bool { return running.taskName == t.Name })
		if i < 0 {
			tx.PutTask(a.allocID, t.Name, state.LocalState{RunComplete: true}, &api.TaskState{State: model.TaskDead, FinishedAt: time.Now().UTC(), Events: []*api.TaskEvent{}})
			continue
		}
		tx.PutTask(a.allocID, t.Name, a.tasks[i].newLocalState(), a.tasks[i].newTaskState())
	}
	if isolation := existingGroupNetwork(a.allocID); isolation != nil {
		tx.PutAgentRecord(state.NetworkPrefix+a.allocID, state.NewNetworkRecord(state.AllocNetwork{AllocID: a.allocID, Mode: "bridge", Isolation: isolation}))
	}
	tx.DeleteAgentRecord(state.UnknownAllocPrefix + a.allocID)
}

func (t *adoptedTask) newLocalState() state.LocalState {
	local := state.LocalState{StartID: t.startID, Handle: t.handle, NetworkOverride: t.network}
	if t.dynamicUserID != 0 {
		local.HookStateByName = map[string]state.HookState{runnerhooks.WorkloadUserHookName: {Data: runnerhooks.NewWorkloadUserState(t.dynamicUserID)}}
	}
	return local
}

func (t *adoptedTask) newTaskState() *api.TaskState {
	s := &api.TaskState{State: model.TaskRunning, StartedAt: t.startedAt.UTC()}
	model.AppendTaskEvent(s, model.EventOrphanTaskAdopted(), time.Now())
	return s
}
