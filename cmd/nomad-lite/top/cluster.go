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

// knownJobsAndAllocs is the last known state of the agent's jobs and allocations. A single goroutine uses it.
type knownJobsAndAllocs struct {
	jobsByKey map[jobKey]*job
	// allocsByID maps the ID of an allocation to the allocation, which is also in the list of its job.
	allocsByID map[string]*alloc
}

type jobKey struct{ namespace, id string }

type job struct {
	jobKey
	status            string // empty if the job was purged and only its allocations remain
	statusDescription string
	jobType           string // type of the job, such as "service"
	isStopped         bool
	modifyIndex       uint64
	allocs            []*alloc             // sorted by compareAllocsByGroupAndName
	health            *apiclient.JobHealth // nil if the agent does not report it
}

type alloc struct {
	*api.AllocationListStub // without AllocatedResources, of which the table needs only the ports
	formattedPorts          string
	tasks                   []task
	usageByTask             map[string]resourceUsage // task name -> last sample; nil if there is none
}

type task struct {
	name  string
	state *api.TaskState
}

// resourceUsage is the resource resourceUsage of a task.
type resourceUsage struct {
	cpuMHz, cpuPercent float64
	memoryBytes        uint64
}

func newCluster() *knownJobsAndAllocs {
	return &knownJobsAndAllocs{jobsByKey: map[jobKey]*job{}, allocsByID: map[string]*alloc{}}
}

// replaceAllKeepingUsage replaces all jobs and allocations by those of the lists. An allocation that is in both keeps
// its usage.
func (c *knownJobsAndAllocs) replaceAllKeepingUsage(jobs []*api.JobListStub, allocs []*api.AllocationListStub) {
	before, jobsBefore := c.allocsByID, c.jobsByKey
	c.jobsByKey, c.allocsByID = make(map[jobKey]*job, len(jobs)), make(map[string]*alloc, len(allocs))
	for _, j := range jobs {
		if j == nil {
			continue
		}
		key := jobKey{apiclient.JobNamespace(j), j.ID}
		c.jobsByKey[key] = &job{jobKey: key, status: j.Status, statusDescription: j.StatusDescription, jobType: j.Type, isStopped: j.Stop, modifyIndex: j.ModifyIndex}
		if old := jobsBefore[key]; old != nil {
			c.jobsByKey[key].health = old.health
		}
	}
	for _, stub := range allocs {
		if stub == nil || c.allocsByID[stub.ID] != nil {
			continue
		}
		a := newAlloc(stub)
		if old := before[a.ID]; old != nil {
			a.usageByTask = old.usageByTask
		}
		c.allocsByID[a.ID] = a
		j := c.findOrAddJobOfAlloc(a)
		j.allocs = append(j.allocs, a)
	}
	for _, j := range c.jobsByKey {
		slices.SortFunc(j.allocs, compareAllocsByGroupAndName)
	}
}

func newAlloc(stub *api.AllocationListStub) *alloc {
	a := &alloc{AllocationListStub: stub, formattedPorts: ports.FormatAllocationPorts(stub.AllocatedResources, nil)}
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

// compareAllocsByGroupAndName orders allocations by group and name, such that [9] precedes [10], and an allocation
// before its replacement.
func compareAllocsByGroupAndName(a, b *alloc) int {
	return cmp.Or(
		cmp.Compare(a.TaskGroup, b.TaskGroup), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.ID, b.ID),
	)
}

// findOrAddJobOfAlloc returns the job of an allocation. If the job is unknown, findOrAddJobOfAlloc adds it: a job can
// be purged before its allocations have ended.
func (c *knownJobsAndAllocs) findOrAddJobOfAlloc(a *alloc) *job {
	key := jobKey{a.Namespace, a.JobID}
	if c.jobsByKey[key] == nil {
		c.jobsByKey[key] = &job{jobKey: key}
	}
	return c.jobsByKey[key]
}

