package store

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// maxKeySize is a key's maximum length in bytes, as in bbolt.
const maxKeySize = 32 << 10

// maxScalingEvents is how many scaling events are kept for each group, as in Nomad.
const maxScalingEvents = 20

// Txn is the transaction for one call of [Store.Update]. Its reads include its own writes. It must not be used after the
// function that received it has returned.
//
// A Put method sets the object's CreateIndex and ModifyIndex. The object must not be modified afterwards: to change a stored
// object, put a modified copy. An error, such as a missing id or a stored object that was modified in place, makes the whole
// update fail.
//
// It is large because it has typed methods for each table.
type Txn struct {
	Reader
	store                *Store
	memTxn               *memdb.Txn
	storageEvents        []*api.NodeEvent
	index                uint64
	eventOperation       string
	hasPublicTableChange bool // a public table has changed, so the transaction needs a new index
	changedTables        map[Table]bool
	changes              []recordChange
	events               []Event
	onCommit             []func()
	err                  error

	quarantined []unreadableRecord
}

// recordChange is one object change in a transaction. before is nil for a new object, after is nil for a deleted object.
type recordChange struct {
	tableDef      *tableDef
	key           string
	before, after any
	payload       []byte // after's encoded value
}

// OnCommit makes the writer call f when the transaction is visible to readers, before Update returns. Functions of several
// transactions are called in transaction order. f is not called if the transaction fails. f must not block, and must not call
// Update.
func (tx *Txn) OnCommit(f func()) { tx.onCommit = append(tx.onCommit, f) }

// Index returns the transaction's index if it changes a public table.
func (tx *Txn) Index() uint64 { return tx.index }

// SetEventOperation sets the operation for the transaction's next changes. The operation is the type of their events, such as
// JobRegistered or PlanResult. Without an operation, each event has its table's default type.
func (tx *Txn) SetEventOperation(name string) { tx.eventOperation = name }

// AddEvaluationEvent adds an evaluation event with the current operation, without storing the evaluation.
func (tx *Txn) AddEvaluationEvent(e *api.Evaluation) {
	tx.addOrReplaceEvent(recordChange{tableDef: tableDefsByTable[Evaluations], after: e})
}

// AddUnchangedNodeEvent adds an event with the current operation about a node that has not changed.
func (tx *Txn) AddUnchangedNodeEvent(id string) {
	if n := tx.Node(nil, id); n != nil {
		tx.addOrReplaceEvent(recordChange{tableDef: tableDefsByTable[Nodes], after: n})
	}
}

// PutJobAndVersion stores a job as the latest version, and under its Version in JobVersions.
func (tx *Txn) PutJobAndVersion(job *api.Job) {
	if job.Version == nil {
		tx.setFirstError(fmt.Errorf("put job %s: it has no version", pointer.Value(job.ID)))
		return
	}
	tx.putObjectSettingIndexes(tableDefsByTable[Jobs], job)
	if tx.err == nil {
		tx.putObjectKeepingIndexes(tableDefsByTable[JobVersions], job)
	}
}

// PutJobVersion replaces a job's stored version, to change its stable flag or its tag. If it is the latest version, it also
// replaces the job.
func (tx *Txn) PutJobVersion(job *api.Job) {
	if latest := tx.Job(nil, pointer.Value(job.Namespace), pointer.Value(job.ID)); latest != nil && pointer.Value(latest.Version) == pointer.Value(job.Version) {
		tx.PutJobAndVersion(job)
		return
	}
	tx.putObjectSettingIndexes(tableDefsByTable[JobVersions], job)
}

// DeleteJob removes a job with its versions, their sources, its scaling events, its volume claims and its launch time.
// Evaluations, allocations and deployments stay.
func (tx *Txn) DeleteJob(namespace, id string) {
	for _, version := range tx.JobVersions(nil, namespace, id) {
		tx.DeleteJobVersion(namespace, id, pointer.Value(version.Version))
	}
	tx.deleteObjectIfExists(ScalingEvents, namespacedKey(namespace, id))
	tx.deleteObjectIfExists(PeriodicLaunches, namespacedKey(namespace, id))
	for _, c := range tx.VolumeClaims(nil) {
		if c.Namespace == namespace && c.JobID == id {
			tx.DeleteVolumeClaim(c.ID)
		}
	}
	tx.deleteObjectIfExists(Jobs, namespacedKey(namespace, id))
}

