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

// ErrAllocationForgotten means that a runner has written a record of an allocation whose records
// ForgetAllocation has removed.
var ErrAllocationForgotten = errors.New("allocation has been forgotten")

// allocLocalRecord is the record of an allocation's runner. The tasks have their own records.
type allocLocalRecord struct {
	Checks map[string]*api.AllocCheckStatus `store:"checks"`
}

// maxCommitDelay is the maximum time that a write waits so that other writes can share its commit.
var maxCommitDelay = [...]time.Duration{
	state.DurabilitySync:    0,
	state.DurabilityGrouped: time.Millisecond,
	state.DurabilityAsync:   50 * time.Millisecond,
}

// PutTaskState stores the state of a task with its events. An unchanged state is not
// written again.
func (s *Store) PutTaskState(allocID, task string, status *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return s.putLocalRecords(allocID, task, durability, localWrite{taskStatesTable, newTaskState(status)})
}

// PutTask stores in one commit the local state of a task, which the next agent needs to restore the task, and
// its task state: after a crash either both are stored or neither. Unchanged records are not written again.
func (s *Store) PutTask(allocID, task string, local state.LocalState, status *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return s.putLocalRecords(allocID, task, durability, localWrite{taskLocalsTable, local}, localWrite{taskStatesTable, newTaskState(status)})
}

// localWrite is a value to be stored as a task's record in a table.
type localWrite struct {
	table Table
	value any
}

