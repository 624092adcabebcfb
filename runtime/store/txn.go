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

// maxKey is the maximum length of a key: bbolt's limit, less its overhead.
const maxKey = 32 << 10

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
	store      *Store
	mem        *memdb.Txn
	nodeEvents []*api.NodeEvent
	index      uint64
	op         string
	visible    bool // public is set if a visible table has changed
	tables     map[Table]bool
	changes    []change
	events     []Event
	err        error

	quarantined []unreadableRecord
}

// change is one step of a Txn. before is nil for a new object, after for a deleted one.
type change struct {
	kind          *tableDef
	key           string
	before, after any
	payload       []byte // payload is the encoded after
}

// Index returns the index of the change, provided that it changes a visible table.
func (tx *Txn) Index() uint64 { return tx.index }

// Operation sets the operation for the following changes: the type of their events
// (JobRegistered, PlanResult, AllocationUpdated …). Without it each event has the default
// type of its topic.
func (tx *Txn) Operation(name string) { tx.op = name }

// AnnounceEvaluation adds an event of the current operation about an evaluation, without
// storing the evaluation.
func (tx *Txn) AnnounceEvaluation(e *api.Evaluation) {
	tx.addEvent(change{kind: tableDefOf[Evaluations], after: e})
}

// AnnounceNode adds an event of the current operation about a node that has not changed.
func (tx *Txn) AnnounceNode(id string) {
	if n := tx.Node(nil, id); n != nil {
		tx.addEvent(change{kind: tableDefOf[Nodes], after: n})
	}
}

// PutJob stores a job as the latest version, and under its Version in JobVersions.
func (tx *Txn) PutJob(job *api.Job) {
	if job.Version == nil {
		tx.fail(fmt.Errorf("put job %s: it has no version", str(job.ID)))
		return
	}
	tx.put(tableDefOf[Jobs], job)
	if tx.err == nil {
		tx.insert(tableDefOf[JobVersions], job)
	}
}

// PutJobVersion replaces one version of a job, for a stable mark or a tag. For the latest
// version, it also replaces the job.
func (tx *Txn) PutJobVersion(job *api.Job) {
	if latest := tx.Job(nil, str(job.Namespace), str(job.ID)); latest != nil && num(latest.Version) == num(job.Version) {
		tx.PutJob(job)
		return
	}
	tx.put(tableDefOf[JobVersions], job)
}

// DeleteJob removes a job with its versions, their sources, its scaling events
// and its launch time. Evaluations, allocations and deployments stay.
func (tx *Txn) DeleteJob(namespace, id string) {
	for _, version := range tx.JobVersions(nil, namespace, id) {
		tx.DeleteJobVersion(namespace, id, num(version.Version))
	}
	tx.delete(ScalingEvents, scopedKey(namespace, id))
	tx.delete(PeriodicLaunches, scopedKey(namespace, id))
	tx.delete(Jobs, scopedKey(namespace, id))
}

// DeleteJobVersion removes one version of a job and its source.
func (tx *Txn) DeleteJobVersion(namespace, id string, version uint64) {
	tx.delete(JobVersions, versionKey(namespace, id, version))
	tx.delete(JobSubmissions, versionKey(namespace, id, version))
}

// PutJobSubmission stores the source of one version of a job.
func (tx *Txn) PutJobSubmission(namespace, id string, version uint64, s *api.JobSubmission) {
	tx.put(tableDefOf[JobSubmissions], &submission{Namespace: namespace, JobID: id, Version: version, Submission: s})
}

// PutEvaluation stores an evaluation.
func (tx *Txn) PutEvaluation(e *api.Evaluation) { tx.put(tableDefOf[Evaluations], e) }

// DeleteEvaluation removes an evaluation, if there is one.
func (tx *Txn) DeleteEvaluation(id string) { tx.delete(Evaluations, id) }

// PutAllocation stores an allocation for the scheduler: it also sets AllocModifyIndex,
// from which the node sees that it must act.
func (tx *Txn) PutAllocation(a *api.Allocation) {
	if tx.owned(tableDefOf[Allocations], a) {
		a.AllocModifyIndex = tx.index
		tx.put(tableDefOf[Allocations], a)
	}
}

