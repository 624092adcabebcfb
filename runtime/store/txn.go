package store

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/api"
)

// maxKeySize is the maximum length of a key in bytes, as in bbolt.
const maxKeySize = 32 << 10

// maxScalingEvents is how many events are kept for each group, as in Nomad.
const maxScalingEvents = 20

// Txn is one uncommitted change: see [Store.Update]. Its reads include its own writes. It
// must not be used after the function that received it has returned.
//
// An object that is put belongs to the store, which sets its CreateIndex and ModifyIndex:
// it must not be changed afterwards. To change an object that was read, put a copy. An
// error (a missing id, or an object of the store that was changed in place) fails the
// whole update.
//
// It is large because each table has its own typed methods for writing.
type Txn struct {
	Reader
	store               *Store
	mem                 *memdb.Txn
	nodeEvents          []*api.NodeEvent
	index               uint64
	operation           string
	changesVisibleTable bool // a table that has an index has changed
	changedTables       map[Table]bool
	changes             []recordChange
	events              []Event
	onCommit            []func()
	err                 error

	quarantined []unreadableRecord
}

// recordChange is one change of a record in a transaction. before is nil for a new object, after is nil for a
// deleted one.
type recordChange struct {
	tableDef      *tableDef
	key           string
	before, after any
	payload       []byte // the encoded value of after
}

// OnCommit adds a function that the writer calls when the change is visible to readers, before Update returns. Functions
// of several changes are called in the order of the changes. f is not called if the change fails. It must not block, nor
// call Update.
func (tx *Txn) OnCommit(f func()) { tx.onCommit = append(tx.onCommit, f) }

// Index returns the index that the change gets if it changes a table that has an index.
func (tx *Txn) Index() uint64 { return tx.index }

// SetOperation sets the operation for the following changes: the type of their events
// (JobRegistered, PlanResult, AllocationUpdated …). Without it each event has the default
// type of its topic.
func (tx *Txn) SetOperation(name string) { tx.operation = name }

// AddEvaluationEvent adds an event of the current operation about an evaluation, without
// storing the evaluation.
func (tx *Txn) AddEvaluationEvent(e *api.Evaluation) {
	tx.addEvent(recordChange{tableDef: tableDefsByTable[Evaluations], after: e})
}

// AddNodeEvent adds an event of the current operation about a node that has not changed.
func (tx *Txn) AddNodeEvent(id string) {
	if n := tx.Node(nil, id); n != nil {
		tx.addEvent(recordChange{tableDef: tableDefsByTable[Nodes], after: n})
	}
}

// PutJob stores a job as the latest version, and under its Version in JobVersions.
func (tx *Txn) PutJob(job *api.Job) {
	if job.Version == nil {
		tx.setError(fmt.Errorf("put job %s: it has no version", stringOrEmpty(job.ID)))
		return
	}
	tx.put(tableDefsByTable[Jobs], job)
	if tx.err == nil {
		tx.insert(tableDefsByTable[JobVersions], job)
	}
}

// PutJobVersion replaces one version of a job, for a stable mark or a tag. For the latest
// version, it also replaces the job.
func (tx *Txn) PutJobVersion(job *api.Job) {
	if latest := tx.Job(nil, stringOrEmpty(job.Namespace), stringOrEmpty(job.ID)); latest != nil && uint64OrZero(latest.Version) == uint64OrZero(job.Version) {
		tx.PutJob(job)
		return
	}
	tx.put(tableDefsByTable[JobVersions], job)
}

// DeleteJob removes a job with its versions, their sources, its scaling events, its claims of
// volumes and its launch time. Evaluations, allocations and deployments stay.
func (tx *Txn) DeleteJob(namespace, id string) {
	for _, version := range tx.JobVersions(nil, namespace, id) {
		tx.DeleteJobVersion(namespace, id, uint64OrZero(version.Version))
	}
	tx.delete(ScalingEvents, namespacedKey(namespace, id))
	tx.delete(PeriodicLaunches, namespacedKey(namespace, id))
	for _, c := range tx.VolumeClaims(nil) {
		if c.Namespace == namespace && c.JobID == id {
			tx.DeleteVolumeClaim(c.ID)
		}
	}
	tx.delete(Jobs, namespacedKey(namespace, id))
}

