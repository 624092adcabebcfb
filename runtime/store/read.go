package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// WatchSet is a set of channels. [Reader]'s methods add to it. A channel is closed when a read's result may have changed.
type WatchSet = memdb.WatchSet

// NewWatchSet returns an empty WatchSet.
func NewWatchSet() WatchSet { return memdb.NewWatchSet() }

// AnyNamespace as namespace makes a list method return the objects in all namespaces.
const AnyNamespace = "*"

// Reader has the read methods of a Snapshot and a Txn. Each method adds to its WatchSet,
// which may be nil, a channel that is closed when the same call on a later snapshot may
// have another result. Results are shared and must not be changed. The result for a
// missing object is nil. Lists are sorted by key, unless the method documents another
// order.
//
// It is large because it has typed methods for each table and each index.
type Reader struct {
	beginRead                 func() *memdb.Txn
	quarantineRecordLater     func(Table, *localRecord, error) // moves an unreadable record into the quarantine; it does not block
	reportUnknownPartOnce     func(name string)                // reports a record part unknown to this build; it does not block
	undecryptedSecretByObject map[any]*undecryptedSecret
	leavesOutEndedEvents      bool       // see WithoutEndedEvents
	isVisible                 Visibility // see Snapshot.Restrict; nil if everything is visible
}

// WithoutEndedEvents returns a Reader of the same state that leaves out the task events of ended allocations
// ([Reader.AllocationEnded]): their field Events is nil, unless the Reader's transaction has changed the allocation. It returns
// the same object each time, and needs no memory for it. If an ended allocation is put without a task's events, it keeps the
// stored ones.
func (r Reader) WithoutEndedEvents() Reader {
	r.leavesOutEndedEvents = true
	return r
}

// Snapshot is an immutable state at one index. Its methods may be called concurrently.
type Snapshot struct {
	Reader
	index uint64
}

// Index returns the index of the snapshot's last change.
func (s *Snapshot) Index() uint64 { return s.index }

// Snapshot returns the current state.
func (s *Store) Snapshot() *Snapshot {
	db := s.memDB.Snapshot()
	r := Reader{beginRead: func() *memdb.Txn { return db.Txn(false) }, quarantineRecordLater: s.quarantineRecordLater, reportUnknownPartOnce: s.reportUnknownPartOnce, undecryptedSecretByObject: s.sealer.undecryptedSecretByObject}
	return &Snapshot{Reader: r, index: r.LatestTableIndex(nil, allTablesRow)}
}

func rowByKey[T any](r Reader, ws WatchSet, t Table, key string) *T {
	obj := r.objectByKey(ws, t, key)
	if obj == nil || !r.sees(t, obj) {
		return nil
	}
	return objectOfRow(r, obj).(*T)
}

// objectOfRow returns the object that the row represents.
func objectOfRow(r Reader, row any) any {
	if ended, ok := row.(*endedAllocation); ok && !r.leavesOutEndedEvents {
		return ended.withEvents()
	}
	return objectWithoutEvents(row)
}

func (r Reader) objectByKey(ws WatchSet, t Table, key string) any {
	if key == "" {
		return nil
	}
	watch, obj, err := r.beginRead().FirstWatch(string(t), "id", key)
	if err != nil {
		panic(fmt.Sprintf("store: read %s: %v", t, err)) // a bug: tableDefs lacks the table or the index
	}
	ws.Add(watch)
	return obj
}

func listRows[T any](r Reader, ws WatchSet, t Table, indexName, indexArg string) []*T {
	var foundRows []*T
	it := r.iterateObjects(ws, t, indexName, indexArg)
	for obj := it.Next(); obj != nil; obj = it.Next() {
		if r.sees(t, obj) {
			foundRows = append(foundRows, objectOfRow(r, obj).(*T))
		}
	}
	return foundRows
}

func (r Reader) iterateObjects(ws WatchSet, t Table, indexName, indexArg string) memdb.ResultIterator {
	it, err := r.beginRead().Get(string(t), indexName, indexArg)
	if err != nil {
		panic(fmt.Sprintf("store: list %s by %s: %v", t, indexName, err))
	}
	ws.Add(it.WatchCh())
	return it
}

