package healthtracker

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/explain/jobhealth"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Config connects a Tracker to the node. Each function may be nil.
type Config struct {
	NodeID string
	// CheckStatuses returns the results of an allocation's service checks, and a channel that is closed when they change.
	CheckStatuses func(allocID string) (statuses []api.AllocCheckStatus, changed <-chan struct{})
	// StderrTail returns the end of a task's standard error, and the time of the last write.
	StderrTail func(allocID, task string) (tail string, writtenAt time.Time, err error)
}

// Tracker knows all jobs' health. All methods may be called concurrently. They may block while another call reads files.
type Tracker struct {
	config Config

	mu         sync.Mutex
	jobs       map[jobKey]*trackedJob
	tableIndex uint64 // last evaluated state's table index
	lastChange uint64 // last health change's index
	notBefore  time.Time
	recheckAt  time.Time   // when a health can change without a state change; zero means never
	timer      *time.Timer // closes timerFired at timerAt; nil if no reader waits for a time
	timerAt    time.Time
	timerFired chan struct{}
}

type jobKey struct{ namespace, id string }

// trackedJob is a job with its health.
type trackedJob struct {
	// isDispatched is a copy, because a reference to the job would keep it in memory after it has changed in the store.
	isDispatched bool

	stamp     inputStamp
	evaluated jobhealth.Health // result without a standard error line
	health    jobhealth.Health
	changedAt uint64 // last health change's index
	recheckAt time.Time
	checks    []<-chan struct{} // closed when check results change
	stderr    stderrLine
	// deploymentStderr explains the exit that failed the deployment.
	deploymentStderr stderrLine
}

// inputStamp changes when a job's objects do.
type inputStamp struct {
	maxIndex                uint64
	allocs, evals, deployed int
}

// stderrLine is the line that explains one process exit.
type stderrLine struct {
	allocID, task string
	since         time.Time
	tail          string
	firstReadAt   time.Time
}

// JobHealth is one job's health.
type JobHealth struct {
	Namespace, JobID string
	IsDispatched     bool // the job is a dispatched child of a parameterized job
	Health           jobhealth.Health
	Index            uint64 // increases with each health change, also across agents, like a time in microseconds
}

// New returns a tracker without evaluated jobs.
func New(c Config) *Tracker { return &Tracker{config: c, jobs: make(map[jobKey]*trackedJob)} }

// Jobs returns the health of all jobs in a namespace, or in [store.AnyNamespace], sorted by namespace and id, and the last health
// change's index. It adds channels to ws, which may be nil; one of them is closed when the result may have changed.
func (t *Tracker) Jobs(s *store.Snapshot, ws store.WatchSet, namespace string) ([]JobHealth, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refreshLocked(s, ws)
	found := make([]JobHealth, 0, len(t.jobs))
	for key, j := range t.jobs {
		if namespace == store.AnyNamespace || namespace == key.namespace {
			found = append(found, j.toJobHealth(key))
		}
	}
	slices.SortFunc(found, func(a, b JobHealth) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.JobID, b.JobID))
	})
	return found, t.lastChange
}

// Job returns one job's health. ok is false if the job does not exist; the index is then any job's last change. ws has the same
// meaning as for Jobs.
func (t *Tracker) Job(s *store.Snapshot, ws store.WatchSet, namespace, id string) (h JobHealth, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refreshLocked(s, ws)
	j := t.jobs[jobKey{namespace, id}]
	if j == nil {
		return JobHealth{Index: t.lastChange}, false
	}
	return j.toJobHealth(jobKey{namespace, id}), true
}

func (j *trackedJob) toJobHealth(key jobKey) JobHealth {
	return JobHealth{key.namespace, key.id, j.isDispatched, j.health, j.changedAt}
}

// maxShare is the maximum share of time for waiting readers' evaluations: 1/maxShare.
const maxShare = 20

// refreshLocked evaluates the jobs changed since the last call.
func (t *Tracker) refreshLocked(s *store.Snapshot, ws store.WatchSet) {
	now := time.Now()
	index := s.LatestTableIndex(ws, store.Jobs, store.Allocations, store.Evaluations, store.Deployments, store.Nodes)
	hasNewState := index > t.tableIndex
	isDue := !t.recheckAt.IsZero() && !now.Before(t.recheckAt)
	switch {
	case index < t.tableIndex: // another reader has evaluated a later snapshot
	case ws != nil && now.Before(t.notBefore):
		t.recheckAt = earliest(t.recheckAt, t.notBefore)
	case hasNewState || isDue || t.haveChecksChanged():
		t.evaluateLocked(s, now)
		t.tableIndex = index
		t.notBefore = time.Now().Add((maxShare - 1) * time.Since(now))
	}
	if ws == nil {
		return
	}
	for _, j := range t.jobs {
		for _, changed := range j.checks {
			ws.Add(changed)
		}
	}
	t.watchRecheckLocked(ws)
}