// DeleteJobVersion removes one job version and its source.
func (tx *Txn) DeleteJobVersion(namespace, id string, version uint64) {
	tx.deleteObjectIfExists(JobVersions, jobVersionKey(namespace, id, version))
	tx.deleteObjectIfExists(JobSubmissions, jobVersionKey(namespace, id, version))
}

// PutJobSubmission stores one job version's source. The version's author stays.
func (tx *Txn) PutJobSubmission(namespace, id string, version uint64, s *api.JobSubmission) {
	tx.putSubmissionRow(&jobSubmissionRow{Namespace: namespace, JobID: id, Version: version, Submission: s, Author: tx.JobVersionAuthor(nil, namespace, id, version)})
}

// PutJobVersionAuthor stores one job version's author. The version's source stays.
func (tx *Txn) PutJobVersionAuthor(namespace, id string, version uint64, a state.Author) {
	tx.putSubmissionRow(&jobSubmissionRow{Namespace: namespace, JobID: id, Version: version, Submission: tx.JobSubmission(nil, namespace, id, version), Author: a})
}

func (tx *Txn) putSubmissionRow(row *jobSubmissionRow) {
	tx.putObjectSettingIndexes(tableDefsByTable[JobSubmissions], row)
}

// PutEvaluation stores an evaluation.
func (tx *Txn) PutEvaluation(e *api.Evaluation) {
	tx.putObjectSettingIndexes(tableDefsByTable[Evaluations], e)
}

// DeleteEvaluation removes an evaluation, if there is one.
func (tx *Txn) DeleteEvaluation(id string) { tx.deleteObjectIfExists(Evaluations, id) }

// PutScheduledAllocation stores an allocation that the scheduler has placed or changed. It also sets AllocModifyIndex, by which
// the node detects an outdated copy of the allocation.
func (tx *Txn) PutScheduledAllocation(a *api.Allocation) {
	if tx.checkNotModifiedInPlace(tableDefsByTable[Allocations], a) {
		a.AllocModifyIndex = tx.index
		tx.putObjectSettingIndexes(tableDefsByTable[Allocations], a)
	}
}

// PutReportedAllocation stores an allocation with the status reported by the node. It does not change AllocModifyIndex.
func (tx *Txn) PutReportedAllocation(a *api.Allocation) {
	tx.putObjectSettingIndexes(tableDefsByTable[Allocations], a)
}

// PutDeployment stores a deployment.
func (tx *Txn) PutDeployment(d *api.Deployment) {
	tx.putObjectSettingIndexes(tableDefsByTable[Deployments], d)
}

// DeleteDeployment removes a deployment, if there is one.
func (tx *Txn) DeleteDeployment(id string) { tx.deleteObjectIfExists(Deployments, id) }

// HasStorageEvents reports whether there are state file events for PutNodeWithStorageEvents to add to the node.
func (tx *Txn) HasStorageEvents() bool { return len(tx.storageEvents) > 0 }

// PutNodeWithStorageEvents stores a node. It adds the state file events, for example about damage, that n.Events does not have
// yet.
func (tx *Txn) PutNodeWithStorageEvents(n *api.Node) {
	if !tx.checkNotModifiedInPlace(tableDefsByTable[Nodes], n) {
		return
	}
	for _, event := range tx.storageEvents {
		if !slices.ContainsFunc(n.Events, func(e *api.NodeEvent) bool {
			return e.Message == event.Message && e.Timestamp.Equal(event.Timestamp)
		}) {
			copied := *event
			copied.CreateIndex = tx.index
			n.Events = append(n.Events[:len(n.Events):len(n.Events)], &copied)
		}
	}
	tx.putObjectSettingIndexes(tableDefsByTable[Nodes], n)
}

// PutService stores a service registration.
func (tx *Txn) PutService(s *api.ServiceRegistration) {
	tx.putObjectSettingIndexes(tableDefsByTable[Services], s)
}

// DeleteService removes a service registration, if there is one.
func (tx *Txn) DeleteService(namespace, id string) {
	tx.deleteObjectIfExists(Services, namespacedKey(namespace, id))
}

// PutVariable stores a variable. The update fails with a [KeyFileError] if the key file cannot be read, and with a
// [SecretDecryptError] if v has no items and would replace items that cannot be decrypted.
func (tx *Txn) PutVariable(v *api.Variable) {
	err := tx.store.KeyFileErr()
	if err == nil && len(v.Items) == 0 {
		err = tx.VariableDecryptErr(tx.Variable(nil, v.Namespace, v.Path))
	}
	if err != nil {
		tx.setFirstError(err)
		return
	}
	tx.putObjectSettingIndexes(tableDefsByTable[Variables], v)
}

