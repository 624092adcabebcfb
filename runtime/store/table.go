package store

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Table is the name of an object table, and of its bucket in the state file.
type Table string

// The public tables. Each has its last change's index, which blocking queries use.
const (
	Jobs             Table = "jobs"
	JobVersions      Table = "job_versions"
	JobSubmissions   Table = "job_submissions"
	Evaluations      Table = "evaluations"
	Allocations      Table = "allocations"
	Deployments      Table = "deployments"
	Nodes            Table = "nodes"
	Services         Table = "services"
	Variables        Table = "variables"
	Namespaces       Table = "namespaces"
	ScalingEvents    Table = "scaling_events"
	PeriodicLaunches Table = "periodic_launches"
	SchedulerConfig  Table = "scheduler_config"
	HostVolumes      Table = "host_volumes"
	VolumeClaims     Table = "volume_claims"
	ACLPolicies      Table = "acl_policies"
	ACLRoles         Table = "acl_roles"
	ACLTokens        Table = "acl_tokens"
)

// Topics for which Nomad's client has no constant.
const (
	TopicHostVolume api.Topic = "HostVolume" // dynamic host volumes
	TopicACLPolicy  api.Topic = "ACLPolicy"
	TopicACLRole    api.Topic = "ACLRole"
	TopicACLToken   api.Topic = "ACLToken"
)

// ScalingPolicies is a table without records, only with its last change's index: policies are parts of jobs.
const ScalingPolicies Table = "scaling_policies"

// The local tables, which only the agent reads. A write to them does not increase the index.
const (
	taskLocalsTable  Table = "task_local"
	taskStatesTable  Table = "task_state"
	taskHandlesTable Table = "task_handle" // keyed by allocation, task and start id
	allocLocalsTable Table = "alloc_local"
	agentMetaTable   Table = "agent"
)

// taskTables are the local tables with the records of a task.
var taskTables = [...]Table{taskLocalsTable, taskStatesTable, taskHandlesTable}

// tableIndexTable has each table's last change index. It exists only in memory: the file has all these indexes in one record.
const tableIndexTable = "index"

// tableIndexRow is a row in tableIndexTable.
type tableIndexRow struct {
	table Table
	index uint64
}

// tableDef defines a table.
type tableDef struct {
	table                   Table
	hasTableIndex           bool // the table is public: a change increases the index and wakes watchers
	isReadByAgentOnly       bool // the objects have type localRecord
	keyOf                   func(any) string
	indexerByName           map[string]memdb.Indexer
	setCreateAndModifyIndex func(obj, old any, index uint64) // sets obj's indexes; old is nil for a new object
	newZeroRecord           func(key string) any             // returns a pointer to the stored type's zero value, nil if this build has no record with the key
	newEvent                func(any) Event                  // nil if changes to the table cause no events
}

