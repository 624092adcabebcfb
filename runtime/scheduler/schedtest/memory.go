package schedtest

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// Memory is a scheduler.Store in memory.
type Memory struct {
	// Fault is called before each commit; an error makes the change fail. Nil means
	// no faults.
	Fault func() error
	// Committed is called after each change with the new state. It must not call
	// Update.
	Committed func(index uint64, state scheduler.State)

	mu      sync.Mutex
	state   *state
	changed chan struct{} // closed and replaced by each change
}

// NewMemory returns a store that contains only a node.
func NewMemory(node *api.Node) *Memory {
	s := &state{
		node:        node,
		jobs:        newTable[scheduler.JobKey, api.Job](),
		versions:    make(map[scheduler.JobKey][]*api.Job),
		submissions: make(map[versionKey]*api.JobSubmission),
		launches:    make(map[scheduler.JobKey]time.Time),
		scaling:     make(map[scheduler.JobKey][]api.ScalingEvent),
		allocs:      newTable[string, api.Allocation](),
		ended:       make(map[string]bool),
		evals:       newTable[string, api.Evaluation](),
		deployments: newTable[string, api.Deployment](),
	}
	return &Memory{state: s, changed: make(chan struct{})}
}

// View implements scheduler.Store.
func (m *Memory) View() scheduler.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Changed returns a channel that is closed by the next change.
func (m *Memory) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// SetNode replaces the node.
func (m *Memory) SetNode(n *api.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.state.clone()
	next.node = n
	m.commitLocked(next)
}

// ErrFault is the error of a simulated fault.
var ErrFault = errors.New("no space left on device")

// Update implements scheduler.Store.
func (m *Memory) Update(ctx context.Context, change func(scheduler.Tx) error) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &tx{state: m.state.clone()}
	t.index++
	if err := change(t); err != nil {
		return 0, err
	}
	if !t.wrote {
		return m.state.index, nil
	}
	if m.Fault != nil {
		if err := m.Fault(); err != nil {
			return 0, err
		}
	}
	m.commitLocked(t.state)
	return t.index, nil
}

func (m *Memory) commitLocked(next *state) {
	m.state = next
	close(m.changed)
	m.changed = make(chan struct{})
	if m.Committed != nil {
		m.Committed(next.index, next)
	}
}

type versionKey struct {
	job     scheduler.JobKey
	version uint64
}

// state is a version of the store. It is immutable once committed.
type state struct {
	index, allocsIndex uint64
	node               *api.Node

	jobs        *table[scheduler.JobKey, api.Job]
	versions    map[scheduler.JobKey][]*api.Job
	submissions map[versionKey]*api.JobSubmission
	launches    map[scheduler.JobKey]time.Time
	scaling     map[scheduler.JobKey][]api.ScalingEvent
	allocs      *table[string, api.Allocation]
	ended       map[string]bool
	evals       *table[string, api.Evaluation]
	deployments *table[string, api.Deployment]
}

// clone returns a copy-on-write copy.
func (s *state) clone() *state {
	c := *s
	c.jobs, c.allocs, c.evals, c.deployments = s.jobs.share(), s.allocs.share(), s.evals.share(), s.deployments.share()
	return &c
}

func (s *state) Node() *api.Node                           { return s.node }
func (s *state) Namespaces() []string                      { return nil }
func (s *state) Job(key scheduler.JobKey) *api.Job         { return s.jobs.rows[key] }
func (s *state) Jobs() iter.Seq[*api.Job]                  { return s.jobs.all() }
func (s *state) Alloc(id string) *api.Allocation           { return s.allocs.rows[id] }
func (s *state) Allocs() iter.Seq[*api.Allocation]         { return s.allocs.all() }
func (s *state) Ended(id string) bool                      { return s.ended[id] }
func (s *state) AllocsIndex() uint64                       { return s.allocsIndex }
func (s *state) Eval(id string) *api.Evaluation            { return s.evals.rows[id] }
func (s *state) Evals() iter.Seq[*api.Evaluation]          { return s.evals.all() }
func (s *state) Deployment(id string) *api.Deployment      { return s.deployments.rows[id] }
func (s *state) Deployments() iter.Seq[*api.Deployment]    { return s.deployments.all() }
func (s *state) LastLaunch(key scheduler.JobKey) time.Time { return s.launches[key] }