// DeleteVariable removes a variable, if there is one. The update fails with a [KeyFileError] if the key
// file cannot be read.
func (tx *Txn) DeleteVariable(namespace, path string) {
	if err := tx.store.KeyFileErr(); err != nil {
		tx.setFirstError(err)
		return
	}
	tx.deleteObjectIfExists(Variables, namespacedKey(namespace, path))
}

// PutSchedulerConfig stores the scheduler configuration.
func (tx *Txn) PutSchedulerConfig(c *api.SchedulerConfiguration) {
	tx.putObjectSettingIndexes(tableDefsByTable[SchedulerConfig], c)
}

// PutNamespace stores a namespace.
func (tx *Txn) PutNamespace(n *api.Namespace) {
	tx.putObjectSettingIndexes(tableDefsByTable[Namespaces], n)
}

// DeleteNamespace removes a namespace, if there is one.
func (tx *Txn) DeleteNamespace(name string) { tx.deleteObjectIfExists(Namespaces, name) }

// AddScalingEvent adds a group's event and sets its CreateIndex. Each group's last 20 events are kept.
func (tx *Txn) AddScalingEvent(namespace, jobID, group string, event api.ScalingEvent) {
	event.CreateIndex = tx.index
	row := &scalingEventsRow{Namespace: namespace, JobID: jobID, EventsByGroup: make(map[string][]api.ScalingEvent)}
	for name, events := range tx.ScalingEvents(nil, namespace, jobID) {
		row.EventsByGroup[name] = events
	}
	events := append([]api.ScalingEvent{event}, row.EventsByGroup[group]...)
	row.EventsByGroup[group] = events[:min(len(events), maxScalingEvents)]
	tx.putObjectSettingIndexes(tableDefsByTable[ScalingEvents], row)
}

// PeriodicLaunch is a periodic job's last launch time.
type PeriodicLaunch struct {
	Namespace   string    `store:"namespace"`
	JobID       string    `store:"job_id"`
	LaunchTime  time.Time `store:"launch"`
	ModifyIndex uint64    `store:"modify_index"`
}

// PutPeriodicLaunch stores a periodic job's last launch.
func (tx *Txn) PutPeriodicLaunch(p *PeriodicLaunch) {
	tx.putObjectSettingIndexes(tableDefsByTable[PeriodicLaunches], p)
}

// setFirstError makes the update fail with err, unless it already fails with an earlier error.
func (tx *Txn) setFirstError(err error) {
	if tx.err == nil {
		tx.err = err
	}
}

func (tx *Txn) getObject(def *tableDef, key string) any {
	obj, err := tx.memTxn.First(string(def.table), "id", key)
	if err != nil {
		tx.setFirstError(fmt.Errorf("read %s %q: %w", def.table, readableKey(key), err))
	}
	return obj
}

// checkNotModifiedInPlace reports whether a Put method may set obj's indexes. It makes the update fail if obj is the stored
// object itself, which readers may have.
func (tx *Txn) checkNotModifiedInPlace(def *tableDef, obj any) bool {
	if tx.err != nil {
		return false
	}
	key := def.keyOf(obj)
	if old := objectWithoutEvents(tx.getObject(def, key)); old == obj && !slices.ContainsFunc(tx.changes, func(c recordChange) bool { return c.after == obj }) {
		tx.setFirstError(fmt.Errorf("put %s %q: it was changed in place", def.table, readableKey(key)))
	}
	return tx.err == nil
}

// putObjectSettingIndexes sets an object's indexes and stores it.
func (tx *Txn) putObjectSettingIndexes(def *tableDef, obj any) {
	if !tx.checkNotModifiedInPlace(def, obj) {
		return
	}
	if def.setCreateAndModifyIndex != nil {
		def.setCreateAndModifyIndex(obj, tx.getObject(def, def.keyOf(obj)), tx.index)
	}
	tx.putObjectKeepingIndexes(def, obj)
}

