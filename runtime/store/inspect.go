package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// FileContents is a state file's content as read by InspectFile.
type FileContents struct {
	SizeBytes     int64
	Format        int    // Format is the file format's number; 0 if its record is damaged
	WriterVersion string // WriterVersion is the nomad-lite version that wrote the file
	Index         uint64 // Index is the last visible change's index
	Records       []*InspectedRecord
	Quarantine    []QuarantinedEntry
	Damage        []Damage // Damage is what Open would report
	// UnknownParts are state parts written by another build and not supported by this one.
	UnknownParts []UnknownPart
}

// InspectedRecord is a state file record that InspectFile could decode.
type InspectedRecord struct {
	Table     Table
	Key       string // Key is the key with slashes between its parts
	Index     uint64 // Index is the index of the change that wrote the record. For a change without an index, it is the last index before the change.
	SizeBytes int    // SizeBytes is the record's size in the file; it does not include an allocation's job

	object   any
	isSealed bool // part of the record is encrypted and therefore missing
}

// QuarantinedEntry is an unreadable record in the quarantine.
type QuarantinedEntry struct {
	Table Table
	Key   string
	Cause string
	Time  time.Time
	Value []byte // Value is the original record; nil if it is sealed
	// ReadableByThisBuild: this build can read the record, so Open takes it out of the quarantine.
	ReadableByThisBuild bool
}

// DamageErr returns an error with the first unreadable part, nil if the whole file is readable.
func (c *FileContents) DamageErr() error {
	if len(c.Damage) == 0 {
		return nil
	}
	return errors.New(c.Damage[0].NameAndCause())
}

// InspectFile reads a state file that no agent uses, and does not change it. It reports damage in the result, not as an error.
// It fails like [Open], and also if the file does not exist.
func InspectFile(path string) (*FileContents, error) {
	handle, err := openAndLockStateFile(context.Background(), path, false)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	s, err := newStore(Config{StateFilePath: path, Logger: hclog.NewNullLogger()}, currentFormat)
	if err != nil {
		return nil, err
	}
	if err := s.checkFormatAndNoteMigration(handle); err != nil {
		return nil, err
	}
	if _, err := s.load(handle); err != nil {
		return nil, err
	}
	c := &FileContents{Index: s.lastIndex, Damage: s.damagedParts}
	if info, err := handle.Stat(); err == nil {
		c.SizeBytes = info.Size()
	}
	if format, err := readFormatRecord(handle); err == nil && format != nil {
		c.Format, c.WriterVersion = format.Format, format.WriterVersion
	}
	c.Quarantine = s.unquarantinedRecords
	for _, name := range slices.Sorted(maps.Keys(s.quarantinedRecordByName)) {
		c.Quarantine = append(c.Quarantine, s.sealer.inspectQuarantined(name, s.quarantinedRecordByName[name]))
	}
	txn := s.memDB.Txn(false)
	contents := Reader{beginRead: func() *memdb.Txn { return txn }}
	_, err = visitReadableRecords(handle, "", func(bucket string, k, value []byte) {
		home, r, err := decodeRecordAndFindTable(bucket, string(k), value)
		kind := tableDefsByTable[Table(home)]
		if kind == nil || err != nil {
			return
		}
		object, err := txn.First(home, "id", string(k))
		if id, ok := strings.CutPrefix(string(k), state.EndedAllocPrefix); ok && object == nil && kind.table == agentMetaTable && contents.AllocationEnded(id) {
			object = newEndedRecord(id)
		}
		if err != nil || object == nil {
			return
		}
		object = objectOfRow(contents, object)
		if record, ok := object.(*localRecord); ok {
			unknown, _ := record.decode(newLocalRecordValues(kind.table, record.key)) // an unreadable record is reported by the agent that needs it
			for _, path := range unknown {
				s.countUnknownPart(unknownFieldName(kind.table, path))
			}
		}
		box, _, err := decodeEnvelope(r.payload)
		c.Records = append(c.Records, &InspectedRecord{
			Table: kind.table, Key: readableKey(string(k)), Index: r.changeIndex, SizeBytes: len(value), object: object,
			isSealed: err == nil && box != nil && !isUnencryptedSecretBox(box),
		})
	})
	slices.SortStableFunc(c.Records, func(a, b *InspectedRecord) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Key, b.Key))
	})
	c.UnknownParts = s.listUnknownParts()
	return c, err
}

