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

// AdoptedJob is a job that the environments of running tasks describe, whose own record was lost.
type AdoptedJob struct {
	Job    *api.Job
	Allocs []*api.Allocation // running allocations, without Job
	// StoreRecords stores the records of the allocations' tasks in the transaction that stores the job.
	StoreRecords func(*store.Txn)
}

// jobKey identifies a job.
type jobKey struct{ namespace, id string }

// adoptedAlloc is an unknown allocation all of whose running tasks their drivers have.
type adoptedAlloc struct {
	id    string
	env   taskEnviron // of one of its tasks
	tasks []adoptedTask
}

// adoptedTask is a running task with its handle.
type adoptedTask struct {
	unknownTask
	env         taskEnviron
	user        string // user of the processes; empty for the user of the agent
	dynamicUser uint32 // id of the user if the agent has chosen it, otherwise 0
	handle      *driver.Handle
	network     *driver.NetworkOverride
}

// adoptUnknown stores jobs, allocations and tasks for the unknown allocations whose tasks their drivers find, and removes
// these allocations from unknown. Of an allocation with a task that cannot be adopted, nothing is adopted. The result has the ids of
// the adopted allocations.
func (c *Cleaner) adoptUnknown(ctx context.Context, up driverSource, unknown map[string]bool) map[string]bool {
	adopted := make(map[string]bool)
	jobs := make(map[jobKey][]*adoptedAlloc)
	for id := range unknown {
		alloc, err := c.findAdoptable(ctx, up, id)
		if err != nil {
			c.Logger.Error("unknown allocation not adopted", "alloc_id", id, "error", err)
		}
		if err != nil || alloc == nil {
			continue
		}
		key := jobKey{cmp.Or(alloc.env["NOMAD_NAMESPACE"], api.DefaultNamespace), alloc.env["NOMAD_JOB_ID"]}
		jobs[key] = append(jobs[key], alloc)
	}
	for key, allocs := range jobs {
		if err := c.StoreAdopted(ctx, c.newAdoptedJob(key, allocs)); err != nil {
			c.Logger.Error("unknown allocations not adopted", "job_id", key.id, "namespace", key.namespace, "error", err)
			continue
		}
		for _, alloc := range allocs {
			delete(unknown, alloc.id)
			adopted[alloc.id] = true
			for _, t := range alloc.tasks {
				c.Logger.Warn("task of an unknown allocation adopted", "alloc_id", alloc.id, "job_id", key.id, "task", t.name, "driver", t.driver, "task_id", t.startID)
				for _, p := range t.processes {
					c.OnUnknownProcess(alloc.id, t.name, p)
				}
			}
		}
	}
	return adopted
}

// findAdoptable returns an unknown allocation with the handles of its running tasks, nil if none runs.
func (c *Cleaner) findAdoptable(ctx context.Context, up driverSource, allocID string) (*adoptedAlloc, error) {
	tasks, err := c.findUnknownTasks(allocID)
	if err != nil || len(tasks) == 0 {
		return nil, err
	}
	dir, err := allocdir.New(c.AllocDirs, allocID)
	if err != nil {
		return nil, err
	}
	alloc := &adoptedAlloc{id: allocID}
	for _, found := range tasks {
		t := adoptedTask{unknownTask: found}
		if err := c.findHandle(ctx, up, dir, &t); err != nil {
			return nil, fmt.Errorf("task %q: %w", t.name, err)
		}
		alloc.tasks = append(alloc.tasks, t)
	}
	alloc.env = alloc.tasks[0].env
	return alloc, nil
}

// adoptTimeout limits the calls of a driver for one task.
const adoptTimeout = 30 * time.Second