// tableDefs has all tables, in the order in which they are written to a new file.
var tableDefs = []*tableDef{
	definePublicTable(Jobs, jobKey, secondaryIndexes[api.Job]{
		"parent": func(j *api.Job) string {
			return keyIfFieldSet(namespacedKey(pointer.Value(j.Namespace), pointer.Value(j.ParentID)), j.ParentID)
		},
	}, setJobIndexes, func(j *api.Job) Event {
		return Event{Topic: api.TopicJob, Type: "JobRegistered", Key: pointer.Value(j.ID), Namespace: pointer.Value(j.Namespace)}
	}),
	definePublicTable(JobVersions, func(j *api.Job) string {
		return jobVersionKey(pointer.Value(j.Namespace), pointer.Value(j.ID), pointer.Value(j.Version))
	},
		nil, setJobIndexes, nil),
	definePublicTable(JobSubmissions, func(s *jobSubmissionRow) string { return jobVersionKey(s.Namespace, s.JobID, s.Version) },
		nil, nil, nil),
	definePublicTable(Evaluations, func(e *api.Evaluation) string { return e.ID }, secondaryIndexes[api.Evaluation]{
		"job": func(e *api.Evaluation) string { return namespacedKey(e.Namespace, e.JobID) },
	}, newSetCreateAndModifyIndexFunc(func(e *api.Evaluation) (_, _ *uint64) { return &e.CreateIndex, &e.ModifyIndex }), func(e *api.Evaluation) Event {
		return Event{Topic: api.TopicEvaluation, Type: "EvaluationUpdated", Key: e.ID, Namespace: e.Namespace, FilterKeys: []string{e.JobID, e.DeploymentID}}
	}),
	defineAllocationsTable(),
	definePublicTable(Deployments, func(d *api.Deployment) string { return d.ID }, secondaryIndexes[api.Deployment]{
		"job": func(d *api.Deployment) string { return namespacedKey(d.Namespace, d.JobID) },
	}, newSetCreateAndModifyIndexFunc(func(d *api.Deployment) (_, _ *uint64) { return &d.CreateIndex, &d.ModifyIndex }), func(d *api.Deployment) Event {
		return Event{Topic: api.TopicDeployment, Type: "DeploymentStatusUpdate", Key: d.ID, Namespace: d.Namespace, FilterKeys: []string{d.JobID}}
	}),
	definePublicTable(Nodes, func(n *api.Node) string { return n.ID }, nil,
		newSetCreateAndModifyIndexFunc(func(n *api.Node) (_, _ *uint64) { return &n.CreateIndex, &n.ModifyIndex }),
		func(n *api.Node) Event {
			return Event{Topic: api.TopicNode, Type: "NodeRegistration", Key: n.ID}
		}),
	definePublicTable(Services, func(s *api.ServiceRegistration) string { return namespacedKey(s.Namespace, s.ID) }, secondaryIndexes[api.ServiceRegistration]{
		"name":  func(s *api.ServiceRegistration) string { return namespacedKey(s.Namespace, s.ServiceName) },
		"job":   func(s *api.ServiceRegistration) string { return namespacedKey(s.Namespace, s.JobID) },
		"alloc": func(s *api.ServiceRegistration) string { return s.AllocID },
	}, newSetCreateAndModifyIndexFunc(func(s *api.ServiceRegistration) (_, _ *uint64) { return &s.CreateIndex, &s.ModifyIndex }), func(s *api.ServiceRegistration) Event {
		return Event{Topic: api.TopicService, Type: "ServiceRegistration", Key: s.ID, Namespace: s.Namespace, FilterKeys: []string{s.JobID, s.ServiceName}}
	}),
	definePublicTable(Variables, func(v *api.Variable) string { return namespacedKey(v.Namespace, v.Path) }, nil,
		newSetCreateAndModifyIndexFunc(func(v *api.Variable) (_, _ *uint64) { return &v.CreateIndex, &v.ModifyIndex }),
		func(v *api.Variable) Event {
			return Event{Topic: "Variable", Type: "VariableUpdated", Key: v.Path, Namespace: v.Namespace}
		}),
	definePublicTable(Namespaces, func(n *api.Namespace) string { return n.Name }, nil,
		newSetCreateAndModifyIndexFunc(func(n *api.Namespace) (_, _ *uint64) { return &n.CreateIndex, &n.ModifyIndex }), nil),
	definePublicTable(ScalingEvents, func(s *scalingEventsRow) string { return namespacedKey(s.Namespace, s.JobID) }, nil, nil, nil),
	definePublicTable(PeriodicLaunches, func(p *PeriodicLaunch) string { return namespacedKey(p.Namespace, p.JobID) }, nil,
		func(p, _ *PeriodicLaunch, index uint64) { p.ModifyIndex = index }, nil),
	definePublicTable(SchedulerConfig, func(*api.SchedulerConfiguration) string { return schedulerConfigKey }, nil,
		newSetCreateAndModifyIndexFunc(func(c *api.SchedulerConfiguration) (_, _ *uint64) { return &c.CreateIndex, &c.ModifyIndex }), nil),
	definePublicTable(HostVolumes, func(v *state.HostVolume) string { return v.Volume.ID }, nil,
		newSetCreateAndModifyIndexFunc(func(v *state.HostVolume) (_, _ *uint64) { return &v.Volume.CreateIndex, &v.Volume.ModifyIndex }),
		func(v *state.HostVolume) Event {
			return Event{Topic: TopicHostVolume, Type: "HostVolumeRegistered", Key: v.Volume.ID, Namespace: v.Volume.Namespace, FilterKeys: []string{v.Volume.ID, v.Volume.Name, v.Volume.PluginID}}
		}),
	definePublicTable(VolumeClaims, func(c *api.TaskGroupHostVolumeClaim) string { return c.ID }, nil,
		newSetCreateAndModifyIndexFunc(func(c *api.TaskGroupHostVolumeClaim) (_, _ *uint64) { return &c.CreateIndex, &c.ModifyIndex }), nil),
	definePublicTable(ACLPolicies, func(p *api.ACLPolicy) string { return p.Name }, nil,
		newSetCreateAndModifyIndexFunc(func(p *api.ACLPolicy) (_, _ *uint64) { return &p.CreateIndex, &p.ModifyIndex }), func(p *api.ACLPolicy) Event {
			return Event{Topic: TopicACLPolicy, Type: "ACLPolicyUpserted", Key: p.Name}
		}),
	definePublicTable(ACLRoles, func(r *api.ACLRole) string { return r.ID }, secondaryIndexes[api.ACLRole]{
		"name": func(r *api.ACLRole) string { return r.Name },
	}, newSetCreateAndModifyIndexFunc(func(r *api.ACLRole) (_, _ *uint64) { return &r.CreateIndex, &r.ModifyIndex }), func(r *api.ACLRole) Event {
		return Event{Topic: TopicACLRole, Type: "ACLRoleUpserted", Key: r.ID, FilterKeys: []string{r.Name}}
	}),
	definePublicTable(ACLTokens, func(t *api.ACLToken) string { return t.AccessorID }, secondaryIndexes[api.ACLToken]{
		"secret": func(t *api.ACLToken) string { return secretHash(t.SecretID) },
	}, newSetCreateAndModifyIndexFunc(func(t *api.ACLToken) (_, _ *uint64) { return &t.CreateIndex, &t.ModifyIndex }), func(t *api.ACLToken) Event {
		return Event{Topic: TopicACLToken, Type: "ACLTokenUpserted", Key: t.AccessorID}
	}),
	defineLocalTable(taskLocalsTable, func(string) any { return new(state.TaskRecord) }),
	defineLocalTable(taskStatesTable, func(string) any { return new(api.TaskState) }),
	defineLocalTable(taskHandlesTable, func(string) any { return new(state.HandleRecord) }),
	defineLocalTable(allocLocalsTable, func(string) any { return new(allocLocalRecord) }),
	defineLocalTable(agentMetaTable, func(key string) any {
		if kind := state.AgentRecordKindOf(key); kind != nil {
			return kind.NewRecord()
		}
		return nil
	}),
}