// inspectQuarantined returns a quarantined record's fields, as far as they can be read with the keys of s.
func (s *sealer) inspectQuarantined(name string, encodedRecord []byte) QuarantinedEntry {
	table, key, _ := strings.Cut(name, "\x00")
	q := QuarantinedEntry{Table: Table(table), Key: readableKey(key)}
	var storedRecord quarantinedRecord
	r, err := decodeRecord(quarantineBucket, name, encodedRecord)
	if err == nil {
		storedRecord, err = s.decryptQuarantinedRecord(name, r.payload)
	}
	var missingKeyErr *keyring.MissingKeyError
	if err != nil && !errors.As(err, &missingKeyErr) {
		q.Cause = err.Error()
		return q
	}
	q.Cause, q.Time, q.Value = storedRecord.Cause, storedRecord.Time, storedRecord.Value
	return q
}

// Allocations returns the allocations in the state file. Their field Job is nil if the job record was lost.
func (c *FileContents) Allocations() []*api.Allocation {
	var allocs []*api.Allocation
	for _, r := range c.Records {
		if alloc, ok := r.object.(*api.Allocation); ok {
			allocs = append(allocs, alloc)
		}
	}
	return allocs
}

// RecordedTask is a task that may have a process or a container according to the state.
type RecordedTask struct {
	AllocID, Name string
	Driver        string // driver name; empty if the state does not have it
	DriverState   []byte // driver state from the task's handle; empty if the state does not have it in clear
}

// TasksThatMayRun returns the tasks that may have a process or a container according to the state: the task record has a start,
// a handle or a pending destroy, or cannot be decoded.
func (c *FileContents) TasksThatMayRun() (tasks []RecordedTask) {
	groups := make(map[string]*api.TaskGroup)
	for _, alloc := range c.Allocations() {
		if alloc.Job != nil {
			groups[alloc.ID] = model.FindGroup(alloc.Job, alloc.TaskGroup)
		}
	}
	driverStates := make(map[string][]byte) // keyed by the handle's record
	for _, r := range c.Records {
		var handle state.HandleRecord
		if local, ok := r.object.(*localRecord); ok && r.Table == taskHandlesTable && r.DecodeUnencryptedPart(&handle) == nil {
			driverStates[local.key] = handle.DriverState
		}
	}
	for _, r := range c.Records {
		local, ok := r.object.(*localRecord)
		if !ok || r.Table != taskLocalsTable {
			continue
		}
		var record state.TaskRecord
		hasHandle := func() bool { return record.HandleStartID != "" || record.HandleOfFormat1 != nil }
		if err := r.DecodeUnencryptedPart(&record); err == nil && record.StartID == "" && !hasHandle() && record.FirstPendingDestroy == nil {
			continue
		}
		var task RecordedTask
		task.AllocID, task.Name, _ = strings.Cut(local.key, "\x00")
		task.DriverState = driverStates[local.key+"\x00"+record.HandleStartID]
		if record.HandleOfFormat1 != nil {
			task.DriverState = record.HandleOfFormat1.DriverState
		}
		if group := groups[task.AllocID]; group != nil {
			for _, t := range group.Tasks {
				if t.Name == task.Name {
					task.Driver = t.Driver
				}
			}
		}
		tasks = append(tasks, task)
	}
	return tasks
}

// AgentRecordsByNameSuffix returns the records that PutAgentRecord has stored under names with the prefix. The result's keys
// are the names without the prefix.
func (c *FileContents) AgentRecordsByNameSuffix(prefix string) map[string]*InspectedRecord {
	records := make(map[string]*InspectedRecord)
	for _, r := range c.Records {
		if local, ok := r.object.(*localRecord); ok && r.Table == agentMetaTable && strings.HasPrefix(local.key, prefix) {
			records[strings.TrimPrefix(local.key, prefix)] = r
		}
	}
	return records
}

