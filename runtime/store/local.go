package store

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// ErrRunnerRecordsDeleted: a runner has tried to store a record for a deleted allocation, after DeleteRunnerRecordsAndServices
// has removed its records.
var ErrRunnerRecordsDeleted = errors.New("allocation has been forgotten")

// allocLocalRecord has what an allocation's runner stores for the next agent: the last check results. Its tasks have their own
// records.
type allocLocalRecord struct {
	CheckResultByID map[string]*api.AllocCheckStatus `store:"checks"`
}

// maxCommitDelay maps a durability to how long a write is delayed at most so that other writes can share its commit.
var maxCommitDelay = [...]time.Duration{
	state.DurabilitySync:    0,
	state.DurabilityGrouped: time.Millisecond,
	state.DurabilityAsync:   50 * time.Millisecond,
}

// PutTaskState stores a task's state with its events. An unchanged state is not written again.
func (s *Store) PutTaskState(allocID, task string, status *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return s.putTaskRecords(allocID, task, durability, 1, func(tx *Txn) { tx.putTaskState(allocID, task, status) })
}

// PutTask stores a task record's fields and the task's state in one commit: after a crash either both are stored or neither.
// The next agent needs the fields to restore the task. Unchanged records are not written again. A start's handle is written once:
// a later handle with the start's id does not replace it.
func (s *Store) PutTask(allocID, task string, local record.Fields, status *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return s.putTaskRecords(allocID, task, durability, 2, func(tx *Txn) { tx.PutTask(allocID, task, local, status) })
}

// putTaskRecords enqueues a put for one task's records. The writer encodes them, because it drops a put if a later one in the same
// batch replaces it. See updateRequest.recordCount.
func (s *Store) putTaskRecords(allocID, task string, durability state.Durability, recordCount int, put func(*Txn)) state.WaitDurableFunc {
	r := &updateRequest{
		taskKey: allocID + "\x00" + task, recordCount: recordCount, writeDeadline: time.Now().Add(maxCommitDelay[durability]),
		updateFn: func(tx *Txn) error {
			put(tx)
			return nil
		},
	}
	if _, err := s.queue.push(r); err != nil {
		return func() error { return err }
	}
	return func() error {
		<-r.done
		if r.panicValue != nil {
			panic(r.panicValue)
		}
		return r.err
	}
}

// PutTask is like [Store.PutTask], but stores the records in this transaction.
func (tx *Txn) PutTask(allocID, task string, local record.Fields, status *api.TaskState) {
	tx.putTaskFields(allocID, task, local)
	tx.putTaskState(allocID, task, status)
}

func (tx *Txn) putTaskFields(allocID, task string, local record.Fields) {
	tx.putNewTaskHandles(allocID, task, local.Handles())
	unencrypted, secret, err := encodeSplittingSecrets(state.NewTaskRecord(local))
	tx.putEncodedTaskRecord(taskLocalsTable, allocID, allocID+"\x00"+task, unencrypted, secret, err)
}

func (tx *Txn) putTaskState(allocID, task string, status *api.TaskState) {
	unencrypted, err := encodeMsgpack(newTaskStateRecord(status))
	tx.putEncodedTaskRecord(taskStatesTable, allocID, allocID+"\x00"+task, unencrypted, nil, err)
}

// putNewTaskHandles stores a task's handles that are not stored yet, and deletes the handles of other starts. handles yields each
// with its start's id.
func (tx *Txn) putNewTaskHandles(allocID, task string, handles iter.Seq2[string, *driver.Handle]) {
	prefix := allocID + "\x00" + task + "\x00"
	stored := listRows[localRecord](tx.Reader, nil, taskHandlesTable, "id_prefix", prefix)
	kept := make([]string, 0, 1)
	for startID, h := range handles {
		key := prefix + startID
		if slices.Contains(kept, key) {
			continue
		}
		kept = append(kept, key)
		if !slices.ContainsFunc(stored, func(r *localRecord) bool { return r.key == key }) {
			unencrypted, secret, err := encodeSplittingSecrets(state.NewHandleRecord(h))
			tx.putEncodedTaskRecord(taskHandlesTable, allocID, key, unencrypted, secret, err)
		}
	}
	for _, r := range stored {
		if !slices.Contains(kept, r.key) {
			tx.deleteObjectIfExists(taskHandlesTable, r.key)
		}
	}
}