// ReportAllocation stores an allocation with the status that the node reports. It does not
// change AllocModifyIndex.
func (tx *Txn) ReportAllocation(a *api.Allocation) { tx.put(tableDefOf[Allocations], a) }

// PutDeployment stores a deployment.
func (tx *Txn) PutDeployment(d *api.Deployment) { tx.put(tableDefOf[Deployments], d) }

// DeleteDeployment removes a deployment, if there is one.
func (tx *Txn) DeleteDeployment(id string) { tx.delete(Deployments, id) }

// PutNode stores a node. It adds events about damage of the state, if the caller's events
// lack them.
func (tx *Txn) PutNode(n *api.Node) {
	if !tx.owned(tableDefOf[Nodes], n) {
		return
	}
	for _, event := range tx.nodeEvents {
		if !slices.ContainsFunc(n.Events, func(e *api.NodeEvent) bool {
			return e.Message == event.Message && e.Timestamp.Equal(event.Timestamp)
		}) {
			told := *event
			told.CreateIndex = tx.index
			n.Events = append(n.Events[:len(n.Events):len(n.Events)], &told)
		}
	}
	tx.put(tableDefOf[Nodes], n)
}

// PutService stores the registration of a service.
func (tx *Txn) PutService(s *api.ServiceRegistration) { tx.put(tableDefOf[Services], s) }

// DeleteService removes the registration of a service, if there is one.
func (tx *Txn) DeleteService(namespace, id string) { tx.delete(Services, scopedKey(namespace, id)) }

// PutVariable stores a variable. It fails without a key ([KeysError]), and if the variable
// has no items but replaces items that cannot be opened ([SealedError]).
func (tx *Txn) PutVariable(v *api.Variable) {
	err := tx.store.KeysErr()
	if err == nil && len(v.Items) == 0 {
		err = tx.VariableErr(tx.Variable(nil, v.Namespace, v.Path))
	}
	if err != nil {
		tx.fail(err)
		return
	}
	tx.put(tableDefOf[Variables], v)
}

// DeleteVariable removes a variable, if there is one. It fails without a key
// ([KeysError]).
func (tx *Txn) DeleteVariable(namespace, path string) {
	if err := tx.store.KeysErr(); err != nil {
		tx.fail(err)
		return
	}
	tx.delete(Variables, scopedKey(namespace, path))
}

// PutNamespace stores a namespace.
func (tx *Txn) PutNamespace(n *api.Namespace) { tx.put(tableDefOf[Namespaces], n) }

// DeleteNamespace removes a namespace, if there is one.
func (tx *Txn) DeleteNamespace(name string) { tx.delete(Namespaces, name) }

// AddScalingEvent adds an event of a group and sets its CreateIndex. The last 20 events of
// each group are kept.
func (tx *Txn) AddScalingEvent(namespace, jobID, group string, event api.ScalingEvent) {
	event.CreateIndex = tx.index
	row := &scaling{Namespace: namespace, JobID: jobID, Groups: make(map[string][]api.ScalingEvent)}
	for name, events := range tx.ScalingEvents(nil, namespace, jobID) {
		row.Groups[name] = events
	}
	events := append([]api.ScalingEvent{event}, row.Groups[group]...)
	row.Groups[group] = events[:min(len(events), maxScalingEvents)]
	tx.put(tableDefOf[ScalingEvents], row)
}

// PeriodicLaunch is the time of the last launch of a periodic job.
type PeriodicLaunch struct {
	Namespace, JobID string
	Launch           time.Time
	ModifyIndex      uint64
}

// PutPeriodicLaunch stores the last launch of a periodic job.
func (tx *Txn) PutPeriodicLaunch(p *PeriodicLaunch) { tx.put(tableDefOf[PeriodicLaunches], p) }

// fail records the first error.
func (tx *Txn) fail(err error) {
	if tx.err == nil {
		tx.err = err
	}
}

func (tx *Txn) get(k *tableDef, key string) any {
	obj, err := tx.mem.First(string(k.table), "id", key)
	if err != nil {
		tx.fail(fmt.Errorf("read %s %q: %w", k.table, readable(key), err))
	}
	return obj
}

