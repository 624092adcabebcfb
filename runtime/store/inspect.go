package store

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
)

// Contents has the records of a state file that Inspect has read.
type Contents struct {
	Size       int64
	Format     int    // Format is the number of the format; 0 if its record is damaged
	Writer     string // Writer is the version that has written the file
	Index      uint64 // Index is the index of the last visible change
	Records    []*Record
	Quarantine []QuarantinedEntry
	Damage     []Damage // Damage is the damage that Open would report
	// Unknown are the parts of the state that this build does not know.
	Unknown []UnknownPart
}

// Record is a record of the state file that could be decoded.
type Record struct {
	Table Table
	Key   string // Key has its parts separated by slashes
	Index uint64 // Index is the index of the change that wrote the record. For a change without an index, it is the last index before the change.
	Bytes int    // Bytes is the size of the record in the file; it does not include the job of an allocation

	object   any
	isSealed bool // a part of the record is encrypted and therefore missing
}

// QuarantinedEntry is a record that could not be read and is kept in the quarantine.
type QuarantinedEntry struct {
	Table Table
	Key   string
	Cause string
	Time  time.Time
	Value []byte // Value is the original record; nil if it is sealed
	// Readable means that this build can read the record, so that Open takes it out of the quarantine.
	Readable bool
}

// Inspect reads a state file that is not in use, and does not change it, however damaged
// it is. It fails like [Open], and also for a missing file.
func Inspect(path string) (*Contents, error) {
	handle, err := openLocked(path, false)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	s, err := newStore(Config{Path: path, Logger: hclog.NewNullLogger()}, currentFormat)
	if err != nil {
		return nil, err
	}
	if err := s.checkFormat(handle); err != nil {
		return nil, err
	}
	if _, err := s.load(handle); err != nil {
		return nil, err
	}
	c := &Contents{Index: s.index, Damage: s.damagedParts}
	if info, err := handle.Stat(); err == nil {
		c.Size = info.Size()
	}
	if format := readFormatRecord(handle); format != nil {
		c.Format, c.Writer = format.Format, format.Writer
	}
	c.Quarantine = s.released
	for _, name := range slices.Sorted(maps.Keys(s.quarantinedRecords)) {
		c.Quarantine = append(c.Quarantine, s.sealer.inspectQuarantined(name, s.quarantinedRecords[name]))
	}
	txn := s.mem.Txn(false)
	_, err = scanFile(handle, func(bucket string, k, value []byte) {
		home, r, err := tableOfRecord(bucket, string(k), value)
		kind := tableDefsByTable[Table(home)]
		if kind == nil || err != nil {
			return
		}
		object, err := txn.First(home, "id", string(k))
		if err != nil || object == nil {
			return
		}
		if record, ok := object.(*localRecord); ok {
			unknown, _ := record.decode(newLocalValues(kind.table, record.key)) // an unreadable record is reported by the agent that needs it
			for _, path := range unknown {
				s.addUnknown(unknownField(kind.table, path))
			}
		}
		box, _, err := decodeEnvelope(r.payload)
		c.Records = append(c.Records, &Record{
			Table: kind.table, Key: readableKey(string(k)), Index: r.index, Bytes: len(value), object: object,
			isSealed: err == nil && box != nil && !isPlaintextBox(box),
		})
	})
	slices.SortStableFunc(c.Records, func(a, b *Record) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Key, b.Key))
	})
	c.Unknown = s.listUnknownParts()
	return c, err
}

// inspectQuarantined returns the readable fields of a quarantined record.
func (s *sealer) inspectQuarantined(name string, sealed []byte) QuarantinedEntry {
	table, key, _ := strings.Cut(name, "\x00")
	q := QuarantinedEntry{Table: Table(table), Key: readableKey(key)}
	var storedRecord quarantinedRecord
	r, err := decodeRecord(quarantineBucket, name, sealed)
	if err == nil {
		storedRecord, err = s.openQuarantined(name, r.payload)
	}
	var missingKeyErr *keyring.MissingKeyError
	if err != nil && !errors.As(err, &missingKeyErr) {
		q.Cause = err.Error()
		return q
	}
	q.Cause, q.Time, q.Value = storedRecord.Cause, storedRecord.Time, storedRecord.Value
	return q
}