func (tx *Txn) putEncodedTaskRecord(t Table, allocID, key string, unencrypted, secret []byte, encodeErr error) {
	if encodeErr != nil {
		tx.setFirstError(fmt.Errorf("store %s %q: %w", t, readableKey(key), encodeErr))
		return
	}
	tx.putLocalRecordOfKnownAlloc(t, allocID, key, unencrypted, secret)
}

// PutCheckResult stores a check's last result. If the change decides whether a registered service passes its checks, its
// registration gets a new index; otherwise the change does not increase the index.
func (tx *Txn) PutCheckResult(allocID string, c *api.AllocCheckStatus) {
	tx.editAllocLocalRecord(allocID, func(s *allocLocalRecord) {
		before := s.CheckResultByID[c.ID]
		if passed := before == nil || before.Status == model.CheckSuccess; passed != (c.Status == model.CheckSuccess) {
			tx.renewServiceIndexes(allocID, c.Service)
		}
		if s.CheckResultByID == nil {
			s.CheckResultByID = make(map[string]*api.AllocCheckStatus)
		}
		s.CheckResultByID[c.ID] = c
	})
}

func (tx *Txn) editAllocLocalRecord(allocID string, edit func(*allocLocalRecord)) {
	state, err := tx.allocLocalRecord(allocID)
	if err != nil {
		tx.setFirstError(err)
		return
	}
	edit(&state)
	payload, err := encodeMsgpack(state)
	if err != nil {
		tx.setFirstError(fmt.Errorf("store %s %q: %w", allocLocalsTable, allocID, err))
		return
	}
	tx.putLocalRecordOfKnownAlloc(allocLocalsTable, allocID, allocID, payload, nil)
}

func (tx *Txn) putLocalRecordOfKnownAlloc(t Table, allocID, key string, payload, secret []byte) {
	if tx.Allocation(nil, allocID) == nil && !tx.hasLocalRecords(allocID) {
		tx.setFirstError(fmt.Errorf("store %s %q: %w", t, readableKey(key), ErrRunnerRecordsDeleted))
		return
	}
	tx.putLocalRecordIfChanged(t, key, payload, secret)
}

// putLocalRecordIfChanged stores a local table record, unless it equals the stored one. If secret is nil, and the stored record
// has a sealed part that could not be decrypted, the new record keeps that part.
func (tx *Txn) putLocalRecordIfChanged(t Table, key string, payload, secret []byte) {
	record := &localRecord{key: key, unencryptedPart: payload, secretPart: secret}
	record.hasOnlyKnownFields.Store(true)
	if old := rowByKey[localRecord](tx.Reader, nil, t, key); old != nil {
		if err := record.keepUnknownFieldsOf(t, old); err != nil {
			tx.setFirstError(fmt.Errorf("store %s %q: %w", t, readableKey(key), err))
			return
		}
		if secret == nil {
			record.undecryptedSecret = old.undecryptedSecret
		}
		if bytes.Equal(old.unencryptedPart, record.unencryptedPart) && bytes.Equal(old.secretPart, record.secretPart) && old.undecryptedSecret == record.undecryptedSecret {
			return
		}
	}
	tx.putObjectKeepingIndexes(tableDefsByTable[t], record)
}

