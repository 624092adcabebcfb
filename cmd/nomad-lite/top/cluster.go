package top

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/ports"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// cluster is the last known state of the agent's jobs and allocations. A single goroutine uses it.
type cluster struct {
	jobs map[jobKey]*job
	// allocs has the allocations by id. Each of them is in the list of its job, too.
	allocs map[string]*alloc
}

type jobKey struct{ namespace, id string }

type job struct {
	jobKey
	status      string // empty if only allocations of the job are left
	description string
	kind        string // type of the job, such as "service"
	stopped     bool
	modifyIndex uint64
	allocs      []*alloc // in the order of their names, the oldest first
}

type alloc struct {
	*api.AllocationListStub // without resources, which ports replaces
	ports                   string
	tasks                   []task
	usage                   map[string]usage // last sample by task; nil if there is none
}

type task struct {
	name  string
	state *api.TaskState
}

// usage is the resource usage of a task.
type usage struct {
	mhz, percent float64
	memory       uint64 // bytes
}

func newCluster() *cluster {
	return &cluster{jobs: map[jobKey]*job{}, allocs: map[string]*alloc{}}
}

// replace replaces all jobs and allocations. It keeps the samples of allocations.
func (c *cluster) replace(jobs []*api.JobListStub, allocs []*api.AllocationListStub) {
	before := c.allocs
	c.jobs, c.allocs = make(map[jobKey]*job, len(jobs)), make(map[string]*alloc, len(allocs))
	for _, j := range jobs {
		if j == nil {
			continue
		}
		key := jobKey{apiclient.JobNamespace(j), j.ID}
		c.jobs[key] = &job{jobKey: key, status: j.Status, description: j.StatusDescription, kind: j.Type, stopped: j.Stop, modifyIndex: j.ModifyIndex}
	}
	for _, stub := range allocs {
		if stub == nil || c.allocs[stub.ID] != nil {
			continue
		}
		a := newAlloc(stub)
		if old := before[a.ID]; old != nil {
			a.usage = old.usage
		}
		c.allocs[a.ID] = a
		j := c.jobOf(a)
		j.allocs = append(j.allocs, a)
	}
	for _, j := range c.jobs {
		slices.SortFunc(j.allocs, compareAllocNames)
	}
}

func newAlloc(stub *api.AllocationListStub) *alloc {
	a := &alloc{AllocationListStub: stub, ports: ports.OfAllocation(stub.AllocatedResources, nil)}
	a.AllocatedResources = nil
	for _, name := range slices.Sorted(maps.Keys(stub.TaskStates)) {
		state := stub.TaskStates[name]
		if state == nil {
			state = &api.TaskState{}
		}
		state.Events = slices.DeleteFunc(state.Events, func(e *api.TaskEvent) bool { return e == nil })
		a.tasks = append(a.tasks, task{name, state})
	}
	return a
}

// compareAllocNames sorts allocations by name, such that [9] precedes [10], and an allocation before its
// replacement.
func compareAllocNames(a, b *alloc) int {
	return cmp.Or(
		cmp.Compare(a.TaskGroup, b.TaskGroup), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID),
	)
}

// jobOf returns the job of an allocation. If the job is unknown, jobOf adds it: a job can be purged before its
// allocations have ended.
func (c *cluster) jobOf(a *alloc) *job {
	key := jobKey{a.Namespace, a.JobID}
	if c.jobs[key] == nil {
		c.jobs[key] = &job{jobKey: key}
	}
	return c.jobs[key]
}

// event is the part of an event of the stream that the table shows.
type event struct {
	Topic   api.Topic
	Payload struct {
		Job        *api.Job
		Allocation *api.Allocation
		Deleted    bool
	}
}

// apply changes the object of an event. It ignores an event that is older than the known object.
func (c *cluster) apply(e event) {
	switch {
	case e.Topic == api.TopicJob && e.Payload.Job != nil:
		c.applyJob(e.Payload.Job, e.Payload.Deleted)
	case e.Topic == api.TopicAllocation && e.Payload.Allocation != nil:
		c.applyAlloc(e.Payload.Allocation)
	}
}

func (c *cluster) applyJob(j *api.Job, deleted bool) {
	key := jobKey{cmp.Or(pointer.Value(j.Namespace), api.DefaultNamespace), pointer.Value(j.ID)}
	known := c.jobs[key]
	if deleted {
		if known != nil {
			c.deleteJob(known)
		}
		return
	}
	if known == nil {
		known = &job{jobKey: key}
		c.jobs[key] = known
	}
	index := pointer.Value(j.ModifyIndex)
	if index < known.modifyIndex {
		return
	}
	known.status, known.description = pointer.Value(j.Status), pointer.Value(j.StatusDescription)
	known.kind, known.stopped, known.modifyIndex = pointer.Value(j.Type), pointer.Value(j.Stop), index
}