// DeleteJobVersion removes one version of a job and its source.
func (tx *Txn) DeleteJobVersion(namespace, id string, version uint64) {
	tx.delete(JobVersions, versionKey(namespace, id, version))
	tx.delete(JobSubmissions, versionKey(namespace, id, version))
}

// PutJobSubmission stores the source of one version of a job.
func (tx *Txn) PutJobSubmission(namespace, id string, version uint64, s *api.JobSubmission) {
	tx.put(tableDefsByTable[JobSubmissions], &jobSubmissionRow{Namespace: namespace, JobID: id, Version: version, Submission: s})
}

// PutEvaluation stores an evaluation.
func (tx *Txn) PutEvaluation(e *api.Evaluation) { tx.put(tableDefsByTable[Evaluations], e) }

// DeleteEvaluation removes an evaluation, if there is one.
func (tx *Txn) DeleteEvaluation(id string) { tx.delete(Evaluations, id) }

// PutAllocation stores an allocation for the scheduler. It sets AllocModifyIndex too, from which the node
// detects that its copy of the allocation is outdated.
func (tx *Txn) PutAllocation(a *api.Allocation) {
	if tx.canModify(tableDefsByTable[Allocations], a) {
		a.AllocModifyIndex = tx.index
		tx.put(tableDefsByTable[Allocations], a)
	}
}

// PutReportedAllocation stores an allocation with the status that the node reports. It does not
// change AllocModifyIndex.
func (tx *Txn) PutReportedAllocation(a *api.Allocation) { tx.put(tableDefsByTable[Allocations], a) }

// PutDeployment stores a deployment.
func (tx *Txn) PutDeployment(d *api.Deployment) { tx.put(tableDefsByTable[Deployments], d) }

// DeleteDeployment removes a deployment, if there is one.
func (tx *Txn) DeleteDeployment(id string) { tx.delete(Deployments, id) }

// HasNodeEvents reports whether PutNode adds events about the state file.
func (tx *Txn) HasNodeEvents() bool { return len(tx.nodeEvents) > 0 }

// PutNode stores a node. It adds events about the state file, for example about damage, if the caller's events
// lack them.
func (tx *Txn) PutNode(n *api.Node) {
	if !tx.canModify(tableDefsByTable[Nodes], n) {
		return
	}
	for _, event := range tx.nodeEvents {
		if !slices.ContainsFunc(n.Events, func(e *api.NodeEvent) bool {
			return e.Message == event.Message && e.Timestamp.Equal(event.Timestamp)
		}) {
			copied := *event
			copied.CreateIndex = tx.index
			n.Events = append(n.Events[:len(n.Events):len(n.Events)], &copied)
		}
	}
	tx.put(tableDefsByTable[Nodes], n)
}

// PutService stores the registration of a service.
func (tx *Txn) PutService(s *api.ServiceRegistration) { tx.put(tableDefsByTable[Services], s) }

// DeleteService removes the registration of a service, if there is one.
func (tx *Txn) DeleteService(namespace, id string) { tx.delete(Services, namespacedKey(namespace, id)) }

// PutVariable stores a variable. It fails without a key ([KeyFileError]), and if the variable
// has no items but replaces items that cannot be opened ([SealedError]).
func (tx *Txn) PutVariable(v *api.Variable) {
	err := tx.store.KeyFileErr()
	if err == nil && len(v.Items) == 0 {
		err = tx.VariableErr(tx.Variable(nil, v.Namespace, v.Path))
	}
	if err != nil {
		tx.setError(err)
		return
	}
	tx.put(tableDefsByTable[Variables], v)
}