func (s *Store) putLocalRecords(allocID, task string, durability state.Durability, records ...localWrite) state.WaitDurableFunc {
	key := allocID + "\x00" + task
	failed := func(err error) state.WaitDurableFunc { return func() error { return err } }
	encoded := make([]localRecord, len(records))
	for i, r := range records {
		var err error
		e := &encoded[i]
		if local, ok := r.value.(state.LocalState); ok {
			e.payload, e.secret, err = encodeTaskLocal(local)
		} else {
			e.payload, err = encode(r.value)
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

// PutTask is like [Store.PutTask], as a part of a larger change.
func (tx *Txn) PutTask(allocID, task string, local state.LocalState, status *api.TaskState) {
	key := allocID + "\x00" + task
	payload, secret, err := encodeTaskLocal(local)
	if err == nil {
		tx.putLocalRecord(taskLocalsTable, allocID, key, payload, secret)
		payload, err = encode(newTaskState(status))
	}
	if err != nil {
		tx.setError(fmt.Errorf("store task %q: %w", readableKey(key), err))
		return
	}
	tx.putLocalRecord(taskStatesTable, allocID, key, payload, nil)
}

// PutCheckResult stores the last result of a check. The change does not increase the index.
func (tx *Txn) PutCheckResult(allocID string, c *api.AllocCheckStatus) {
	tx.changeAllocLocalRecord(allocID, func(s *allocLocalRecord) {
		if s.Checks == nil {
			s.Checks = make(map[string]*api.AllocCheckStatus)
		}
		s.Checks[c.ID] = c
	})
}

func (tx *Txn) changeAllocLocalRecord(allocID string, f func(*allocLocalRecord)) {
	state, err := tx.allocLocalRecord(allocID)
	if err != nil {
		tx.setError(err)
		return
	}
	f(&state)
	payload, err := encode(state)
	if err != nil {
		tx.setError(fmt.Errorf("store %s %q: %w", allocLocalsTable, allocID, err))
		return
	}
	tx.putLocalRecord(allocLocalsTable, allocID, allocID, payload, nil)
}

func (tx *Txn) putLocalRecord(t Table, allocID, key string, payload, secret []byte) {
	if tx.Allocation(nil, allocID) == nil && !tx.hasLocalRecords(allocID) {
		tx.setError(fmt.Errorf("store %s %q: %w", t, readableKey(key), ErrAllocationForgotten))
		return
	}
	tx.putRecord(t, key, payload, secret)
}

// putRecord stores a record. If secret is nil, the record keeps a sealed part that could not be opened.
func (tx *Txn) putRecord(t Table, key string, payload, secret []byte) {
	record := &localRecord{key: key, payload: payload, secret: secret}
	record.hasKnownFields.Store(true)
	if old := firstRow[localRecord](tx.Reader, nil, t, key); old != nil {
		if err := record.carryUnknownFields(t, old); err != nil {
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
	tx.insert(tableDefsByTable[t], record)
}

// ForgetAllocation removes the records of an allocation's runner and its tasks. No task of
// the allocation may be running. It also removes services that are still registered,
// because the runner may not have deregistered them.
func (tx *Txn) ForgetAllocation(allocID string) {
	for _, s := range tx.ServicesByAllocation(nil, allocID) {
		tx.DeleteService(s.Namespace, s.ID)
	}
	for _, t := range []Table{taskLocalsTable, taskStatesTable} {
		for _, r := range listRows[localRecord](tx.Reader, nil, t, "id_prefix", allocID+"\x00") {
			tx.delete(t, r.key)
		}
	}
	tx.delete(allocLocalsTable, allocID)
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

// LocalAllocations returns the ids of all allocations with runner records. It includes
// deleted allocations, because their tasks may still be running.
func (r Reader) LocalAllocations() []string {
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

// LocalTasks returns the names of the tasks of an allocation that have a record.
func (r Reader) LocalTasks(allocID string) []string {
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

// PutMeta stores a record of the agent under its name, for the next start of the agent. The name must be one of
// [state.AgentRecords]. The change does not increase the index.
func (tx *Txn) PutMeta(name string, value any) {
	kind := state.AgentRecordOf(name)
	if kind == nil {
		tx.setError(fmt.Errorf("store record %q: state.AgentRecords has no such record", name))
		return
	}
	payload, err := encode(value)
	if err != nil {
		tx.setError(fmt.Errorf("store record %q: %w", name, err))
		return
	}
	if kind.Sealed {
		tx.putRecord(agentMetaTable, name, nil, payload)
		return
	}
	tx.putRecord(agentMetaTable, name, payload, nil)
}

// DeleteMeta removes the value that PutMeta has stored under the name, if there is one.
func (tx *Txn) DeleteMeta(name string) { tx.delete(agentMetaTable, name) }

// Meta reads the record that PutMeta has stored into value, a pointer to a zero value of the type that
// [state.AgentRecords] has for the name. It returns false if none was stored. If value has a method CheckRecord()
// error and this method fails, the record is treated as unreadable. If the record is sealed and cannot be opened, the
// error is a [SealedError], and the record is kept.
func (r Reader) Meta(name string, value any) (bool, error) {
	kind := state.AgentRecordOf(name)
	if kind == nil || reflect.TypeOf(value) != reflect.TypeOf(kind.New()) {
		return false, fmt.Errorf("read record %q: state.AgentRecords has no such record of type %T", name, value)
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

// HasMeta reports whether PutMeta has stored a value under the name. The record may be unreadable.
func (r Reader) HasMeta(name string) bool {
	return firstRow[localRecord](r, nil, agentMetaTable, name) != nil
}

// MetaKeys returns the names with the prefix under which PutMeta has stored values.
func (r Reader) MetaKeys(prefix string) []string {
	var names []string
	for _, record := range listRows[localRecord](r, nil, agentMetaTable, "id_prefix", prefix) {
		names = append(names, record.key)
	}
	return names
}

// readLocalRecord decodes the unencrypted part of a record into open and the secret part into secret, unless these
// are nil.
func (r Reader) readLocalRecord(t Table, key string, open, secret any) (bool, error) {
	record := firstRow[localRecord](r, nil, t, key)
	if record == nil {
		return false, nil
	}
	unknown, err := record.decode(open, secret)
	if err != nil {
		r.quarantine(t, record, err)
		return false, fmt.Errorf("read %s %q: %w", t, readableKey(key), err)
	}
	for _, path := range unknown {
		r.reportUnknown(unknownField(t, path))
	}
	return true, nil
}

// decode decodes the unencrypted part of a record into open and the secret part into secret, unless these are nil. It
// returns the fields of the record that this build does not know.
func (record *localRecord) decode(open, secret any) (unknown []string, err error) {
	if open != nil {
		unknown, err = decodeLocalRecord(record.payload, open)
	}
	if err == nil && record.secret != nil {
		var inSecret []string
		inSecret, err = decodeLocalRecord(record.secret, secret)
		unknown = append(unknown, inSecret...)
	}
	if err == nil && len(unknown) == 0 && record.unopenedSecret == nil {
		record.hasKnownFields.Store(true)
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

// carryUnknownFields adds to a record the fields of the record that it replaces which this build does not know.
func (record *localRecord) carryUnknownFields(t Table, old *localRecord) error {
	if old.hasKnownFields.Load() {
		return nil
	}
	open, secret := newLocalValues(t, record.key)
	var openCarried, secretCarried bool
	var err error
	if record.payload, openCarried, err = carryUnknownFields(old.payload, record.payload, open); err != nil {
		return err
	}
	record.secret, secretCarried, err = carryUnknownFields(old.secret, record.secret, secret)
	record.hasKnownFields.Store(!openCarried && !secretCarried)
	return err
}

// newLocalValues returns pointers to zero values of the types of the unencrypted and of the secret part of a local
// record. Each is nil if this build has no such part.
func newLocalValues(t Table, key string) (open, secret any) {
	open = tableDefsByTable[t].newRecord(key)
	switch kind := state.AgentRecordOf(key); {
	case t == taskLocalsTable:
		secret = new(state.TaskSecrets)
	case t == agentMetaTable && kind != nil && kind.Sealed:
		open, secret = nil, open
	}
	return open, secret
}