// listInNamespace returns a namespace's objects with the name prefix.
func listInNamespace[T any](r Reader, ws WatchSet, t Table, namespace, prefix string, nameOf func(*T) string) []*T {
	if namespace != AnyNamespace {
		return listRows[T](r, ws, t, "id_prefix", namespace+"\x00"+prefix)
	}
	found := listRows[T](r, ws, t, "id_prefix", "")
	return slices.DeleteFunc(found, func(o *T) bool { return !strings.HasPrefix(nameOf(o), prefix) })
}

// listByIDPrefix returns the objects with the id prefix.
func listByIDPrefix[T any](r Reader, ws WatchSet, t Table, prefix string) []*T {
	return listRows[T](r, ws, t, "id_prefix", normalizeUUIDPrefix(prefix))
}

// normalizeUUIDPrefix returns a UUID prefix in lower case, with hyphens at a UUID's positions.
func normalizeUUIDPrefix(s string) string {
	s = strings.ToLower(strings.ReplaceAll(s, "-", ""))
	var b strings.Builder
	for i, c := range s {
		if i == 8 || i == 12 || i == 16 || i == 20 {
			b.WriteByte('-')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// LatestTableIndex returns the index of the last change in any of the tables.
func (r Reader) LatestTableIndex(ws WatchSet, tables ...Table) uint64 {
	var lastIndex uint64
	for _, t := range tables {
		if row := rowByKey[tableIndexRow](r, ws, tableIndexTable, string(t)); row != nil {
			lastIndex = max(lastIndex, row.index)
		}
	}
	return lastIndex
}

// Job returns a job's latest version.
func (r Reader) Job(ws WatchSet, namespace, id string) *api.Job {
	return rowByKey[api.Job](r, ws, Jobs, namespacedKey(namespace, id))
}

// Jobs returns the jobs with the id prefix in a namespace, or in [AnyNamespace].
func (r Reader) Jobs(ws WatchSet, namespace, prefix string) []*api.Job {
	return listInNamespace(r, ws, Jobs, namespace, prefix, func(j *api.Job) string { return pointer.Value(j.ID) })
}

// JobChildren returns the jobs created by a periodic or parameterized job.
func (r Reader) JobChildren(ws WatchSet, namespace, parentID string) []*api.Job {
	return listRows[api.Job](r, ws, Jobs, "parent", namespacedKey(namespace, parentID))
}

// JobVersion returns the job version with the given number, which can be the latest one.
func (r Reader) JobVersion(ws WatchSet, namespace, id string, version uint64) *api.Job {
	return rowByKey[api.Job](r, ws, JobVersions, jobVersionKey(namespace, id, version))
}

// JobVersions returns a job's kept versions, newest first.
func (r Reader) JobVersions(ws WatchSet, namespace, id string) []*api.Job {
	versions := listRows[api.Job](r, ws, JobVersions, "id_prefix", namespacedKey(namespace, id)+"\x00")
	slices.Reverse(versions)
	return versions
}

// JobVersionAuthor returns who has made a job version. It is zero if that client had no ACL token.
func (r Reader) JobVersionAuthor(ws WatchSet, namespace, id string, version uint64) state.Author {
	if s := rowByKey[jobSubmissionRow](r, ws, JobSubmissions, jobVersionKey(namespace, id, version)); s != nil {
		return s.Author
	}
	return state.Author{}
}

// JobSubmission returns a job version's source text, or nil if it is not known.
func (r Reader) JobSubmission(ws WatchSet, namespace, id string, version uint64) *api.JobSubmission {
	if s := rowByKey[jobSubmissionRow](r, ws, JobSubmissions, jobVersionKey(namespace, id, version)); s != nil {
		return s.Submission
	}
	return nil
}

// Evaluation returns an evaluation.
func (r Reader) Evaluation(ws WatchSet, id string) *api.Evaluation {
	return rowByKey[api.Evaluation](r, ws, Evaluations, id)
}

// Evaluations returns the evaluations with the id prefix.
func (r Reader) Evaluations(ws WatchSet, prefix string) []*api.Evaluation {
	return listByIDPrefix[api.Evaluation](r, ws, Evaluations, prefix)
}

// EvaluationsByJob returns a job's evaluations, oldest first.
func (r Reader) EvaluationsByJob(ws WatchSet, namespace, jobID string) []*api.Evaluation {
	found := listRows[api.Evaluation](r, ws, Evaluations, "job", namespacedKey(namespace, jobID))
	slices.SortStableFunc(found, func(a, b *api.Evaluation) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	return found
}

// Allocation returns an allocation, or nil. An ended allocation is a new copy in each call, here and in lists, see
// [Reader.WithoutEndedEvents]. Its Job is the job as of the allocation's version.
func (r Reader) Allocation(ws WatchSet, id string) *api.Allocation {
	return rowByKey[api.Allocation](r, ws, Allocations, id)
}

// Allocations returns the allocations with the id prefix.
func (r Reader) Allocations(ws WatchSet, prefix string) []*api.Allocation {
	return listByIDPrefix[api.Allocation](r, ws, Allocations, prefix)
}

// AllocationsByJob returns the allocations for all versions of a job, oldest first.
func (r Reader) AllocationsByJob(ws WatchSet, namespace, jobID string) []*api.Allocation {
	found := listRows[api.Allocation](r, ws, Allocations, "job", namespacedKey(namespace, jobID))
	slices.SortStableFunc(found, func(a, b *api.Allocation) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	return found
}

// AllocationsByNamespace returns a namespace's allocations.
func (r Reader) AllocationsByNamespace(ws WatchSet, namespace string) []*api.Allocation {
	return listRows[api.Allocation](r, ws, Allocations, "job_prefix", namespace+"\x00")
}

// AllocationsByEvaluation returns the allocations placed by an evaluation.
func (r Reader) AllocationsByEvaluation(ws WatchSet, evalID string) []*api.Allocation {
	return r.allocationsWhere(ws, func(a *api.Allocation) bool { return a.EvalID == evalID })
}

// AllocationsByDeployment returns a deployment's allocations.
func (r Reader) AllocationsByDeployment(ws WatchSet, deploymentID string) []*api.Allocation {
	return r.allocationsWhere(ws, func(a *api.Allocation) bool { return a.DeploymentID == deploymentID })
}

// AllocationsByNode returns a node's allocations.
func (r Reader) AllocationsByNode(ws WatchSet, nodeID string) []*api.Allocation {
	return r.allocationsWhere(ws, func(a *api.Allocation) bool { return a.NodeID == nodeID })
}

// allocationsWhere returns the allocations for which matches returns true. It reads all allocations.
func (r Reader) allocationsWhere(ws WatchSet, matches func(*api.Allocation) bool) []*api.Allocation {
	var found []*api.Allocation
	it := r.iterateObjects(ws, Allocations, "id_prefix", "")
	for row := it.Next(); row != nil; row = it.Next() {
		if r.sees(Allocations, row) && matches(objectWithoutEvents(row).(*api.Allocation)) {
			found = append(found, objectOfRow(r, row).(*api.Allocation))
		}
	}
	return found
}

// Deployment returns a deployment.
func (r Reader) Deployment(ws WatchSet, id string) *api.Deployment {
	return rowByKey[api.Deployment](r, ws, Deployments, id)
}

// Deployments returns the deployments with the id prefix.
func (r Reader) Deployments(ws WatchSet, prefix string) []*api.Deployment {
	return listByIDPrefix[api.Deployment](r, ws, Deployments, prefix)
}

// DeploymentsByJob returns a job's deployments, oldest first.
func (r Reader) DeploymentsByJob(ws WatchSet, namespace, jobID string) []*api.Deployment {
	found := listRows[api.Deployment](r, ws, Deployments, "job", namespacedKey(namespace, jobID))
	slices.SortStableFunc(found, func(a, b *api.Deployment) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	return found
}

// LatestDeployment returns a job's newest deployment.
func (r Reader) LatestDeployment(ws WatchSet, namespace, jobID string) *api.Deployment {
	all := r.DeploymentsByJob(ws, namespace, jobID)
	if len(all) == 0 {
		return nil
	}
	return slices.MaxFunc(all, func(a, b *api.Deployment) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.JobVersion, b.JobVersion))
	})
}

// Node returns a node.
func (r Reader) Node(ws WatchSet, id string) *api.Node {
	return rowByKey[api.Node](r, ws, Nodes, id)
}

// Nodes returns the nodes with the id prefix.
func (r Reader) Nodes(ws WatchSet, prefix string) []*api.Node {
	return listByIDPrefix[api.Node](r, ws, Nodes, prefix)
}

// Service returns one service registration.
func (r Reader) Service(ws WatchSet, namespace, id string) *api.ServiceRegistration {
	return rowByKey[api.ServiceRegistration](r, ws, Services, namespacedKey(namespace, id))
}

// Services returns the registrations in a namespace, or in [AnyNamespace].
func (r Reader) Services(ws WatchSet, namespace string) []*api.ServiceRegistration {
	return listInNamespace(r, ws, Services, namespace, "", func(*api.ServiceRegistration) string { return "" })
}

// ServicesByName returns one service's registrations.
func (r Reader) ServicesByName(ws WatchSet, namespace, name string) []*api.ServiceRegistration {
	return listRows[api.ServiceRegistration](r, ws, Services, "name", namespacedKey(namespace, name))
}

// ServicesByJob returns a job's service registrations.
func (r Reader) ServicesByJob(ws WatchSet, namespace, jobID string) []*api.ServiceRegistration {
	return listRows[api.ServiceRegistration](r, ws, Services, "job", namespacedKey(namespace, jobID))
}

// ServicesByAllocation returns an allocation's service registrations.
func (r Reader) ServicesByAllocation(ws WatchSet, allocID string) []*api.ServiceRegistration {
	return listRows[api.ServiceRegistration](r, ws, Services, "alloc", allocID)
}

// Variable returns a variable with its items.
func (r Reader) Variable(ws WatchSet, namespace, path string) *api.Variable {
	return rowByKey[api.Variable](r, ws, Variables, namespacedKey(namespace, path))
}

// Variables returns the variables with the path prefix in a namespace, or in [AnyNamespace].
func (r Reader) Variables(ws WatchSet, namespace, prefix string) []*api.Variable {
	return listInNamespace(r, ws, Variables, namespace, prefix, func(v *api.Variable) string { return v.Path })
}

// Namespace returns a namespace.
func (r Reader) Namespace(ws WatchSet, name string) *api.Namespace {
	return rowByKey[api.Namespace](r, ws, Namespaces, name)
}

// Namespaces returns the namespaces with the name prefix.
func (r Reader) Namespaces(ws WatchSet, prefix string) []*api.Namespace {
	return listRows[api.Namespace](r, ws, Namespaces, "id_prefix", prefix)
}

// SchedulerConfig returns the stored scheduler configuration, or the default configuration if none is stored.
func (r Reader) SchedulerConfig(ws WatchSet) *api.SchedulerConfiguration {
	if c := rowByKey[api.SchedulerConfiguration](r, ws, SchedulerConfig, schedulerConfigKey); c != nil {
		return c
	}
	return model.NewDefaultSchedulerConfig()
}

// ScalingEvents returns a job's scaling events by group, newest first.
func (r Reader) ScalingEvents(ws WatchSet, namespace, jobID string) map[string][]api.ScalingEvent {
	if s := rowByKey[scalingEventsRow](r, ws, ScalingEvents, namespacedKey(namespace, jobID)); s != nil {
		return s.EventsByGroup
	}
	return nil
}

// PeriodicLaunch returns a periodic job's last launch.
func (r Reader) PeriodicLaunch(ws WatchSet, namespace, jobID string) *PeriodicLaunch {
	return rowByKey[PeriodicLaunch](r, ws, PeriodicLaunches, namespacedKey(namespace, jobID))
}