// watchRecheckLocked adds a channel to ws, closed at recheckAt, or when recheckAt changes. All readers share a timer.
func (t *Tracker) watchRecheckLocked(ws store.WatchSet) {
	if t.timer != nil && !t.timerAt.Equal(t.recheckAt) {
		if t.timer.Stop() {
			close(t.timerFired)
		}
		t.timer = nil
	}
	if t.recheckAt.IsZero() {
		return
	}
	if t.timer == nil {
		fired := make(chan struct{})
		t.timerAt, t.timerFired = t.recheckAt, fired
		t.timer = time.AfterFunc(time.Until(t.recheckAt), func() { close(fired) })
	}
	ws.Add(t.timerFired)
}

// haveChecksChanged reports whether a job's check results have changed.
func (t *Tracker) haveChecksChanged() bool {
	for _, j := range t.jobs {
		if j.haveChecksChanged() {
			return true
		}
	}
	return false
}

func (j *trackedJob) haveChecksChanged() bool {
	return slices.ContainsFunc(j.checks, wait.IsClosed)
}

// earliest returns the earlier of two non-zero times.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// jobObjects are the state objects that determine a job's health.
type jobObjects struct {
	job        *api.Job
	allocs     []*api.Allocation
	evals      []*api.Evaluation
	deployment *api.Deployment
	failed     *api.Deployment // latest failed deployment
	lastChild  *api.Job
	stamp      inputStamp
}

func (o *jobObjects) addIndex(index uint64) { o.stamp.maxIndex = max(o.stamp.maxIndex, index) }