// DeleteVariable removes a variable, if there is one. It fails without a key
// ([KeyFileError]).
func (tx *Txn) DeleteVariable(namespace, path string) {
	if err := tx.store.KeyFileErr(); err != nil {
		tx.setError(err)
		return
	}
	tx.delete(Variables, namespacedKey(namespace, path))
}

// PutSchedulerConfig stores the scheduler configuration.
func (tx *Txn) PutSchedulerConfig(c *api.SchedulerConfiguration) {
	tx.put(tableDefsByTable[SchedulerConfig], c)
}

// PutNamespace stores a namespace.
func (tx *Txn) PutNamespace(n *api.Namespace) { tx.put(tableDefsByTable[Namespaces], n) }

// DeleteNamespace removes a namespace, if there is one.
func (tx *Txn) DeleteNamespace(name string) { tx.delete(Namespaces, name) }

// AddScalingEvent adds an event of a group and sets its CreateIndex. The last 20 events of
// each group are kept.
func (tx *Txn) AddScalingEvent(namespace, jobID, group string, event api.ScalingEvent) {
	event.CreateIndex = tx.index
	row := &scalingEventsRow{Namespace: namespace, JobID: jobID, Groups: make(map[string][]api.ScalingEvent)}
	for name, events := range tx.ScalingEvents(nil, namespace, jobID) {
		row.Groups[name] = events
	}
	events := append([]api.ScalingEvent{event}, row.Groups[group]...)
	row.Groups[group] = events[:min(len(events), maxScalingEvents)]
	tx.put(tableDefsByTable[ScalingEvents], row)
}

// PeriodicLaunch is the time of the last launch of a periodic job.
type PeriodicLaunch struct {
	Namespace   string    `store:"namespace"`
	JobID       string    `store:"job_id"`
	Launch      time.Time `store:"launch"`
	ModifyIndex uint64    `store:"modify_index"`
}

// PutPeriodicLaunch stores the last launch of a periodic job.
func (tx *Txn) PutPeriodicLaunch(p *PeriodicLaunch) { tx.put(tableDefsByTable[PeriodicLaunches], p) }

// setError stores an error that fails the update, if it is the first.
func (tx *Txn) setError(err error) {
	if tx.err == nil {
		tx.err = err
	}
}

func (tx *Txn) get(k *tableDef, key string) any {
	obj, err := tx.mem.First(string(k.table), "id", key)
	if err != nil {
		tx.setError(fmt.Errorf("read %s %q: %w", k.table, readableKey(key), err))
	}
	return obj
}

// canModify reports whether the store may modify an object that is put. If readers may already have the
// object, it fails the update.
func (tx *Txn) canModify(k *tableDef, obj any) bool {
	if tx.err != nil {
		return false
	}
	key := k.key(obj)
	if old := tx.get(k, key); old == obj && !slices.ContainsFunc(tx.changes, func(c recordChange) bool { return c.after == obj }) {
		tx.setError(fmt.Errorf("put %s %q: it was changed in place", k.table, readableKey(key)))
	}
	return tx.err == nil
}

// put sets the indexes of an object and stores it.
func (tx *Txn) put(k *tableDef, obj any) {
	if !tx.canModify(k, obj) {
		return
	}
	if k.setIndexes != nil {
		k.setIndexes(obj, tx.get(k, k.key(obj)), tx.index)
	}
	tx.insert(k, obj)
}

func (tx *Txn) insert(k *tableDef, obj any) {
	if tx.err != nil {
		return
	}
	key := k.key(obj)
	switch {
	case key == "":
		tx.setError(fmt.Errorf("put %s: %w", k.table, errObjectWithoutKey))
		return
	case len(key) > maxKeySize:
		tx.setError(fmt.Errorf("put %s %.40q…: the key has %d bytes, at most %d are possible", k.table, key, len(key), maxKeySize))
		return
	}
	before := tx.get(k, key)
	if err := tx.mem.Insert(string(k.table), obj); err != nil {
		tx.setError(fmt.Errorf("put %s %q: %w", k.table, readableKey(key), err))
		return
	}
	tx.addChange(recordChange{tableDef: k, key: key, before: before, after: obj})
}

