package store

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// ErrRunnerRecordsDeleted means that a runner has tried to store a record of a deleted allocation, after
// DeleteRunnerRecords has removed its records.
var ErrRunnerRecordsDeleted = errors.New("allocation has been forgotten")

// allocLocalRecord has what the runner of an allocation stores for the next agent: the last check results. Its tasks have
// records of their own.
type allocLocalRecord struct {
	Checks map[string]*api.AllocCheckStatus `store:"checks"`
}

// maxCommitDelay maps a durability to the maximum time that a write is delayed so that other writes can share its commit.
var maxCommitDelay = [...]time.Duration{
	state.DurabilitySync:    0,
	state.DurabilityGrouped: time.Millisecond,
	state.DurabilityAsync:   50 * time.Millisecond,
}

// PutTaskState stores the state of a task with its events. An unchanged state is not
// written again.
func (s *Store) PutTaskState(allocID, task string, status *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return s.putLocalRecords(allocID, task, durability, localValue{taskStatesTable, newTaskState(status)})
}

// PutTask stores in one commit the local state of a task, which the next agent needs to restore the task, and
// its task state: after a crash either both are stored or neither. Unchanged records are not written again.
func (s *Store) PutTask(allocID, task string, local state.LocalState, status *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return s.putLocalRecords(allocID, task, durability, localValue{taskLocalsTable, local}, localValue{taskStatesTable, newTaskState(status)})
}

// localValue is a value that is stored as the record of a task in a local table.
type localValue struct {
	table Table
	value any
}

func (s *Store) putLocalRecords(allocID, task string, durability state.Durability, records ...localValue) state.WaitDurableFunc {
	key := allocID + "\x00" + task
	failed := func(err error) state.WaitDurableFunc { return func() error { return err } }
	encoded := make([]localRecord, len(records))
	for i, r := range records {
		var err error
		e := &encoded[i]
		if local, ok := r.value.(state.LocalState); ok {
			e.payload, e.secret, err = encodeTaskLocal(local)
		} else {
			e.payload, err = encodeMsgpack(r.value)
		}
		if err != nil {
			return failed(fmt.Errorf("store %s %q: %w", r.table, readableKey(key), err))
		}
	}
	r, err := s.enqueue(func(tx *Txn) error {
		for i, r := range records {
			tx.putLocalRecord(r.table, allocID, key, encoded[i].payload, encoded[i].secret)
		}
		return nil
	}, maxCommitDelay[durability])
	if err != nil {
		return failed(err)
	}
	return func() error {
		<-r.done
		return r.err
	}
}

// PutTask is like [Store.PutTask], but stores the records in this transaction.
func (tx *Txn) PutTask(allocID, task string, local state.LocalState, status *api.TaskState) {
	key := allocID + "\x00" + task
	payload, secret, err := encodeTaskLocal(local)
	if err == nil {
		tx.putLocalRecord(taskLocalsTable, allocID, key, payload, secret)
		payload, err = encodeMsgpack(newTaskState(status))
	}
	if err != nil {
		tx.setError(fmt.Errorf("store task %q: %w", readableKey(key), err))
		return
	}
	tx.putLocalRecord(taskStatesTable, allocID, key, payload, nil)
}

// PutCheckResult stores the last result of a check. The change does not increase the index.
func (tx *Txn) PutCheckResult(allocID string, c *api.AllocCheckStatus) {
	tx.editAllocLocalRecord(allocID, func(s *allocLocalRecord) {
		if s.Checks == nil {
			s.Checks = make(map[string]*api.AllocCheckStatus)
		}
		s.Checks[c.ID] = c
	})
}

func (tx *Txn) editAllocLocalRecord(allocID string, f func(*allocLocalRecord)) {
	state, err := tx.allocLocalRecord(allocID)
	if err != nil {
		tx.setError(err)
		return
	}
	f(&state)
	payload, err := encodeMsgpack(state)
	if err != nil {
		tx.setError(fmt.Errorf("store %s %q: %w", allocLocalsTable, allocID, err))
		return
	}
	tx.putLocalRecord(allocLocalsTable, allocID, allocID, payload, nil)
}

func (tx *Txn) putLocalRecord(t Table, allocID, key string, payload, secret []byte) {
	if tx.Allocation(nil, allocID) == nil && !tx.hasLocalRecords(allocID) {
		tx.setError(fmt.Errorf("store %s %q: %w", t, readableKey(key), ErrRunnerRecordsDeleted))
		return
	}
	tx.putLocalRecordIfChanged(t, key, payload, secret)
}