func (s *state) JobVersions(key scheduler.JobKey) []*api.Job { return s.versions[key] }

func (s *state) Submission(key scheduler.JobKey, version uint64) *api.JobSubmission {
	return s.submissions[versionKey{key, version}]
}

func (s *state) Children(parent scheduler.JobKey) []*api.Job {
	return slices.Collect(s.jobs.where(func(j *api.Job) bool {
		return *j.Namespace == parent.Namespace && j.ParentID != nil && *j.ParentID == parent.ID
	}))
}

func (s *state) AllocsOfJob(key scheduler.JobKey) []*api.Allocation {
	return slices.Collect(s.allocs.where(func(a *api.Allocation) bool { return a.JobID == key.ID && a.Namespace == key.Namespace }))
}

func (s *state) EvalsOfJob(key scheduler.JobKey) []*api.Evaluation {
	return slices.Collect(s.evals.where(func(e *api.Evaluation) bool { return e.JobID == key.ID && e.Namespace == key.Namespace }))
}

func (s *state) DeploymentsOfJob(key scheduler.JobKey) []*api.Deployment {
	return slices.Collect(s.deployments.where(func(d *api.Deployment) bool { return d.JobID == key.ID && d.Namespace == key.Namespace }))
}

// tx is a transaction.
type tx struct {
	*state
	wrote bool
}

func (t *tx) Index() uint64 { return t.index }

// Operation implements scheduler.Tx. It has no effect, because Memory has no event
// stream.
func (*tx) Operation(string) {}

// AnnounceEval implements scheduler.Tx.
func (*tx) AnnounceEval(*api.Evaluation) {}

// AnnounceNode implements scheduler.Tx.
func (*tx) AnnounceNode() {}

func (t *tx) PutJob(job *api.Job) {
	t.wrote = true
	key := scheduler.KeyOf(job)
	job.ModifyIndex = new(t.index)
	t.jobs.put(key, job)
	t.versions = maps.Clone(t.versions)
	t.versions[key] = withVersion(t.versions[key], job)
}

func (t *tx) PutJobVersion(job *api.Job) {
	if current := t.Job(scheduler.KeyOf(job)); current != nil && *current.Version == *job.Version {
		t.PutJob(job)
		return
	}
	t.wrote = true
	t.versions = maps.Clone(t.versions)
	t.versions[scheduler.KeyOf(job)] = withVersion(t.versions[scheduler.KeyOf(job)], job)
}

func withVersion(versions []*api.Job, job *api.Job) []*api.Job {
	versions = slices.DeleteFunc(slices.Clone(versions), func(v *api.Job) bool { return *v.Version == *job.Version })
	versions = append(versions, job)
	slices.SortFunc(versions, func(a, b *api.Job) int { return int(*b.Version) - int(*a.Version) })
	return versions
}

func (t *tx) DeleteJob(key scheduler.JobKey) {
	t.wrote = true
	t.jobs.delete(key)
	t.versions, t.launches = maps.Clone(t.versions), maps.Clone(t.launches)
	delete(t.versions, key)
	delete(t.launches, key)
}

func (t *tx) DeleteJobVersion(key scheduler.JobKey, version uint64) {
	t.wrote = true
	t.versions = maps.Clone(t.versions)
	t.versions[key] = slices.DeleteFunc(slices.Clone(t.versions[key]), func(v *api.Job) bool { return *v.Version == version })
}

func (t *tx) PutSubmission(key scheduler.JobKey, version uint64, s *api.JobSubmission) {
	t.wrote = true
	t.submissions = maps.Clone(t.submissions)
	t.submissions[versionKey{key, version}] = s
}