// DeleteRunnerRecordsAndServices removes what an allocation's runner has stored for the next agent: its record and those of its
// tasks. No task of the allocation may be running. It also removes the allocation's service registrations, because the runner
// may not have deregistered them.
func (tx *Txn) DeleteRunnerRecordsAndServices(allocID string) {
	for _, s := range tx.ServicesByAllocation(nil, allocID) {
		tx.DeleteService(s.Namespace, s.ID)
	}
	for _, t := range taskTables {
		for _, r := range listRows[localRecord](tx.Reader, nil, t, "id_prefix", allocID+"\x00") {
			tx.deleteObjectIfExists(t, r.key)
		}
	}
	tx.deleteObjectIfExists(allocLocalsTable, allocID)
}

func (r Reader) hasLocalRecords(allocID string) bool {
	return rowByKey[localRecord](r, nil, allocLocalsTable, allocID) != nil || slices.ContainsFunc(taskTables[:], func(t Table) bool {
		return len(listRows[localRecord](r, nil, t, "id_prefix", allocID+"\x00")) > 0
	})
}

// TaskFields returns the fields that PutTask has stored, and false if none was stored. Handles may be without their environment: see
// TaskHandle. A handle that is missing or unreadable is nil: the start's id remains, by which the driver finds the task.
func (r Reader) TaskFields(allocID, task string) (fields record.Fields, exists bool, err error) {
	record, exists, err := r.readTaskRecord(allocID, task)
	return record.Fields(func(startID string) *driver.Handle {
		handle, _ := r.readTaskHandle(allocID, task, startID, nil) // an unreadable handle is quarantined and reported
		if handle != nil && handle.DriverState == nil {
			complete, _ := r.TaskHandle(allocID, task, startID) // the driver's state may be sealed with the environment
			return complete
		}
		return handle.Handle()
	}), exists, err
}

// TaskHookData returns the data of a task's hook that PutTask has stored, nil if there is none.
func (r Reader) TaskHookData(allocID, task, hook string) (map[string]string, error) {
	record, _, err := r.readTaskRecord(allocID, task)
	if h := record.HookRecordByName[hook]; h != nil {
		return h.Data, err
	}
	return nil, err
}

// HasTaskFields reports whether PutTask has stored fields that are readable.
func (r Reader) HasTaskFields(allocID, task string) bool {
	_, exists, err := r.readTaskRecord(allocID, task)
	return exists && err == nil
}

func (r Reader) readTaskRecord(allocID, task string) (record state.TaskRecord, exists bool, err error) {
	var secrets state.TaskSecrets
	exists, err = r.readLocalRecord(taskLocalsTable, allocID+"\x00"+task, &record, &secrets)
	record.JoinSecrets(secrets)
	return record, exists, err
}

// TaskHandle returns a start's handle that PutTask has stored, nil if there is none. What cannot be decrypted is missing in it.
func (s *Store) TaskHandle(allocID, task, startID string) (*driver.Handle, error) {
	return s.Snapshot().TaskHandle(allocID, task, startID)
}

// TaskHandle is like [Store.TaskHandle].
func (r Reader) TaskHandle(allocID, task, startID string) (*driver.Handle, error) {
	var secrets state.HandleSecrets
	handle, err := r.readTaskHandle(allocID, task, startID, &secrets)
	if handle != nil {
		handle.JoinSecrets(secrets)
	}
	return handle.Handle(), err
}

// readTaskHandle decodes a start's handle, and its secrets into secrets unless it is nil. It returns nil if there is none.
func (r Reader) readTaskHandle(allocID, task, startID string, secrets *state.HandleSecrets) (*state.HandleRecord, error) {
	var secretInto any
	if secrets != nil {
		secretInto = secrets
	}
	handle := new(state.HandleRecord)
	if ok, err := r.readLocalRecord(taskHandlesTable, allocID+"\x00"+task+"\x00"+startID, handle, secretInto); !ok {
		return nil, err
	}
	return handle, nil
}