func (tx *Txn) delete(t Table, key string) {
	if tx.err != nil || key == "" {
		return
	}
	k := tableDefsByTable[t]
	before := tx.get(k, key)
	if before == nil {
		return
	}
	if err := tx.mem.Delete(string(t), before); err != nil {
		tx.setError(fmt.Errorf("delete %s %q: %w", t, readableKey(key), err))
		return
	}
	tx.addChange(recordChange{tableDef: k, key: key, before: before})
}

func (tx *Txn) addChange(c recordChange) {
	tx.changes = append(tx.changes, c)
	if c.tableDef.hasIndex {
		tx.changesVisibleTable = true
		tx.changedTables[c.tableDef.table] = true
	}
	if c.tableDef.newEvent != nil {
		tx.addEvent(c)
	}
	if c.tableDef.table == Jobs && !sameScalingPolicies(c.before, c.after) {
		tx.changedTables[ScalingPolicies] = true
	}
}

// sameScalingPolicies reports whether two versions of a job, nil for none, have the same
// scaling policies.
func sameScalingPolicies(before, after any) bool {
	policies := func(job any) map[string]*api.ScalingPolicy {
		found := make(map[string]*api.ScalingPolicy)
		if j, _ := job.(*api.Job); j != nil {
			for _, g := range j.TaskGroups {
				if g.Scaling != nil {
					found[stringOrEmpty(g.Name)] = g.Scaling
				}
			}
		}
		return found
	}
	return reflect.DeepEqual(policies(before), policies(after))
}

// deletionEventTypes are the types of events for deleted objects, by table. The deletion of objects in other
// tables causes no event.
var deletionEventTypes = map[Table]string{
	Jobs:        "JobDeregistered",
	Services:    "ServiceDeregistration",
	Variables:   "VariableUpdated",
	HostVolumes: "HostVolumeDeleted",
}

// addEvent adds an event, and replaces an earlier one for the same object and operation.
func (tx *Txn) addEvent(c recordChange) {
	obj := c.after
	if obj == nil {
		obj = c.before
	}
	e := c.tableDef.newEvent(obj)
	e.Object, e.Index, e.Deleted = obj, tx.index, c.after == nil
	if e.Deleted {
		e.Type = deletionEventTypes[c.tableDef.table]
	}
	silent := e.Type == ""
	if tx.operation != "" {
		e.Type = tx.operation
	}
	tx.events = slices.DeleteFunc(tx.events, func(other Event) bool {
		same := other.Topic == e.Topic && other.Key == e.Key && other.Namespace == e.Namespace
		return same && (other.Type == e.Type || silent)
	})
	if !silent {
		tx.events = append(tx.events, e)
	}
}

// setTableIndexes sets the indexes of the tables that were changed.
func (tx *Txn) setTableIndexes() {
	if !tx.changesVisibleTable {
		return
	}
	for table := range tx.changedTables {
		if err := tx.mem.Insert(tableIndexTable, &tableIndexRow{table, tx.index}); err != nil {
			tx.setError(fmt.Errorf("set index of %s: %w", table, err))
		}
	}
}

// undoChanges reverts all changes of the transaction.
func (tx *Txn) undoChanges() error {
	var errs []error
	for _, c := range slices.Backward(tx.changes) {
		if c.before != nil {
			errs = append(errs, tx.mem.Insert(string(c.tableDef.table), c.before))
		} else {
			errs = append(errs, tx.mem.Delete(string(c.tableDef.table), c.after))
		}
	}
	return errors.Join(errs...)
}