// findHandle asks the driver of a task for its handle.
func (c *Cleaner) findHandle(ctx context.Context, up driverSource, dir *allocdir.Dir, t *adoptedTask) error {
	if t.startID == "" || t.driver == "" {
		return errors.New("its start is not in the time line of the allocation")
	}
	if err := t.readProcess(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	d, err := up.Driver(ctx, t.driver)
	if err != nil {
		return err
	}
	status, err := d.InspectTask(ctx, t.startID)
	if err == nil && status.Start != nil && status.Start.Phase == driver.StartNotFound {
		// The plugin process that has the task waits for it, and would take its exit status.
		if err := c.EndFormerPlugins(ctx, t.driver); err != nil {
			return fmt.Errorf("end the former process of driver %q: %w", t.driver, err)
		}
		if err := d.RecoverTask(ctx, &driver.Handle{Config: t.config(dir, c.Node), State: driver.TaskRunning}); err != nil {
			return fmt.Errorf("driver %q does not find it: %w", t.driver, err)
		}
		status, err = d.InspectTask(ctx, t.startID)
	}
	if err != nil {
		return fmt.Errorf("driver %q: %w", t.driver, err)
	}
	if status.Start == nil || status.Start.Phase != driver.StartReturned {
		return fmt.Errorf("driver %q returns no handle, because it is not made with the SDK of nomad-lite: its tasks are known only to the plugin process that has started them", t.driver)
	}
	t.handle, t.network = status.Start.Handle, status.NetworkOverride
	return nil
}

// taskEnviron is the environment of a process of a task.
type taskEnviron map[string]string

func (e taskEnviron) int(name string) int {
	n, _ := strconv.Atoi(e[name]) // a missing or wrong value counts as not set
	return n
}

// readProcess sets what the oldest readable process of the task tells.
func (t *adoptedTask) readProcess(c *Cleaner) error {
	processes := slices.Clone(t.processes)
	slices.SortFunc(processes, func(a, b osprocess.ID) int { return cmp.Compare(a.StartTime, b.StartTime) })
	for _, p := range processes {
		text, err := osprocess.ReadEnv(p.PID)
		if err != nil {
			continue // another process of the task can be readable
		}
		env := make(taskEnviron)
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
		case c.DynamicUsers.First <= st.Uid && st.Uid <= c.DynamicUsers.Last && st.Uid != 0:
			t.dynamicUser = st.Uid
		case int(st.Uid) != os.Geteuid():
			t.user = fmt.Sprintf("%d:%d", st.Uid, st.Gid)
		}
		return nil
	}
	return errors.New("no process of the task has the names of its job and its group in a readable environment")
}

// config returns the config of the task's start, as far as it is known.
func (t *adoptedTask) config(dir *allocdir.Dir, node model.NodeFacts) *driver.TaskConfig {
	stdout, stderr := logs.FIFOPaths(logs.Task{AllocID: t.allocID, Name: t.name, Dir: dir.LogDir()})
	for _, path := range []*string{&stdout, &stderr} {
		if _, err := os.Lstat(*path); err != nil {
			*path = os.DevNull // the output of the task is not collected
		}
	}
	config := &driver.TaskConfig{
		ID: t.startID, Name: t.name, AllocID: t.allocID, AllocDir: dir.Path(), StdoutPath: stdout, StderrPath: stderr,
		JobName: t.env["NOMAD_JOB_NAME"], JobID: t.env["NOMAD_JOB_ID"], ParentJobID: t.env["NOMAD_JOB_PARENT_ID"],
		TaskGroupName: t.env["NOMAD_GROUP_NAME"], Namespace: t.env["NOMAD_NAMESPACE"],
		NodeID: node.ID, NodeName: node.Name, NetworkIsolation: groupNetwork(t.allocID), Env: t.env, User: cmp.Or(t.user, runnerhooks.WorkloadUserName(t.dynamicUser)),
		Resources: &driver.Resources{CPUShares: int64(t.env.int("NOMAD_CPU_LIMIT")), MemoryMB: int64(t.env.int("NOMAD_MEMORY_LIMIT")), MemoryMaxMB: int64(t.env.int("NOMAD_MEMORY_MAX_LIMIT"))},
	}
	if t.cores() > 0 {
		// The agent has made the cgroup of such a task.
		if groups, err := osprocess.TaskCgroups(t.allocID, t.name); err == nil && len(groups) > 0 {
			config.Resources.Linux.CpusetCgroup, config.Resources.Linux.CpusetCpus = string(groups[0]), t.env["NOMAD_CPU_CORES"]
		}
	}
	return config
}