// LastTaskEnd returns the field LastEnd that PutTask has stored; nil if there is none, or if the record is unreadable.
func (r Reader) LastTaskEnd(allocID, task string) *restart.RunEnd {
	var stored struct {
		LastEnd *state.ProcessExit `store:"last_end"`
	}
	record := rowByKey[localRecord](r, nil, taskLocalsTable, allocID+"\x00"+task)
	if record == nil || decodeMsgpackWith(&decoders, record.unencryptedPart, &stored) != nil { // TaskFields reports an unreadable record
		return nil
	}
	return (*restart.RunEnd)(stored.LastEnd)
}

// TaskState returns the state stored by PutTaskState, nil if there is none.
func (r Reader) TaskState(allocID, task string) (*api.TaskState, error) {
	state := new(api.TaskState)
	if ok, err := r.readLocalRecord(taskStatesTable, allocID+"\x00"+task, state, nil); !ok {
		return nil, err
	}
	return state, nil
}

// CheckResults returns the results stored by PutCheckResult, by check id.
func (r Reader) CheckResults(allocID string) (map[string]*api.AllocCheckStatus, error) {
	s, err := r.allocLocalRecord(allocID)
	return s.CheckResultByID, err
}

func (r Reader) allocLocalRecord(allocID string) (allocLocalRecord, error) {
	var s allocLocalRecord
	_, err := r.readLocalRecord(allocLocalsTable, allocID, &s, nil)
	return s, err
}