// streamedEvent has those fields of an streamedEvent of the API's streamedEvent stream that the table needs.
type streamedEvent struct {
	Topic   api.Topic
	Payload struct {
		Job        *api.Job
		Allocation *api.Allocation
		Deleted    bool
	}
}

// applyEvent updates the job or the allocation of an event. It ignores an event that is older than the stored object.
func (c *knownJobsAndAllocs) applyEvent(e streamedEvent) {
	switch {
	case e.Topic == api.TopicJob && e.Payload.Job != nil:
		c.applyJobEvent(e.Payload.Job, e.Payload.Deleted)
	case e.Topic == api.TopicAllocation && e.Payload.Allocation != nil:
		c.applyAllocEvent(e.Payload.Allocation)
	}
}

func (c *knownJobsAndAllocs) applyJobEvent(j *api.Job, deleted bool) {
	key := jobKey{cmp.Or(pointer.Value(j.Namespace), api.DefaultNamespace), pointer.Value(j.ID)}
	known := c.jobsByKey[key]
	if deleted {
		if known != nil {
			c.deleteJobAndTerminalAllocs(known)
		}
		return
	}
	if known == nil {
		known = &job{jobKey: key}
		c.jobsByKey[key] = known
	}
	index := pointer.Value(j.ModifyIndex)
	if index < known.modifyIndex {
		return
	}
	known.status, known.statusDescription = pointer.Value(j.Status), pointer.Value(j.StatusDescription)
	known.jobType, known.isStopped, known.modifyIndex = pointer.Value(j.Type), pointer.Value(j.Stop), index
}

// deleteJobAndTerminalAllocs removes a purged job and its terminal allocations. While other allocations remain, the job
// stays in the table with an empty status.
func (c *knownJobsAndAllocs) deleteJobAndTerminalAllocs(j *job) {
	j.allocs = slices.DeleteFunc(j.allocs, func(a *alloc) bool {
		if a.isTerminal() {
			delete(c.allocsByID, a.ID)
		}
		return a.isTerminal()
	})
	j.status, j.statusDescription, j.isStopped = "", "", true
	if len(j.allocs) == 0 {
		delete(c.jobsByKey, j.jobKey)
	}
}

func (c *knownJobsAndAllocs) applyAllocEvent(changed *api.Allocation) {
	old := c.allocsByID[changed.ID]
	if old != nil && changed.ModifyIndex < old.ModifyIndex {
		return
	}
	resources := changed.AllocatedResources
	changed.Job = nil // Stub would read the job's fields, which can be nil
	stub := changed.Stub()
	stub.AllocatedResources = resources
	a := newAlloc(stub)
	j := c.findOrAddJobOfAlloc(a)
	if old == nil {
		at, _ := slices.BinarySearchFunc(j.allocs, a, compareAllocsByGroupAndName)
		j.allocs = slices.Insert(j.allocs, at, a)
		c.allocsByID[a.ID] = a
		return
	}
	a.usageByTask = old.usageByTask
	*old = *a
	if j.status == "" && old.isTerminal() {
		c.deleteJobAndTerminalAllocs(j)
	}
}

// setHealth sets the health of all jobs. A job that is not in healthByJob has none.
func (c *knownJobsAndAllocs) setHealth(healthByJob map[apiclient.JobKey]*apiclient.JobHealth) {
	for key, j := range c.jobsByKey {
		j.health = healthByJob[apiclient.JobKey{Namespace: key.namespace, ID: key.id}]
	}
}

// countJobsThatNeedAttention returns the number of jobs of which a part does not work.
func (c *knownJobsAndAllocs) countJobsThatNeedAttention() (count int) {
	for _, j := range c.jobsByKey {
		if j.health != nil && j.health.NeedsAttention {
			count++
		}
	}
	return count
}

// countObjects returns the numbers of all jobs, allocations, running allocations and tasks.
func (c *knownJobsAndAllocs) countObjects() (jobs, allocs, runningAllocs, tasks int) {
	for _, a := range c.allocsByID {
		if a.isRunning() {
			runningAllocs++
		}
		tasks += len(a.tasks)
	}
	return len(c.jobsByKey), len(c.allocsByID), runningAllocs, tasks
}