// cores returns the number of cores that are reserved for the task.
func (t *adoptedTask) cores() int { return len(cgroup.ParseCPUList(t.env["NOMAD_CPU_CORES"])) }

// groupNetwork returns the namespace that the agent has made for an allocation, nil if there is none.
func groupNetwork(allocID string) *driver.NetworkIsolation {
	path := netns.Path(allocID)
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	return &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: path}
}

// newAdoptedJob returns a job with these allocations. It is a batch job without restarts, because the configs of its tasks are
// lost: nothing of it is started.
func (c *Cleaner) newAdoptedJob(key jobKey, allocs []*adoptedAlloc) AdoptedJob {
	env := allocs[0].env
	adopted := AdoptedJob{Job: &api.Job{
		ID: new(key.id), Name: new(cmp.Or(env["NOMAD_JOB_NAME"], key.id)), Namespace: new(key.namespace), Region: new(env["NOMAD_REGION"]),
		Type: new(api.JobTypeBatch), Datacenters: []string{"*"}, Meta: map[string]string{model.AdoptedJobMeta: "true"},
	}}
	if parent := env["NOMAD_JOB_PARENT_ID"]; parent != "" {
		adopted.Job.ParentID = &parent
	}
	groups := make(map[string][]*adoptedAlloc)
	for _, alloc := range allocs {
		groups[alloc.env["NOMAD_GROUP_NAME"]] = append(groups[alloc.env["NOMAD_GROUP_NAME"]], alloc)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		adopted.Job.TaskGroups = append(adopted.Job.TaskGroups, newAdoptedGroup(name, groups[name]))
	}
	for _, alloc := range allocs {
		record := alloc.allocation(key)
		record.NodeID, record.NodeName = c.Node.ID, c.Node.Name
		adopted.Allocs = append(adopted.Allocs, record)
	}
	adopted.StoreRecords = func(tx *store.Txn) {
		for _, alloc := range allocs {
			alloc.storeRecords(tx, adopted.Job)
		}
	}
	return adopted
}

// newAdoptedGroup returns a group with the tasks of its allocations.
func newAdoptedGroup(name string, allocs []*adoptedAlloc) *api.TaskGroup {
	group := &api.TaskGroup{
		Name: &name, Count: new(len(allocs)),
		RestartPolicy:    &api.RestartPolicy{Attempts: new(0), Mode: new("fail")},
		ReschedulePolicy: &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)},
	}
	known := make(map[string]bool)
	for _, alloc := range allocs {
		if groupNetwork(alloc.id) != nil {
			group.Networks = []*api.NetworkResource{{Mode: "bridge"}}
		}
		for _, t := range alloc.tasks {
			if known[t.name] {
				continue
			}
			known[t.name] = true
			task := &api.Task{Name: t.name, Driver: t.driver, User: t.user, Config: map[string]any{}, Resources: &api.Resources{}}
			if cpu := t.env.int("NOMAD_CPU_LIMIT"); cpu > 0 && t.cores() == 0 {
				task.Resources.CPU = &cpu
			}
			if cores := t.cores(); cores > 0 {
				task.Resources.Cores = &cores
			}
			if memory := t.env.int("NOMAD_MEMORY_LIMIT"); memory > 0 {
				task.Resources.MemoryMB = &memory
			}
			group.Tasks = append(group.Tasks, task)
		}
	}
	return group
}