func (tx *Txn) putObjectKeepingIndexes(def *tableDef, obj any) {
	if tx.err != nil {
		return
	}
	key := def.keyOf(obj)
	switch {
	case key == "":
		tx.setFirstError(fmt.Errorf("put %s: %w", def.table, errObjectWithoutKey))
		return
	case len(key) > maxKeySize:
		tx.setFirstError(fmt.Errorf("put %s %.40q…: the key has %d bytes, at most %d are possible", def.table, key, len(key), maxKeySize))
		return
	}
	if def.table == Allocations {
		tx.splitEndedAllocation(key)
	}
	before := tx.getObject(def, key)
	if stored, ok := before.(*api.Allocation); ok && tx.AllocationEnded(key) {
		addMissingEvents(obj.(*api.Allocation), stored)
	}
	if err := tx.memTxn.Insert(string(def.table), obj); err != nil {
		tx.setFirstError(fmt.Errorf("put %s %q: %w", def.table, readableKey(key), err))
		return
	}
	tx.addChangeAndEvent(recordChange{tableDef: def, key: key, before: before, after: obj})
}

func (tx *Txn) deleteObjectIfExists(t Table, key string) {
	if tx.err != nil || key == "" {
		return
	}
	k := tableDefsByTable[t]
	if t == Allocations {
		tx.splitEndedAllocation(key)
	}
	before := tx.getObject(k, key)
	if before == nil {
		return
	}
	if err := tx.memTxn.Delete(string(t), before); err != nil {
		tx.setFirstError(fmt.Errorf("delete %s %q: %w", t, readableKey(key), err))
		return
	}
	tx.addChangeAndEvent(recordChange{tableDef: k, key: key, before: before})
}

func (tx *Txn) addChangeAndEvent(c recordChange) {
	tx.changes = append(tx.changes, c)
	if c.tableDef.hasTableIndex {
		tx.hasPublicTableChange = true
		tx.changedTables[c.tableDef.table] = true
	}
	if c.tableDef.newEvent != nil {
		tx.addOrReplaceEvent(c)
	}
	if c.tableDef.table == Jobs && !jobsHaveSameScalingPolicies(c.before, c.after) {
		tx.changedTables[ScalingPolicies] = true
	}
}

// jobsHaveSameScalingPolicies reports whether two job versions, nil for none, have the same scaling policies.
func jobsHaveSameScalingPolicies(before, after any) bool {
	policies := func(job any) map[string]*api.ScalingPolicy {
		found := make(map[string]*api.ScalingPolicy)
		if j, _ := job.(*api.Job); j != nil {
			for _, g := range j.TaskGroups {
				if g.Scaling != nil {
					found[pointer.Value(g.Name)] = g.Scaling
				}
			}
		}
		return found
	}
	return reflect.DeepEqual(policies(before), policies(after))
}

// deletionEventTypes maps a table to the event type for deleting an object. Deletions in other tables cause no event.
var deletionEventTypes = map[Table]string{
	Jobs:        "JobDeregistered",
	Services:    "ServiceDeregistration",
	Variables:   "VariableUpdated",
	HostVolumes: "HostVolumeDeleted",
	ACLPolicies: "ACLPolicyDeleted",
	ACLRoles:    "ACLRoleDeleted",
	ACLTokens:   "ACLTokenDeleted",
}

// addOrReplaceEvent adds a change's event. It replaces the transaction's earlier event for the same object and operation.
func (tx *Txn) addOrReplaceEvent(c recordChange) {
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
	if tx.eventOperation != "" {
		e.Type = tx.eventOperation
	}
	tx.events = slices.DeleteFunc(tx.events, func(other Event) bool {
		same := other.Topic == e.Topic && other.Key == e.Key && other.Namespace == e.Namespace
		return same && (other.Type == e.Type || silent)
	})
	if !silent {
		tx.events = append(tx.events, e)
	}
}

// setTableIndexes sets the index of each changed public table to the transaction's index.
func (tx *Txn) setTableIndexes() {
	if !tx.hasPublicTableChange {
		return
	}
	for table := range tx.changedTables {
		if err := tx.memTxn.Insert(tableIndexTable, &tableIndexRow{table, tx.index}); err != nil {
			tx.setFirstError(fmt.Errorf("set index of %s: %w", table, err))
		}
	}
}

// undoChanges reverts this transaction's changes in memTxn, which has the changes of other transactions too.
func (tx *Txn) undoChanges() error {
	var errs []error
	for _, c := range slices.Backward(tx.changes) {
		if c.before != nil {
			errs = append(errs, tx.memTxn.Insert(string(c.tableDef.table), c.before))
		} else {
			errs = append(errs, tx.memTxn.Delete(string(c.tableDef.table), c.after))
		}
	}
	return errors.Join(errs...)
}