func (a *alloc) isTerminal() bool { return apiclient.HasTerminalClientStatus(a.AllocationListStub) }

func (a *alloc) isRunning() bool { return a.ClientStatus == api.AllocClientStatusRunning }

// isHiddenUnlessShowAll reports whether the table shows the allocation only with "all": it has ended, and was stopped
// or replaced.
func (a *alloc) isHiddenUnlessShowAll() bool {
	return a.isTerminal() && (a.DesiredStatus != api.AllocDesiredStatusRun || a.NextAllocation != "")
}

// displayedStatus returns the client status, or "stopping" for an allocation that must stop and has not ended.
func (a *alloc) displayedStatus() string {
	if !a.isTerminal() && a.DesiredStatus != "" && a.DesiredStatus != api.AllocDesiredStatusRun {
		return "stopping"
	}
	return a.ClientStatus
}

// shortName returns the name without the job, such as "web[0]".
func (a *alloc) shortName() string { return strings.TrimPrefix(a.Name, a.JobID+".") }

func (t task) isRunning() bool { return t.state.State == model.TaskRunning }

// displayedStatus returns the state of the task, or "failed" for a dead task that has failed.
func (t task) displayedStatus() string {
	if t.state.State == model.TaskDead && t.state.Failed {
		return "failed"
	}
	return t.state.State
}

// totals are the sums over the tasks of a job or an allocation, or the values of one task.
type totals struct {
	resourceUsage
	hasUsageOfRunningTasks bool // every running task has a usage sample
	restarts               uint64
	oldestStart            time.Time // start of the oldest running task; zero if none runs
	runningTasks           int       // number of running tasks
}

func (t *totals) addTotals(o totals) {
	t.cpuMHz, t.cpuPercent, t.memoryBytes, t.restarts = t.cpuMHz+o.cpuMHz, t.cpuPercent+o.cpuPercent, t.memoryBytes+o.memoryBytes, t.restarts+o.restarts
	if o.runningTasks == 0 {
		return
	}
	t.hasUsageOfRunningTasks = o.hasUsageOfRunningTasks && (t.hasUsageOfRunningTasks || t.runningTasks == 0)
	t.runningTasks += o.runningTasks
	if t.oldestStart.IsZero() || o.oldestStart.Before(t.oldestStart) {
		t.oldestStart = o.oldestStart
	}
}

func (a *alloc) taskTotals(t task) totals {
	sum := totals{restarts: t.state.Restarts}
	if t.isRunning() && a.isRunning() {
		sum.resourceUsage, sum.hasUsageOfRunningTasks = a.usageByTask[t.name]
		sum.oldestStart, sum.runningTasks = t.state.StartedAt, 1
	}
	return sum
}

func (a *alloc) totals() totals {
	var sum totals
	for _, t := range a.tasks {
		sum.addTotals(a.taskTotals(t))
	}
	return sum
}

func (j *job) totals() totals {
	var sum totals
	for _, a := range j.allocs {
		sum.addTotals(a.totals())
	}
	return sum
}

// setAllocUsage stores the usage of an allocation's tasks. It ignores an allocation that is no longer known.
func (c *knownJobsAndAllocs) setAllocUsage(allocID string, stats *api.AllocResourceUsage) {
	a := c.allocsByID[allocID]
	if a == nil {
		return
	}
	a.usageByTask = nil
	if stats == nil {
		return
	}
	a.usageByTask = make(map[string]resourceUsage, len(stats.Tasks))
	for name, used := range stats.Tasks {
		if used == nil || used.ResourceUsage == nil {
			continue
		}
		cpu, memory := pointer.Value(used.ResourceUsage.CpuStats), pointer.Value(used.ResourceUsage.MemoryStats)
		a.usageByTask[name] = resourceUsage{cpuMHz: cpu.TotalTicks, cpuPercent: cpu.Percent, memoryBytes: tables.ResidentOrUsedMemoryBytes(&memory)}
	}
}