// deleteJob removes a purged job with its allocations, except running allocations.
func (c *cluster) deleteJob(j *job) {
	j.allocs = slices.DeleteFunc(j.allocs, func(a *alloc) bool {
		if a.terminal() {
			delete(c.allocs, a.ID)
		}
		return a.terminal()
	})
	j.status, j.description, j.stopped = "", "", true
	if len(j.allocs) == 0 {
		delete(c.jobs, j.jobKey)
	}
}

func (c *cluster) applyAlloc(changed *api.Allocation) {
	old := c.allocs[changed.ID]
	if old != nil && changed.ModifyIndex < old.ModifyIndex {
		return
	}
	resources := changed.AllocatedResources
	changed.Job = nil // its fields can be missing
	stub := changed.Stub()
	stub.AllocatedResources = resources
	a := newAlloc(stub)
	j := c.jobOf(a)
	if old == nil {
		at, _ := slices.BinarySearchFunc(j.allocs, a, compareAllocNames)
		j.allocs = slices.Insert(j.allocs, at, a)
		c.allocs[a.ID] = a
		return
	}
	a.usage = old.usage
	*old = *a
	if j.status == "" && old.terminal() {
		c.deleteJob(j)
	}
}

// counts returns the number of jobs, of allocations, of running allocations and of tasks.
func (c *cluster) counts() (jobs, allocs, running, tasks int) {
	for _, a := range c.allocs {
		if a.running() {
			running++
		}
		tasks += len(a.tasks)
	}
	return len(c.jobs), len(c.allocs), running, tasks
}

func (a *alloc) terminal() bool { return apiclient.HasTerminalStatus(a.AllocationListStub) }

func (a *alloc) running() bool { return a.ClientStatus == api.AllocClientStatusRunning }

// hidden reports whether the table shows the allocation only on request: it has ended, and was stopped or replaced.
func (a *alloc) hidden() bool {
	return a.terminal() && (a.DesiredStatus != api.AllocDesiredStatusRun || a.NextAllocation != "")
}

// status returns the client status, or "stopping" until an allocation that is stopped has ended.
func (a *alloc) status() string {
	if !a.terminal() && a.DesiredStatus != "" && a.DesiredStatus != api.AllocDesiredStatusRun {
		return "stopping"
	}
	return a.ClientStatus
}

// shortName returns the group and the number of the allocation: "web[0]".
func (a *alloc) shortName() string { return strings.TrimPrefix(a.Name, a.JobID+".") }

func (t task) running() bool { return t.state.State == model.TaskRunning }

// status returns the state of the task, or "failed" for a dead task that has failed.
func (t task) status() string {
	if t.state.State == model.TaskDead && t.state.Failed {
		return "failed"
	}
	return t.state.State
}

// totals are the sums of a job, an allocation or a task. They are comparable by sort keys.
type totals struct {
	usage
	sampled  bool // every running task has a sample
	restarts uint64
	started  time.Time // start of the oldest running task; zero if none runs
	running  int       // running tasks
}

func (t *totals) add(o totals) {
	t.mhz, t.percent, t.memory, t.restarts = t.mhz+o.mhz, t.percent+o.percent, t.memory+o.memory, t.restarts+o.restarts
	if o.running == 0 {
		return
	}
	t.sampled = o.sampled && (t.sampled || t.running == 0)
	t.running += o.running
	if t.started.IsZero() || o.started.Before(t.started) {
		t.started = o.started
	}
}

func (a *alloc) taskTotals(t task) totals {
	sum := totals{restarts: t.state.Restarts}
	if t.running() && a.running() {
		sum.usage, sum.sampled = a.usage[t.name]
		sum.started, sum.running = t.state.StartedAt, 1
	}
	return sum
}

func (a *alloc) totals() totals {
	var sum totals
	for _, t := range a.tasks {
		sum.add(a.taskTotals(t))
	}
	return sum
}

func (j *job) totals() totals {
	var sum totals
	for _, a := range j.allocs {
		sum.add(a.totals())
	}
	return sum
}

// setUsage stores a sample of an allocation. It ignores an allocation that is no longer known.
func (c *cluster) setUsage(id string, stats *api.AllocResourceUsage) {
	a := c.allocs[id]
	if a == nil {
		return
	}
	a.usage = nil
	if stats == nil {
		return
	}
	a.usage = make(map[string]usage, len(stats.Tasks))
	for name, used := range stats.Tasks {
		if used == nil || used.ResourceUsage == nil {
			continue
		}
		cpu, memory := pointer.Value(used.ResourceUsage.CpuStats), pointer.Value(used.ResourceUsage.MemoryStats)
		a.usage[name] = usage{mhz: cpu.TotalTicks, percent: cpu.Percent, memory: tables.ResidentMemory(&memory)}
	}
}