// readObjects returns all jobs' objects. It reads each table once, which costs less than one look-up per job and table.
func readObjects(s *store.Snapshot) map[jobKey]*jobObjects {
	all := make(map[jobKey]*jobObjects)
	for _, j := range s.Jobs(nil, store.AnyNamespace, "") {
		o := &jobObjects{job: j}
		o.addIndex(pointer.Value(j.ModifyIndex))
		all[jobKey{pointer.Value(j.Namespace), pointer.Value(j.ID)}] = o
	}
	for _, o := range all {
		if id := pointer.Value(o.job.ParentID); id != "" {
			if parent := all[jobKey{pointer.Value(o.job.Namespace), id}]; parent != nil && (parent.lastChild == nil || pointer.Value(o.job.SubmitTime) > pointer.Value(parent.lastChild.SubmitTime)) {
				parent.lastChild = o.job
			}
		}
	}
	for _, a := range s.WithoutEndedEvents().Allocations(nil, "") {
		if o := all[jobKey{a.Namespace, a.JobID}]; o != nil && a.Job != nil && pointer.Value(a.Job.CreateIndex) == pointer.Value(o.job.CreateIndex) {
			o.allocs = append(o.allocs, a)
			o.addIndex(a.ModifyIndex)
		}
	}
	for _, e := range s.Evaluations(nil, "") {
		if o := all[jobKey{e.Namespace, e.JobID}]; o != nil {
			o.evals = append(o.evals, e)
			o.addIndex(e.ModifyIndex)
		}
	}
	for _, d := range s.Deployments(nil, "") {
		o := all[jobKey{d.Namespace, d.JobID}]
		if o == nil || d.JobCreateIndex != pointer.Value(o.job.CreateIndex) {
			continue
		}
		o.stamp.deployed++
		o.addIndex(d.ModifyIndex)
		if isLaterDeployment(d, o.deployment) {
			o.deployment = d
		}
		if d.Status == api.DeploymentStatusFailed && isLaterDeployment(d, o.failed) {
			o.failed = d
		}
	}
	for _, o := range all {
		o.stamp.allocs, o.stamp.evals = len(o.allocs), len(o.evals)
		slices.SortStableFunc(o.allocs, func(a, b *api.Allocation) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	}
	return all
}

// isLaterDeployment reports whether a job's deployment was created after another one, which may be nil.
func isLaterDeployment(d, other *api.Deployment) bool {
	return other == nil || d.CreateIndex > other.CreateIndex || d.CreateIndex == other.CreateIndex && d.JobVersion > other.JobVersion
}

// evaluateLocked evaluates the jobs with changed objects, and those due for a recheck.
func (t *Tracker) evaluateLocked(s *store.Snapshot, now time.Time) {
	all := readObjects(s)
	node := s.Node(nil, t.config.NodeID)
	var nodeIndex uint64
	if node != nil {
		nodeIndex = node.ModifyIndex
	}
	for key := range t.jobs {
		if all[key] == nil {
			delete(t.jobs, key)
			t.lastChange = t.nextIndex(now)
		}
	}
	t.recheckAt = time.Time{}
	var launchers []jobKey
	for key, o := range all {
		if model.CanHaveChildren(o.job) {
			launchers = append(launchers, key)
			continue
		}
		o.addIndex(nodeIndex)
		t.evaluateJobLocked(s, key, o, node, nil, now)
	}
	for _, key := range launchers {
		o := all[key]
		var last *jobhealth.Child
		if o.lastChild != nil {
			// A child that can have children itself is evaluated in this loop, too.
			if child := t.jobs[jobKey{key.namespace, pointer.Value(o.lastChild.ID)}]; child != nil {
				last = &jobhealth.Child{ID: pointer.Value(o.lastChild.ID), Health: child.health}
				o.addIndex(child.changedAt) // higher than all indexes in the state
			}
		}
		t.evaluateJobLocked(s, key, o, node, last, now)
	}
	for _, j := range t.jobs {
		t.recheckAt = earliest(t.recheckAt, j.recheckAt)
	}
}

func (t *Tracker) evaluateJobLocked(s *store.Snapshot, key jobKey, o *jobObjects, node *api.Node, last *jobhealth.Child, now time.Time) {
	j := t.jobs[key]
	switch {
	case j == nil:
		j = &trackedJob{}
		t.jobs[key] = j
	case j.stamp != o.stamp || j.haveChecksChanged() || !j.recheckAt.IsZero() && !now.Before(j.recheckAt):
	default:
		return
	}
	checks := make(map[string][]api.AllocCheckStatus)
	j.checks = nil
	var retryAt time.Time
	for i, a := range o.allocs {
		if a.ClientStatus == api.AllocClientStatusFailed {
			o.allocs[i] = s.Allocation(nil, a.ID) // its events have the reason
		}
		if t.config.CheckStatuses == nil || a.ClientStatus != api.AllocClientStatusRunning || !model.HasServiceChecks(model.FindGroup(a.Job, a.TaskGroup)) {
			continue
		}
		statuses, changed := t.config.CheckStatuses(a.ID)
		checks[a.ID] = statuses
		if changed == nil { // a newly started agent restores the allocation
			retryAt = now.Add(time.Second)
			continue
		}
		j.checks = append(j.checks, changed)
	}
	j.isDispatched, j.stamp = o.job.Dispatched, o.stamp
	j.evaluated = jobhealth.Evaluate(jobhealth.Snapshot{
		Now: now, Job: o.job, Allocations: o.allocs, Evaluations: o.evals, Deployment: o.deployment, LastEnd: s.LastTaskEnd, ChecksByAllocID: checks, Node: node, LastChild: last,
		FailedDeployment: o.failed, DeploymentFailure: s.DeploymentFailure,
	})
	h, recheckAt := t.addStderrLines(j, now)
	j.recheckAt = earliest(earliest(h.RecheckAt, recheckAt), retryAt)
	if j.changedAt == 0 || !h.HasSameText(j.health) {
		j.changedAt = t.nextIndex(now)
		t.lastChange = j.changedAt
	}
	j.health = h
}

// nextIndex returns an index for a change. Indexes are times, so they increase across agents.
func (t *Tracker) nextIndex(now time.Time) uint64 {
	return max(t.lastChange+1, uint64(now.UnixMicro()))
}

// lateOutput is how long after an exit report the log collector may write the process's last output.
const lateOutput = time.Second

// addStderrLines returns a job's health with the last standard error lines that explain it. They are read again at recheckAt,
// unless it is zero.
func (t *Tracker) addStderrLines(j *trackedJob, now time.Time) (h jobhealth.Health, recheckAt time.Time) {
	h = j.evaluated
	if allocID, task, since, wanted := h.WantedStderr(); wanted && t.config.StderrTail != nil {
		recheckAt = t.readStderrLine(&j.stderr, allocID, task, since, now)
		if j.stderr.tail != "" {
			h = h.WithStderrTail(j.stderr.tail)
		}
	}
	if allocID, task, since, wanted := h.FailedDeployment.WantedStderr(); wanted && t.config.StderrTail != nil {
		recheckAt = earliest(recheckAt, t.readStderrLine(&j.deploymentStderr, allocID, task, since, now))
		if j.deploymentStderr.tail != "" {
			h.FailedDeployment = h.FailedDeployment.WithStderrTail(j.deploymentStderr.tail)
		}
	}
	return h, recheckAt
}

// readStderrLine reads the end of a task's standard error into known, unless known is complete for this exit. The caller calls
// readStderrLine again at recheckAt, unless recheckAt is zero.
func (t *Tracker) readStderrLine(known *stderrLine, allocID, task string, since, now time.Time) (recheckAt time.Time) {
	isSameExit := known.allocID == allocID && known.task == task && known.since.Equal(since)
	if isSameExit && now.Sub(known.firstReadAt) >= 2*lateOutput {
		return time.Time{}
	}
	if !isSameExit {
		*known = stderrLine{allocID: allocID, task: task, since: since, firstReadAt: now}
	}
	tail, writtenAt, err := t.config.StderrTail(allocID, task)
	if err == nil && (since.IsZero() || !writtenAt.Before(since)) { // otherwise an earlier process has written the last line
		known.tail = tail
	}
	if now.Sub(known.firstReadAt) < lateOutput {
		return known.firstReadAt.Add(lateOutput)
	}
	return time.Time{}
}