// putLocalRecordIfChanged stores a record of a local table, unless it equals the stored one. If secret is nil, and the stored
// record has a sealed part that could not be decrypted, the new record keeps that part.
func (tx *Txn) putLocalRecordIfChanged(t Table, key string, payload, secret []byte) {
	record := &localRecord{key: key, payload: payload, secret: secret}
	record.hasOnlyKnownFields.Store(true)
	if old := firstRow[localRecord](tx.Reader, nil, t, key); old != nil {
		if err := record.keepUnknownFieldsOf(t, old); err != nil {
			tx.setError(fmt.Errorf("store %s %q: %w", t, readableKey(key), err))
			return
		}
		if secret == nil {
			record.unopenedSecret = old.unopenedSecret
		}
		if bytes.Equal(old.payload, record.payload) && bytes.Equal(old.secret, record.secret) && old.unopenedSecret == record.unopenedSecret {
			return
		}
	}
	tx.insertObject(tableDefsByTable[t], record)
}

// DeleteRunnerRecords removes what the runner of an allocation has stored for the next agent: its record and those of its
// tasks. No task of the allocation may be running. It also removes the service registrations of the allocation, because
// the runner may not have deregistered them.
func (tx *Txn) DeleteRunnerRecords(allocID string) {
	for _, s := range tx.ServicesByAllocation(nil, allocID) {
		tx.DeleteService(s.Namespace, s.ID)
	}
	for _, t := range []Table{taskLocalsTable, taskStatesTable} {
		for _, r := range listRows[localRecord](tx.Reader, nil, t, "id_prefix", allocID+"\x00") {
			tx.deleteObject(t, r.key)
		}
	}
	tx.deleteObject(allocLocalsTable, allocID)
}

func (r Reader) hasLocalRecords(allocID string) bool {
	return firstRow[localRecord](r, nil, allocLocalsTable, allocID) != nil ||
		len(listRows[localRecord](r, nil, taskLocalsTable, "id_prefix", allocID+"\x00")) > 0 ||
		len(listRows[localRecord](r, nil, taskStatesTable, "id_prefix", allocID+"\x00")) > 0
}

// TaskLocalState returns the local state that PutTask has stored, and false if none was stored.
func (r Reader) TaskLocalState(allocID, task string) (state.LocalState, bool, error) {
	var record state.TaskRecord
	var secrets state.TaskSecrets
	ok, err := r.readLocalRecord(taskLocalsTable, allocID+"\x00"+task, &record, &secrets)
	record.JoinSecrets(secrets)
	return record.LocalState(), ok, err
}

// TaskState returns the state that PutTaskState has stored, nil if there is none.
func (r Reader) TaskState(allocID, task string) (*api.TaskState, error) {
	state := new(api.TaskState)
	if ok, err := r.readLocalRecord(taskStatesTable, allocID+"\x00"+task, state, nil); !ok {
		return nil, err
	}
	return state, nil
}

// CheckResults returns the results that PutCheckResult has stored, by check id.
func (r Reader) CheckResults(allocID string) (map[string]*api.AllocCheckStatus, error) {
	s, err := r.allocLocalRecord(allocID)
	return s.Checks, err
}

func (r Reader) allocLocalRecord(allocID string) (allocLocalRecord, error) {
	var s allocLocalRecord
	_, err := r.readLocalRecord(allocLocalsTable, allocID, &s, nil)
	return s, err
}