// owned reports whether the store may change an object that is put. It fails the update if
// readers may already have the object.
func (tx *Txn) owned(k *tableDef, obj any) bool {
	if tx.err != nil {
		return false
	}
	key := k.key(obj)
	if old := tx.get(k, key); old == obj && !slices.ContainsFunc(tx.changes, func(c change) bool { return c.after == obj }) {
		tx.fail(fmt.Errorf("put %s %q: it was changed in place", k.table, readable(key)))
	}
	return tx.err == nil
}

// put stamps an object and stores it.
func (tx *Txn) put(k *tableDef, obj any) {
	if !tx.owned(k, obj) {
		return
	}
	if k.stamp != nil {
		k.stamp(obj, tx.get(k, k.key(obj)), tx.index)
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
		tx.fail(fmt.Errorf("put %s: %w", k.table, errNoKey))
		return
	case len(key) > maxKey:
		tx.fail(fmt.Errorf("put %s %.40q…: the key has %d bytes, at most %d are possible", k.table, key, len(key), maxKey))
		return
	}
	before := tx.get(k, key)
	if err := tx.mem.Insert(string(k.table), obj); err != nil {
		tx.fail(fmt.Errorf("put %s %q: %w", k.table, readable(key), err))
		return
	}
	tx.changed(change{kind: k, key: key, before: before, after: obj})
}

func (tx *Txn) delete(t Table, key string) {
	if tx.err != nil || key == "" {
		return
	}
	k := tableDefOf[t]
	before := tx.get(k, key)
	if before == nil {
		return
	}
	if err := tx.mem.Delete(string(t), before); err != nil {
		tx.fail(fmt.Errorf("delete %s %q: %w", t, readable(key), err))
		return
	}
	tx.changed(change{kind: k, key: key, before: before})
}

func (tx *Txn) changed(c change) {
	tx.changes = append(tx.changes, c)
	if c.kind.visible {
		tx.visible = true
		tx.tables[c.kind.table] = true
	}
	if c.kind.event != nil {
		tx.addEvent(c)
	}
	if c.kind.table == Jobs && !samePolicies(c.before, c.after) {
		tx.tables[ScalingPolicies] = true
	}
}

// samePolicies reports whether two versions of a job, nil for none, have the same
// scaling policies.
func samePolicies(before, after any) bool {
	policies := func(job any) map[string]*api.ScalingPolicy {
		found := make(map[string]*api.ScalingPolicy)
		if j, _ := job.(*api.Job); j != nil {
			for _, g := range j.TaskGroups {
				if g.Scaling != nil {
					found[str(g.Name)] = g.Scaling
				}
			}
		}
		return found
	}
	return reflect.DeepEqual(policies(before), policies(after))
}

// deletionEvents are the event types of deleted objects. The deletion of other objects is not
// an event.
var deletionEvents = map[Table]string{
	Jobs:      "JobDeregistered",
	Services:  "ServiceDeregistration",
	Variables: "VariableUpdated",
}

// addEvent adds an event, and replaces an earlier one for the same object and operation.
func (tx *Txn) addEvent(c change) {
	obj := c.after
	if obj == nil {
		obj = c.before
	}
	e := c.kind.event(obj)
	e.Object, e.Index, e.Deleted = obj, tx.index, c.after == nil
	if e.Deleted {
		e.Type = deletionEvents[c.kind.table]
	}
	silent := e.Type == ""
	if tx.op != "" {
		e.Type = tx.op
	}
	tx.events = slices.DeleteFunc(tx.events, func(other Event) bool {
		same := other.Topic == e.Topic && other.Key == e.Key && other.Namespace == e.Namespace
		return same && (other.Type == e.Type || silent)
	})
	if !silent {
		tx.events = append(tx.events, e)
	}
}

// finish sets the indexes of the changed tables.
func (tx *Txn) finish() {
	if !tx.visible {
		return
	}
	for table := range tx.tables {
		if err := tx.mem.Insert(tableIndexes, &indexRow{table, tx.index}); err != nil {
			tx.fail(fmt.Errorf("set index of %s: %w", table, err))
		}
	}
}

// undo reverts all changes.
func (tx *Txn) undo() error {
	var errs []error
	for _, c := range slices.Backward(tx.changes) {
		if c.before != nil {
			errs = append(errs, tx.mem.Insert(string(c.kind.table), c.before))
		} else {
			errs = append(errs, tx.mem.Delete(string(c.kind.table), c.after))
		}
	}
	return errors.Join(errs...)
}