// AllocIDsWithLocalRecords returns the ids of the allocations with stored runner records. It includes deleted allocations,
// because their tasks may still be running.
func (r Reader) AllocIDsWithLocalRecords() []string {
	var ids []string
	for _, t := range append(taskTables[:], allocLocalsTable) {
		for _, record := range listRows[localRecord](r, nil, t, "id_prefix", "") {
			id, _, _ := strings.Cut(record.key, "\x00")
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// TaskNamesWithLocalRecords returns the names of an allocation's tasks with a record stored by its runner.
func (r Reader) TaskNamesWithLocalRecords(allocID string) []string {
	var names []string
	for _, t := range taskTables {
		for _, record := range listRows[localRecord](r, nil, t, "id_prefix", allocID+"\x00") {
			names = append(names, strings.Split(record.key, "\x00")[1])
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
		tx.setFirstError(fmt.Errorf("store record %q: state.AgentRecordKinds has no such record", name))
		return
	}
	payload, err := encodeMsgpack(value)
	if err != nil {
		tx.setFirstError(fmt.Errorf("store record %q: %w", name, err))
		return
	}
	tx.splitEndedAllocationOfRecord(name)
	if kind.IsSealed {
		tx.putLocalRecordIfChanged(agentMetaTable, name, nil, payload)
		return
	}
	tx.putLocalRecordIfChanged(agentMetaTable, name, payload, nil)
}

// DeleteAgentRecord removes PutAgentRecord's value under the name, if there is one.
func (tx *Txn) DeleteAgentRecord(name string) {
	tx.splitEndedAllocationOfRecord(name)
	tx.deleteObjectIfExists(agentMetaTable, name)
}

// ReadAgentRecord decodes the value that PutAgentRecord has stored under a name. into points to a zero value of the name's type
// in [state.AgentRecordKinds]. ReadAgentRecord returns false if there is no such record. If into has a method CheckRecord()
// error, a record is also unreadable when it returns an error. The error is a [SecretDecryptError] if the record is sealed and
// cannot be decrypted; the record is then kept.
func (r Reader) ReadAgentRecord(name string, into any) (exists bool, err error) {
	kind := state.AgentRecordKindOf(name)
	if kind == nil || reflect.TypeOf(into) != reflect.TypeOf(kind.NewRecord()) {
		return false, fmt.Errorf("read record %q: state.AgentRecordKinds has no such record of type %T", name, into)
	}
	record := rowByKey[localRecord](r, nil, agentMetaTable, name)
	switch {
	case record != nil && record.undecryptedSecret != nil:
		return false, record.undecryptedSecret.decryptErr
	case record != nil && record.secretPart != nil:
		return r.readLocalRecord(agentMetaTable, name, nil, into)
	}
	return r.readLocalRecord(agentMetaTable, name, into, nil)
}

// HasAgentRecord reports whether PutAgentRecord has stored a value under the name. The record may be unreadable.
func (r Reader) HasAgentRecord(name string) bool {
	return rowByKey[localRecord](r, nil, agentMetaTable, name) != nil
}

// AgentRecordNames returns the names with the prefix under which PutAgentRecord has stored values.
func (r Reader) AgentRecordNames(prefix string) []string {
	var names []string
	for _, record := range listRows[localRecord](r, nil, agentMetaTable, "id_prefix", prefix) {
		names = append(names, record.key)
	}
	return names
}

// readLocalRecord decodes a record's unencrypted part into unencryptedInto and the secret part into secretInto, unless these
// are nil. It returns false if there is no record. It moves an unreadable record into the quarantine.
func (r Reader) readLocalRecord(t Table, key string, unencryptedInto, secretInto any) (exists bool, err error) {
	record := rowByKey[localRecord](r, nil, t, key)
	if record == nil {
		return false, nil
	}
	unknown, err := record.decode(unencryptedInto, secretInto)
	if err != nil {
		r.quarantineRecordLater(t, record, err)
		return false, fmt.Errorf("read %s %q: %w", t, readableKey(key), err)
	}
	for _, path := range unknown {
		r.reportUnknownPartOnce(unknownFieldName(t, path))
	}
	return true, nil
}

// decode decodes a record's unencrypted part into unencryptedInto and the secret part into secretInto, unless these are nil. It
// returns the record fields unknown to this build.
func (l *localRecord) decode(unencryptedInto, secretInto any) (unknownFields []string, err error) {
	if unencryptedInto != nil {
		unknownFields, err = decodeAndCheckLocalRecord(l.unencryptedPart, unencryptedInto)
	}
	if err == nil && l.secretPart != nil && secretInto != nil {
		var inSecret []string
		inSecret, err = decodeAndCheckLocalRecord(l.secretPart, secretInto)
		unknownFields = append(unknownFields, inSecret...)
	}
	if err == nil && len(unknownFields) == 0 && l.undecryptedSecret == nil && (l.secretPart == nil || secretInto != nil) {
		l.hasOnlyKnownFields.Store(true)
	}
	return unknownFields, err
}

func decodeAndCheckLocalRecord(b []byte, v any) (unknownFields []string, err error) {
	unknownFields, err = decodeAndListUnknownFields(b, v)
	if c, ok := v.(recordChecker); ok && err == nil {
		err = c.CheckRecord()
	}
	return unknownFields, err
}

// keepUnknownFieldsOf adds the fields unknown to this build from old, the replaced record.
func (l *localRecord) keepUnknownFieldsOf(t Table, old *localRecord) error {
	if old.hasOnlyKnownFields.Load() {
		return nil
	}
	open, secret := newLocalRecordValues(t, l.key)
	var openCarried, secretCarried bool
	var err error
	if l.unencryptedPart, openCarried, err = keepUnknownFields(old.unencryptedPart, l.unencryptedPart, open); err != nil {
		return err
	}
	l.secretPart, secretCarried, err = keepUnknownFields(old.secretPart, l.secretPart, secret)
	l.hasOnlyKnownFields.Store(!openCarried && !secretCarried)
	return err
}

// newLocalRecordValues returns pointers to zero values into which the unencrypted and the secret part of a local record can be
// decoded. A pointer is nil if records with this key have no such part in this build.
func newLocalRecordValues(t Table, key string) (unencrypted, secret any) {
	unencrypted = tableDefsByTable[t].newZeroRecord(key)
	switch kind := state.AgentRecordKindOf(key); {
	case t == taskLocalsTable:
		secret = new(state.TaskSecrets)
	case t == taskHandlesTable:
		secret = new(state.HandleSecrets)
	case t == agentMetaTable && kind != nil && kind.IsSealed:
		unencrypted, secret = nil, unencrypted
	}
	return unencrypted, secret
}