// DecodeUnencryptedPart decodes the unencrypted part of an agent record into value, a pointer to a zero value.
func (r *InspectedRecord) DecodeUnencryptedPart(value any) error {
	local, ok := r.object.(*localRecord)
	if !ok || local.unencryptedPart == nil {
		return fmt.Errorf("read %s %q: the record has no unencrypted value", r.Table, r.Key)
	}
	if _, err := decodeAndCheckLocalRecord(local.unencryptedPart, value); err != nil {
		return fmt.Errorf("read %s %q: %w", r.Table, r.Key, err)
	}
	return nil
}

// Redacted returns the record's object as encoding/json would decode it, without empty values, and with [RedactedText] in place
// of secrets. The field Sealed replaces a part that is encrypted in the file.
func (r *InspectedRecord) Redacted() (any, error) {
	object := r.object
	if record, ok := object.(*localRecord); ok && record.unencryptedPart != nil { // without a payload, the whole record is encrypted
		object = tableDefsByTable[r.Table].newZeroRecord(record.key)
		if object == nil {
			return nil, fmt.Errorf("read %s %q: this build has no such record", r.Table, r.Key)
		}
		if err := decodeMsgpack(record.unencryptedPart, object); err != nil {
			return nil, fmt.Errorf("read %s %q: %w", r.Table, r.Key, err)
		}
	}
	plain := redactedJSONValue(reflect.ValueOf(object))
	if !r.isSealed {
		return plain, nil
	}
	fields, _ := plain.(map[string]any)
	if fields == nil {
		fields = make(map[string]any)
	}
	fields["Sealed"] = RedactedText
	return fields, nil
}

// RedactedText replaces a value that may be a secret.
const RedactedText = "(redacted)"

// secretNamePattern matches names of fields and keys that hold secrets and are not marked as secret.
var secretNamePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)passw|secret|token|credential|private_?key|api_?key|^auth`)
})

// redactedJSONValue returns v as encoding/json would decode it, with RedactedText in place of secrets, and nil if v is empty.
func redactedJSONValue(v reflect.Value) any {
	if t, ok := asTime(v); ok {
		if t.IsZero() {
			return nil
		}
		return t.Format(time.RFC3339Nano)
	}
	switch v.Kind() {
	case reflect.Invalid:
		return nil
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return redactedJSONValue(v.Elem())
	case reflect.Struct:
		fields := make(map[string]any)
		for _, f := range storedFields(v.Type()) {
			if value, err := v.FieldByIndexErr(f.fieldIndex); err == nil { // error: an embedded pointer is nil
				addRedacted(fields, f.storedName, value, f.isSecret)
			}
		}
		return valueOrNilIfEmpty(fields, len(fields))
	case reflect.Map:
		fields := make(map[string]any)
		for _, key := range v.MapKeys() {
			addRedacted(fields, fmt.Sprint(key.Interface()), v.MapIndex(key), false)
		}
		return valueOrNilIfEmpty(fields, len(fields))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return valueOrNilIfEmpty(fmt.Sprintf("%d bytes", v.Len()), v.Len())
		}
		elements := make([]any, 0, v.Len())
		for i := range v.Len() {
			elements = append(elements, redactedJSONValue(v.Index(i)))
		}
		return valueOrNilIfEmpty(elements, len(elements))
	case reflect.String:
		return valueOrNilIfEmpty(v.String(), v.Len())
	}
	if v.IsZero() {
		return nil
	}
	return v.Interface()
}

func asTime(v reflect.Value) (time.Time, bool) {
	if !v.IsValid() || v.Kind() != reflect.Struct {
		return time.Time{}, false
	}
	t, ok := v.Interface().(time.Time)
	return t, ok
}

func valueOrNilIfEmpty(v any, length int) any {
	if length == 0 {
		return nil
	}
	return v
}

// addRedacted stores redactedJSONValue's result for v in fields under name, unless the result is nil. If v is secret, it
// replaces the whole value by RedactedText. In a secret map it replaces the values, not the keys.
func addRedacted(fields map[string]any, name string, v reflect.Value, isSecret bool) {
	plain := redactedJSONValue(v)
	if plain == nil {
		return
	}
	if isSecret || secretNamePattern().MatchString(name) {
		plain = redactLeaves(plain)
	}
	fields[name] = plain
}

func redactLeaves(plain any) any {
	if m, ok := plain.(map[string]any); ok {
		for key, value := range m {
			m[key] = redactLeaves(value)
		}
		return m
	}
	return RedactedText
}