// Allocations returns the allocations in the state file. They have no job.
func (c *Contents) Allocations() []*api.Allocation {
	var allocs []*api.Allocation
	for _, r := range c.Records {
		if alloc, ok := r.object.(*api.Allocation); ok {
			allocs = append(allocs, alloc)
		}
	}
	return allocs
}

// Meta returns the records that PutMeta has stored under names with the prefix, by their names without it.
func (c *Contents) Meta(prefix string) map[string]*Record {
	records := make(map[string]*Record)
	for _, r := range c.Records {
		if local, ok := r.object.(*localRecord); ok && r.Table == agentMetaTable && strings.HasPrefix(local.key, prefix) {
			records[strings.TrimPrefix(local.key, prefix)] = r
		}
	}
	return records
}

// Decode decodes the unencrypted part of a record that PutMeta has stored into value, a pointer to a zero value.
func (r *Record) Decode(value any) error {
	local, ok := r.object.(*localRecord)
	if !ok || local.payload == nil {
		return fmt.Errorf("read %s %q: the record has no unencrypted value", r.Table, r.Key)
	}
	if _, err := decodeLocalRecord(local.payload, value); err != nil {
		return fmt.Errorf("read %s %q: %w", r.Table, r.Key, err)
	}
	return nil
}

// Redacted returns the object of the record as encoding/json would decode it, without empty values, and with
// [RedactedText] in place of secrets. The field Sealed replaces a part that is encrypted in the file.
func (r *Record) Redacted() (any, error) {
	object := r.object
	if record, ok := object.(*localRecord); ok && record.payload != nil { // without a payload, all of the record is encrypted
		object = tableDefsByTable[r.Table].newRecord(record.key)
		if object == nil {
			return nil, fmt.Errorf("read %s %q: this build has no such record", r.Table, r.Key)
		}
		if err := decode(record.payload, object); err != nil {
			return nil, fmt.Errorf("read %s %q: %w", r.Table, r.Key, err)
		}
	}
	plain := redactValue(reflect.ValueOf(object))
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

// RedactedText is the text in place of a value that may be a secret.
const RedactedText = "(redacted)"

// secretNamePattern matches the names of fields and keys that hold secrets and are not marked as secret.
var secretNamePattern = regexp.MustCompile(`(?i)passw|secret|token|credential|private_?key|api_?key|^auth`)

// redactValue returns the redacted form of v as encoding/json would decode it, and nil if v is empty.
func redactValue(v reflect.Value) any {
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
		return redactValue(v.Elem())
	case reflect.Struct:
		fields := make(map[string]any)
		for _, f := range storedFields(v.Type()) {
			if value, err := v.FieldByIndexErr(f.index); err == nil { // the error means that an embedded pointer is nil
				add(fields, f.name, value, f.isSecret)
			}
		}
		return valueOrNilIfEmpty(fields, len(fields))
	case reflect.Map:
		fields := make(map[string]any)
		for _, key := range v.MapKeys() {
			add(fields, fmt.Sprint(key.Interface()), v.MapIndex(key), false)
		}
		return valueOrNilIfEmpty(fields, len(fields))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return valueOrNilIfEmpty(fmt.Sprintf("%d bytes", v.Len()), v.Len())
		}
		elements := make([]any, 0, v.Len())
		for i := range v.Len() {
			elements = append(elements, redactValue(v.Index(i)))
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

func valueOrNilIfEmpty(v any, n int) any {
	if n == 0 {
		return nil
	}
	return v
}

// add stores the redacted form of a value in fields under name, unless it is empty. Of a map with secrets
// only the values are redacted, not the keys.
func add(fields map[string]any, name string, v reflect.Value, isSecret bool) {
	plain := redactValue(v)
	if plain == nil {
		return
	}
	if isSecret || secretNamePattern.MatchString(name) {
		plain = redactStrings(plain)
	}
	fields[name] = plain
}

func redactStrings(plain any) any {
	if m, ok := plain.(map[string]any); ok {
		for key, value := range m {
			m[key] = redactStrings(value)
		}
		return m
	}
	return RedactedText
}