// bucketNames has the names of all buckets in the file.
var bucketNames = func() []string {
	names := []string{metaBucket, quarantineBucket, jobBucket}
	for _, k := range tableDefs {
		names = append(names, string(k.table))
	}
	return names
}()

// tableDefsByTable maps a table to its definition.
var tableDefsByTable = func() map[Table]*tableDef {
	m := make(map[Table]*tableDef, len(tableDefs))
	for _, k := range tableDefs {
		m[k.table] = k
	}
	return m
}()

// secondaryIndexes are a table's secondary indexes: index name -> function that returns an object's index key. If the function
// returns "", the object is not in the index.
type secondaryIndexes[T any] map[string]func(*T) string

// definePublicTable returns a public table's definition.
func definePublicTable[T any](table Table, keyOf func(*T) string, indexes secondaryIndexes[T], setCreateAndModifyIndex func(obj, old *T, index uint64), newEvent func(*T) Event) *tableDef {
	k := newTableDef(table, withUntypedArg(keyOf), func(string) any { return new(T) })
	k.hasTableIndex = true
	for name, value := range indexes {
		k.indexerByName[name] = stringIndexer{keyOf: withUntypedArg(value)}
	}
	if setCreateAndModifyIndex != nil {
		k.setCreateAndModifyIndex = func(obj, old any, index uint64) {
			before, _ := objectWithoutEvents(old).(*T)
			setCreateAndModifyIndex(obj.(*T), before, index)
		}
	}
	if newEvent != nil {
		k.newEvent = func(o any) Event { return newEvent(o.(*T)) }
	}
	return k
}

// newTableDef returns the definition of a table with the key as its only go-memdb index.
func newTableDef(table Table, keyOf func(any) string, newRecord func(key string) any) *tableDef {
	return &tableDef{
		table:         table,
		keyOf:         keyOf,
		indexerByName: map[string]memdb.Indexer{"id": stringIndexer{keyOf: keyOf, isPrimaryKey: true}},
		newZeroRecord: newRecord,
	}
}

func withUntypedArg[T any](value func(*T) string) func(any) string {
	return func(o any) string { return value(objectWithoutEvents(o).(*T)) }
}

// defineAllocationsTable returns the definition of the table Allocations. Allocations are stored without their job, which many
// allocations share. A secondary index needs half a kilobyte for each allocation, so lists requested only by users have no
// index.
func defineAllocationsTable() *tableDef {
	k := definePublicTable(Allocations, func(a *api.Allocation) string { return a.ID }, secondaryIndexes[api.Allocation]{
		"job": func(a *api.Allocation) string { return namespacedKey(a.Namespace, a.JobID) },
	}, newSetCreateAndModifyIndexFunc(func(a *api.Allocation) (_, _ *uint64) { return &a.CreateIndex, &a.ModifyIndex }), func(a *api.Allocation) Event {
		return Event{Topic: api.TopicAllocation, Type: "AllocationUpdated", Key: a.ID, Namespace: a.Namespace, FilterKeys: []string{a.JobID, a.DeploymentID}}
	})
	k.newZeroRecord = func(string) any { return new(allocationRecord) } // the loader reads the job, which is in jobTable
	return k
}