// allocation returns the record of the allocation.
func (a *adoptedAlloc) allocation(key jobKey) *api.Allocation {
	alloc := &api.Allocation{
		ID: a.id, Name: cmp.Or(a.env["NOMAD_ALLOC_NAME"], fmt.Sprintf("%s.%s[0]", key.id, a.env["NOMAD_GROUP_NAME"])),
		Namespace: key.namespace, JobID: key.id, TaskGroup: a.env["NOMAD_GROUP_NAME"],
		DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusRunning,
		AllocatedResources: &api.AllocatedResources{Tasks: make(map[string]*api.AllocatedTaskResources)},
		TaskStates:         make(map[string]*api.TaskState),
	}
	ports := make(map[string]bool)
	network := &api.NetworkResource{}
	for _, t := range a.tasks {
		alloc.AllocatedResources.Tasks[t.name] = &api.AllocatedTaskResources{
			Cpu:    api.AllocatedCpuResources{CpuShares: int64(t.env.int("NOMAD_CPU_LIMIT"))},
			Memory: api.AllocatedMemoryResources{MemoryMB: int64(t.env.int("NOMAD_MEMORY_LIMIT")), MemoryMaxMB: int64(t.env.int("NOMAD_MEMORY_MAX_LIMIT"))},
		}
		alloc.TaskStates[t.name] = t.state()
		for _, variable := range slices.Sorted(maps.Keys(t.env)) {
			label, ok := strings.CutPrefix(variable, "NOMAD_HOST_PORT_")
			port := t.env.int(variable)
			if !ok || port == 0 || ports[label] {
				continue
			}
			ports[label] = true
			mapping := api.PortMapping{Label: label, Value: port, To: t.env.int("NOMAD_PORT_" + label), HostIP: t.env["NOMAD_HOST_IP_"+label]}
			alloc.AllocatedResources.Shared.Ports = append(alloc.AllocatedResources.Shared.Ports, mapping)
			network.DynamicPorts = append(network.DynamicPorts, api.Port{Label: label, Value: port, To: mapping.To})
		}
	}
	if groupNetwork(a.id) != nil {
		network.Mode = "bridge"
	}
	if len(ports) > 0 || network.Mode != "" {
		alloc.AllocatedResources.Shared.Networks = []*api.NetworkResource{network}
	}
	return alloc
}

// storeRecords stores what the runner of the allocation needs to restore it. A task of the group that does not run in this
// allocation has ended.
func (a *adoptedAlloc) storeRecords(tx *store.Txn, job *api.Job) {
	for _, t := range model.FindGroup(job, a.env["NOMAD_GROUP_NAME"]).Tasks {
		i := slices.IndexFunc(a.tasks, func(running adoptedTask) bool { return running.name == t.Name })
		if i < 0 {
			tx.PutTask(a.id, t.Name, state.LocalState{RunComplete: true}, &api.TaskState{State: model.TaskDead, FinishedAt: time.Now().UTC(), Events: []*api.TaskEvent{}})
			continue
		}
		tx.PutTask(a.id, t.Name, a.tasks[i].localState(), a.tasks[i].state())
	}
	if isolation := groupNetwork(a.id); isolation != nil {
		tx.PutMeta(state.NetworkPrefix+a.id, state.NewNetworkRecord(state.AllocNetwork{AllocID: a.id, Mode: "bridge", Isolation: isolation}))
	}
	tx.DeleteMeta(state.UnknownAllocPrefix + a.id)
}

func (t *adoptedTask) localState() state.LocalState {
	local := state.LocalState{StartID: t.startID, Handle: t.handle, Network: t.network}
	if t.dynamicUser != 0 {
		local.Hooks = map[string]state.HookState{runnerhooks.WorkloadUserHookName: {Data: runnerhooks.NewWorkloadUserState(t.dynamicUser)}}
	}
	return local
}

func (t *adoptedTask) state() *api.TaskState {
	s := &api.TaskState{State: model.TaskRunning, StartedAt: t.startedAt.UTC()}
	model.AppendTaskEvent(s, model.EventAdopted(), time.Now())
	return s
}
