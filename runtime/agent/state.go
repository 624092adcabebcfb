package agent

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// endedKey is the prefix of the records that an allocation has ended.
const endedKey = "ended/"

// collectKey is the prefix of the records that the directory of an allocation must
// be removed when it has ended.
const collectKey = "collect/"

// records implements scheduler.Store.
type records struct {
	store  *store.Store
	nodeID string
	// desired is called after a change of the allocations that the node must run.
	desired func()
}

var _ scheduler.Store = (*records)(nil)

// Records returns the store as the scheduler of a node sees it. It calls desired
// after each change of the allocations that the node must run.
func Records(s *store.Store, nodeID string, desired func()) scheduler.Store {
	return &records{store: s, nodeID: nodeID, desired: desired}
}

// View implements scheduler.Store.
func (r *records) View() scheduler.State { return stateView{r.store.Snapshot().Reader, r.nodeID} }

// Update implements scheduler.Store.
func (r *records) Update(ctx context.Context, change func(scheduler.Tx) error) (uint64, error) {
	acts := false
	index, err := r.store.Update(ctx, func(tx *store.Txn) error {
		t := &transaction{stateView: stateView{tx.Reader, r.nodeID}, tx: tx}
		err := change(t)
		acts = t.acts
		return err
	})
	if err == nil && acts {
		r.desired()
	}
	return index, err
}

// stateView implements scheduler.State.
type stateView struct {
	r      store.Reader
	nodeID string
}

func (s stateView) Node() *api.Node { return s.r.Node(nil, s.nodeID) }

func (s stateView) Namespaces() []string {
	var names []string
	for _, n := range s.r.Namespaces(nil, "") {
		names = append(names, n.Name)
	}
	return names
}

func (s stateView) Job(k scheduler.JobKey) *api.Job { return s.r.Job(nil, k.Namespace, k.ID) }

func (s stateView) Jobs() iter.Seq[*api.Job] {
	return slices.Values(s.r.Jobs(nil, store.AnyNamespace, ""))
}

func (s stateView) Children(k scheduler.JobKey) []*api.Job {
	return s.r.JobChildren(nil, k.Namespace, k.ID)
}

func (s stateView) JobVersions(k scheduler.JobKey) []*api.Job {
	return s.r.JobVersions(nil, k.Namespace, k.ID)
}

func (s stateView) Submission(k scheduler.JobKey, version uint64) *api.JobSubmission {
	return s.r.JobSubmission(nil, k.Namespace, k.ID, version)
}

func (s stateView) LastLaunch(k scheduler.JobKey) time.Time {
	if launch := s.r.PeriodicLaunch(nil, k.Namespace, k.ID); launch != nil {
		return launch.Launch
	}
	return time.Time{}
}

func (s stateView) Alloc(id string) *api.Allocation { return s.r.Allocation(nil, id) }

func (s stateView) Allocs() iter.Seq[*api.Allocation] { return slices.Values(s.r.Allocations(nil, "")) }

func (s stateView) AllocsOfJob(k scheduler.JobKey) []*api.Allocation {
	return s.r.AllocationsByJob(nil, k.Namespace, k.ID)
}

func (s stateView) Ended(allocID string) bool { return Ended(s.r, allocID) }

// Ended reports whether an allocation has ended for good: its runner has finished,
// and none of its tasks will start again.
func Ended(r store.Reader, allocID string) bool {
	return r.HasFact(endedKey + allocID)
}

func (s stateView) AllocsIndex() uint64 { return s.r.TableIndex(nil, store.Allocations) }

func (s stateView) Eval(id string) *api.Evaluation { return s.r.Evaluation(nil, id) }

func (s stateView) Evals() iter.Seq[*api.Evaluation] { return slices.Values(s.r.Evaluations(nil, "")) }

func (s stateView) EvalsOfJob(k scheduler.JobKey) []*api.Evaluation {
	return s.r.EvaluationsByJob(nil, k.Namespace, k.ID)
}