// localRecord is a record in a local table. It is decoded when a caller reads it, not when the file is loaded.
type localRecord struct {
	key               string
	unencryptedPart   []byte
	secretPart        []byte             // encoded secret part, which is sealed in the file; nil if there is none
	undecryptedSecret *undecryptedSecret // sealed part that cannot be decrypted; nil if there is none
	// hasOnlyKnownFields: this build knows all the record's fields. It is false for a record loaded from the file and not
	// decoded yet.
	hasOnlyKnownFields atomic.Bool
}

func defineLocalTable(table Table, newRecord func(key string) any) *tableDef {
	k := newTableDef(table, func(o any) string { return o.(*localRecord).key }, newRecord)
	k.isReadByAgentOnly = true
	return k
}

// schedulerConfigKey is the key of the only object in the table SchedulerConfig.
const schedulerConfigKey = "scheduler"

// jobSubmissionRow is an object in the table JobSubmissions: where a job version came from.
type jobSubmissionRow struct {
	Namespace  string             `store:"namespace"`
	JobID      string             `store:"job_id"`
	Version    uint64             `store:"version"`
	Submission *api.JobSubmission `store:"submission"` // nil if no source text is known
	Author     state.Author       `store:"author"`     // zero if the client had no ACL token
}

// scalingEventsRow is an object in the table ScalingEvents: one job's events by group, newest first.
type scalingEventsRow struct {
	Namespace     string                        `store:"namespace"`
	JobID         string                        `store:"job_id"`
	EventsByGroup map[string][]api.ScalingEvent `store:"groups"`
}

func jobKey(j *api.Job) string { return namespacedKey(pointer.Value(j.Namespace), pointer.Value(j.ID)) }

// newSetCreateAndModifyIndexFunc returns a function that sets an object's create and modify index. indexPointers returns
// pointers to these indexes.
func newSetCreateAndModifyIndexFunc[T any](indexPointers func(*T) (create, modify *uint64)) func(obj, old *T, index uint64) {
	return func(obj, old *T, index uint64) {
		create, modify := indexPointers(obj)
		*create, *modify = index, index
		if old != nil {
			before, _ := indexPointers(old)
			*create = *before
		}
	}
}

func setJobIndexes(j, old *api.Job, index uint64) {
	create := index
	if old != nil && old.CreateIndex != nil {
		create = *old.CreateIndex
	}
	modify := index
	j.CreateIndex, j.ModifyIndex = &create, &modify
}

// namespacedKey returns an object's key from its namespace and name, or "" if the name is empty.
func namespacedKey(namespace, name string) string {
	if name == "" {
		return ""
	}
	return namespace + "\x00" + name
}

// jobVersionKey returns a job version's key. One job's keys sort by version.
func jobVersionKey(namespace, id string, version uint64) string {
	if id == "" {
		return ""
	}
	return fmt.Sprintf("%s\x00%s\x00%016x", namespace, id, version)
}

// keyIfFieldSet returns key, or "" if field is nil or empty.
func keyIfFieldSet(key string, field *string) string {
	if pointer.Value(field) == "" {
		return ""
	}
	return key
}

// stringIndexer indexes objects by a string in a go-memdb table.
type stringIndexer struct {
	keyOf        func(any) string
	isPrimaryKey bool // the index is the table's key: objects without it are rejected
}

var errObjectWithoutKey = errors.New("object without a key")

func (s stringIndexer) FromObject(o any) (bool, []byte, error) {
	v := s.keyOf(o)
	if v == "" {
		if s.isPrimaryKey {
			return false, nil, errObjectWithoutKey
		}
		return false, nil, nil
	}
	return true, append([]byte(v), 0), nil
}

func (s stringIndexer) FromArgs(args ...any) ([]byte, error) {
	return append([]byte(args[0].(string)), 0), nil
}

func (s stringIndexer) PrefixFromArgs(args ...any) ([]byte, error) {
	return []byte(args[0].(string)), nil
}

func newMemdbSchema() *memdb.DBSchema {
	s := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{
		tableIndexTable: {
			Name: tableIndexTable,
			Indexes: map[string]*memdb.IndexSchema{"id": {
				Name: "id", Unique: true,
				Indexer: stringIndexer{keyOf: func(o any) string { return string(o.(*tableIndexRow).table) }, isPrimaryKey: true},
			}},
		},
	}}
	for _, k := range tableDefs {
		t := &memdb.TableSchema{Name: string(k.table), Indexes: make(map[string]*memdb.IndexSchema)}
		for name, indexer := range k.indexerByName {
			t.Indexes[name] = &memdb.IndexSchema{Name: name, Indexer: indexer, Unique: name == "id", AllowMissing: name != "id"}
		}
		s.Tables[string(k.table)] = t
	}
	return s
}

// readableKey returns a key for messages, with slashes as separators.
func readableKey(key string) string { return strings.ReplaceAll(key, "\x00", "/") }