// AllocationsWithLocalRecords returns the ids of the allocations whose runners have stored records. It
// includes deleted allocations, because their tasks may still be running.
func (r Reader) AllocationsWithLocalRecords() []string {
	var ids []string
	for _, t := range []Table{taskLocalsTable, taskStatesTable, allocLocalsTable} {
		for _, record := range listRows[localRecord](r, nil, t, "id_prefix", "") {
			id, _, _ := strings.Cut(record.key, "\x00")
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// TasksWithLocalRecords returns the names of those tasks of an allocation for which its runner has stored a record.
func (r Reader) TasksWithLocalRecords(allocID string) []string {
	var names []string
	for _, t := range []Table{taskLocalsTable, taskStatesTable} {
		for _, record := range listRows[localRecord](r, nil, t, "id_prefix", allocID+"\x00") {
			_, name, _ := strings.Cut(record.key, "\x00")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// PutAgentRecord stores a value under a name, for the agent itself and its next start. [state.AgentRecordKinds] must have
// the name or its prefix. The change does not increase the index.
func (tx *Txn) PutAgentRecord(name string, value any) {
	kind := state.AgentRecordKindOf(name)
	if kind == nil {
		tx.setError(fmt.Errorf("store record %q: state.AgentRecordKinds has no such record", name))
		return
	}
	payload, err := encodeMsgpack(value)
	if err != nil {
		tx.setError(fmt.Errorf("store record %q: %w", name, err))
		return
	}
	if kind.IsSealed {
		tx.putLocalRecordIfChanged(agentMetaTable, name, nil, payload)
		return
	}
	tx.putLocalRecordIfChanged(agentMetaTable, name, payload, nil)
}

// DeleteAgentRecord removes the value that PutAgentRecord has stored under the name, if there is one.
func (tx *Txn) DeleteAgentRecord(name string) { tx.deleteObject(agentMetaTable, name) }

// AgentRecord decodes the value that PutAgentRecord has stored under a name into value, a pointer to a zero value of the
// type that [state.AgentRecordKinds] has for the name. It returns false if there is no such record. A record is also
// unreadable if value has a method CheckRecord() error that returns an error. The error is a [SealedError] if the record
// is sealed and cannot be decrypted; the record is then kept.
func (r Reader) AgentRecord(name string, value any) (bool, error) {
	kind := state.AgentRecordKindOf(name)
	if kind == nil || reflect.TypeOf(value) != reflect.TypeOf(kind.NewRecord()) {
		return false, fmt.Errorf("read record %q: state.AgentRecordKinds has no such record of type %T", name, value)
	}
	record := firstRow[localRecord](r, nil, agentMetaTable, name)
	switch {
	case record != nil && record.unopenedSecret != nil:
		return false, record.unopenedSecret.err
	case record != nil && record.secret != nil:
		return r.readLocalRecord(agentMetaTable, name, nil, value)
	}
	return r.readLocalRecord(agentMetaTable, name, value, nil)
}

// HasAgentRecord reports whether PutAgentRecord has stored a value under the name. The record may be unreadable.
func (r Reader) HasAgentRecord(name string) bool {
	return firstRow[localRecord](r, nil, agentMetaTable, name) != nil
}

// AgentRecordNames returns the names with the prefix under which PutAgentRecord has stored values.
func (r Reader) AgentRecordNames(prefix string) []string {
	var names []string
	for _, record := range listRows[localRecord](r, nil, agentMetaTable, "id_prefix", prefix) {
		names = append(names, record.key)
	}
	return names
}

// readLocalRecord decodes the unencrypted part of a record into open and the secret part into secret, unless these
// are nil. It returns false if there is no record. It moves an unreadable record into the quarantine.
func (r Reader) readLocalRecord(t Table, key string, open, secret any) (bool, error) {
	record := firstRow[localRecord](r, nil, t, key)
	if record == nil {
		return false, nil
	}
	unknown, err := record.decode(open, secret)
	if err != nil {
		r.quarantineRecord(t, record, err)
		return false, fmt.Errorf("read %s %q: %w", t, readableKey(key), err)
	}
	for _, path := range unknown {
		r.reportUnknownPart(unknownFieldName(t, path))
	}
	return true, nil
}

// decode decodes the unencrypted part of a record into open and the secret part into secret, unless these are nil. It
// returns the fields of the record that this build does not know.
func (l *localRecord) decode(open, secret any) (unknown []string, err error) {
	if open != nil {
		unknown, err = decodeLocalRecord(l.payload, open)
	}
	if err == nil && l.secret != nil {
		var inSecret []string
		inSecret, err = decodeLocalRecord(l.secret, secret)
		unknown = append(unknown, inSecret...)
	}
	if err == nil && len(unknown) == 0 && l.unopenedSecret == nil {
		l.hasOnlyKnownFields.Store(true)
	}
	return unknown, err
}

func decodeLocalRecord(b []byte, v any) (unknown []string, err error) {
	unknown, err = decodeFields(b, v)
	if c, ok := v.(recordChecker); ok && err == nil {
		err = c.CheckRecord()
	}
	return unknown, err
}

// keepUnknownFieldsOf adds those fields of old, the record that is replaced, which this build does not know.
func (l *localRecord) keepUnknownFieldsOf(t Table, old *localRecord) error {
	if old.hasOnlyKnownFields.Load() {
		return nil
	}
	open, secret := newLocalRecordValues(t, l.key)
	var openCarried, secretCarried bool
	var err error
	if l.payload, openCarried, err = keepUnknownFields(old.payload, l.payload, open); err != nil {
		return err
	}
	l.secret, secretCarried, err = keepUnknownFields(old.secret, l.secret, secret)
	l.hasOnlyKnownFields.Store(!openCarried && !secretCarried)
	return err
}

// newLocalRecordValues returns pointers to zero values into which the unencrypted and the secret part of a local record can be
// decoded. A pointer is nil if records with this key have no such part in this build.
func newLocalRecordValues(t Table, key string) (open, secret any) {
	open = tableDefsByTable[t].newRecord(key)
	switch kind := state.AgentRecordKindOf(key); {
	case t == taskLocalsTable:
		secret = new(state.TaskSecrets)
	case t == agentMetaTable && kind != nil && kind.IsSealed:
		open, secret = nil, open
	}
	return open, secret
}