func (s stateView) Deployment(id string) *api.Deployment { return s.r.Deployment(nil, id) }

func (s stateView) Deployments() iter.Seq[*api.Deployment] {
	return slices.Values(s.r.Deployments(nil, ""))
}

func (s stateView) DeploymentsOfJob(k scheduler.JobKey) []*api.Deployment {
	return s.r.DeploymentsByJob(nil, k.Namespace, k.ID)
}

// transaction implements scheduler.Tx.
type transaction struct {
	stateView
	tx   *store.Txn
	acts bool // the change requires an action of the node
}

func (t *transaction) Index() uint64 { return t.tx.Index() }

func (t *transaction) Operation(name string) { t.tx.Operation(name) }

func (t *transaction) PutJob(j *api.Job) { t.tx.PutJob(j) }

func (t *transaction) PutJobVersion(j *api.Job) { t.tx.PutJobVersion(j) }

// DeleteJob also wakes the node: a stop that waits for an unavailable driver ends
// with the purge of its job.
func (t *transaction) DeleteJob(k scheduler.JobKey) {
	t.tx.DeleteJob(k.Namespace, k.ID)
	t.acts = true
}

func (t *transaction) DeleteJobVersion(k scheduler.JobKey, version uint64) {
	t.tx.DeleteJobVersion(k.Namespace, k.ID, version)
}

func (t *transaction) PutSubmission(k scheduler.JobKey, version uint64, s *api.JobSubmission) {
	t.tx.PutJobSubmission(k.Namespace, k.ID, version, s)
}

func (t *transaction) PutLaunch(k scheduler.JobKey, at time.Time) {
	t.tx.PutPeriodicLaunch(&store.PeriodicLaunch{Namespace: k.Namespace, JobID: k.ID, Launch: at})
}

func (t *transaction) PutScalingEvent(k scheduler.JobKey, group string, e api.ScalingEvent) {
	t.tx.AddScalingEvent(k.Namespace, k.ID, group, e)
}

func (t *transaction) PutAlloc(a *api.Allocation) {
	t.tx.PutAllocation(a)
	t.acts = true
}

func (t *transaction) ReportAlloc(a *api.Allocation) { t.tx.ReportAllocation(a) }

// PutEnded records the end and deletes the records that only the runner of the
// allocation needs. It wakes the node, because another allocation may have waited
// for the end.
func (t *transaction) PutEnded(allocID string) {
	if t.Alloc(allocID) == nil {
		return // the allocation was deleted
	}
	t.tx.PutMeta(endedKey+allocID, true)
	if hooks := allocHooks(t.tx.Reader, allocID); len(hooks) > 0 {
		t.tx.PutMeta(attachedHooksKey+allocID, hooks)
	}
	t.tx.ForgetAllocation(allocID)
	t.acts = true
}

func (t *transaction) DeleteAlloc(id string) {
	if alloc := t.Alloc(id); alloc != nil {
		markForRemoval(t.tx, alloc)
	}
	t.tx.DeleteAllocation(id)
	t.tx.DeleteMeta(endedKey + id)
	t.tx.DeleteMeta(collectKey + id)
	t.acts = true
}

func (t *transaction) PutEval(e *api.Evaluation) { t.tx.PutEvaluation(e) }

func (t *transaction) AnnounceEval(e *api.Evaluation) { t.tx.AnnounceEvaluation(e) }

func (t *transaction) AnnounceNode() {
	if n := t.Node(); n != nil {
		t.tx.AnnounceNode(n.ID)
	}
}

func (t *transaction) DeleteEval(id string) { t.tx.DeleteEvaluation(id) }

func (t *transaction) PutNode(n *api.Node) { t.tx.PutNode(n) }

func (t *transaction) PutDeployment(d *api.Deployment) { t.tx.PutDeployment(d) }

func (t *transaction) DeleteDeployment(id string) { t.tx.DeleteDeployment(id) }