func (t *tx) PutLaunch(key scheduler.JobKey, at time.Time) {
	t.wrote = true
	t.launches = maps.Clone(t.launches)
	t.launches[key] = at
}

func (t *tx) PutScalingEvent(key scheduler.JobKey, _ string, event api.ScalingEvent) {
	t.wrote = true
	t.scaling = maps.Clone(t.scaling)
	t.scaling[key] = append(slices.Clone(t.scaling[key]), event)
}

// ScalingEvents returns the events of all groups of a job, oldest first.
func (m *Memory) ScalingEvents(key scheduler.JobKey) []api.ScalingEvent {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.scaling[key]
}

func (t *tx) PutAlloc(a *api.Allocation) {
	a.AllocModifyIndex = t.index
	t.ReportAlloc(a)
}

func (t *tx) ReportAlloc(a *api.Allocation) {
	t.wrote = true
	t.allocsIndex = t.index
	a.CreateIndex, a.ModifyIndex = t.index, t.index
	if old := t.Alloc(a.ID); old != nil {
		a.CreateIndex = old.CreateIndex
	}
	t.allocs.put(a.ID, a)
}

func (t *tx) PutEnded(id string) {
	t.wrote = true
	t.allocsIndex = t.index
	t.ended = maps.Clone(t.ended)
	t.ended[id] = true
}

func (t *tx) DeleteAlloc(id string) {
	t.wrote = true
	t.allocsIndex = t.index
	t.allocs.delete(id)
}

func (t *tx) PutEval(e *api.Evaluation) {
	t.wrote = true
	e.CreateIndex, e.ModifyIndex = t.index, t.index
	if old := t.Eval(e.ID); old != nil {
		e.CreateIndex = old.CreateIndex
	}
	t.evals.put(e.ID, e)
}

func (t *tx) DeleteEval(id string) {
	t.wrote = true
	t.evals.delete(id)
}

func (t *tx) PutNode(n *api.Node) {
	t.wrote = true
	n.ModifyIndex = t.index
	t.node = n
}

func (t *tx) PutDeployment(d *api.Deployment) {
	t.wrote = true
	d.CreateIndex, d.ModifyIndex = t.index, t.index
	if old := t.Deployment(d.ID); old != nil {
		d.CreateIndex = old.CreateIndex
	}
	t.deployments.put(d.ID, d)
}

func (t *tx) DeleteDeployment(id string) {
	t.wrote = true
	t.deployments.delete(id)
}

// table keeps rows in the order of their insertion.
type table[K comparable, V any] struct {
	rows   map[K]*V
	order  []K
	shared bool // rows and order belong to another table as well
}

func newTable[K comparable, V any]() *table[K, V] { return &table[K, V]{rows: make(map[K]*V)} }

func (t *table[K, V]) share() *table[K, V] { return &table[K, V]{t.rows, t.order, true} }

func (t *table[K, V]) own() {
	if t.shared {
		t.rows, t.order, t.shared = maps.Clone(t.rows), slices.Clone(t.order), false
	}
}

func (t *table[K, V]) put(key K, row *V) {
	t.own()
	if t.rows[key] == nil {
		t.order = append(t.order, key)
	}
	t.rows[key] = row
}

func (t *table[K, V]) delete(key K) {
	t.own()
	delete(t.rows, key)
	t.order = slices.DeleteFunc(t.order, func(k K) bool { return k == key })
}

func (t *table[K, V]) all() iter.Seq[*V] { return t.where(func(*V) bool { return true }) }

func (t *table[K, V]) where(holds func(*V) bool) iter.Seq[*V] {
	rows, order := t.rows, t.order
	return func(yield func(*V) bool) {
		for _, key := range order {
			if row := rows[key]; row != nil && holds(row) && !yield(row) {
				return
			}
		}
	}
}
