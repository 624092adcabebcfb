package store

import (
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// fieldFiller fills values. A field's value follows from its name, so a field read under another name has the wrong value.
type fieldFiller struct {
	types []reflect.Type // the types around the value
}

func (f fieldFiller) fill(v reflect.Value, name string) {
	hash := fnv.New32a()
	io.WriteString(hash, name)
	number := 1 + int64(hash.Sum32()%100)
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(1767225600+number, 0).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(number)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(number))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(number) / 2)
	case reflect.String:
		v.SetString(name)
	case reflect.Interface:
		v.Set(reflect.ValueOf(name))
	case reflect.Pointer:
		if slices.Contains(f.types, v.Type().Elem()) {
			return // a recursive type's value
		}
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), name)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(name))
			return
		}
		if slices.Contains(f.types, v.Type().Elem()) {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(v.Index(0), name)
	case reflect.Map:
		key, element := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(key, name)
		f.fill(element, name)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, element)
	case reflect.Struct:
		inner := fieldFiller{append(slices.Clone(f.types), v.Type())}
		for _, field := range storedFields(v.Type()) {
			if target, err := v.FieldByIndexErr(field.fieldIndex); err == nil {
				inner.fill(target, field.storedName)
			}
		}
	default:
		panic("a value of type " + v.Type().String() + " cannot be stored")
	}
}

// newFilled returns a pointer to a filled value with zero's type.
func newFilled(zero any) any {
	fieldFiller{}.fill(reflect.ValueOf(zero).Elem(), "value")
	return zero
}

// putEveryKind stores a record of each kind, with a value in each field, and closes the store.
func putEveryKind(t *testing.T, s *Store) {
	t.Helper()
	mustUpdate(t, s, func(tx *Txn) {
		for _, k := range tableDefs {
			switch {
			case k.table == Allocations:
				tx.PutScheduledAllocation(newFilled(new(api.Allocation)).(*api.Allocation))
			case !k.isReadByAgentOnly:
				tx.putObjectSettingIndexes(k, newFilled(k.newZeroRecord("")))
			}
		}
	})
	alloc := s.Snapshot().Allocations(nil, "")[0]
	local := newFilled(new(state.TaskRecord)).(*state.TaskRecord).Fields(func(startID string) *driver.Handle {
		h := newFilled(new(state.HandleRecord)).(*state.HandleRecord).Handle()
		h.Config.ID = startID
		return h
	})
	local.FirstPendingDestroy.Handle.DriverState = []byte(`{"Env":{"NOMAD_ALLOC_ID":"x"}}`) // is sealed
	mustSucceed(t, s.PutTask(alloc.ID, "task", local, newFilled(new(api.TaskState)).(*api.TaskState), state.DurabilitySync)())
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutCheckResult(alloc.ID, newFilled(new(api.AllocCheckStatus)).(*api.AllocCheckStatus))
		for _, kind := range state.AgentRecordKinds {
			name := kind.NameOrPrefix
			if strings.HasSuffix(name, "/") {
				name += alloc.ID
			}
			value := newFilled(kind.NewRecord())
			if key, ok := value.(*state.HookTokenSigningKey); ok {
				*key = []byte(strings.Repeat("k", state.HookKeySize))
			}
			tx.PutAgentRecord(name, value)
		}
	})
	mustSucceed(t, s.Close())
	const quarantined = "task_local\x00ID\x00other"
	payload, err := s.sealer.encodeQuarantineRecord(quarantined, quarantinedRecord{Cause: "damaged", Time: time.Unix(1, 0).UTC(), Value: []byte("damaged")})
	mustSucceed(t, err)
	putRawRecords(t, filepath.Dir(s.file.path), bucketWrite{quarantineBucket, quarantined, encodeRecord(quarantineBucket, quarantined, 1, payload)})
}

// copyState copies a data directory in stateFixtures to a temporary directory.
func copyState(t *testing.T, from string) (to string) {
	t.Helper()
	to = t.TempDir()
	for _, name := range []string{FileName, "keyring.json"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		mustSucceed(t, err)
		mustSucceed(t, os.WriteFile(filepath.Join(to, name), text, 0o600))
	}
	return to
}

// The directories below testdata/state are read completely, and those of releases are not changed. This build made the
// directory next, which has a record of each kind with a value in each field: see make reference.
func TestReferenceStateFixtures(t *testing.T) {
	next := filepath.Join(stateFixtures, "next")
	dir := t.TempDir()
	s, err := openAs(t, dir, "next", currentFormat)
	mustSucceed(t, err)
	putEveryKind(t, s)
	made := copyState(t, dir)
	s, err = openAs(t, dir, "next", currentFormat)
	mustSucceed(t, err)
	want, wantQuarantine := storeContent(s), len(s.quarantinedRecordByName)

	for _, from := range releasedStates(t) {
		t.Run(filepath.Base(from), func(t *testing.T) {
			if err := verifyFrozen(from); err != nil {
				t.Error(err)
			}
			checkHelperProtocols(t, from)
			dir := copyState(t, from)
			s := openWithKeys(t, dir)
			checkAdopted(t, s, from)
			mustSucceed(t, s.Close())
			contents, err := InspectFile(filepath.Join(dir, FileName)) // in this build's format
			if err != nil || len(contents.Damage) > 0 || len(contents.UnknownParts) > 0 || len(contents.Quarantine) != wantQuarantine {
				t.Errorf("damage %v, unknown %v, quarantine %v, %v", contents.Damage, contents.UnknownParts, contents.Quarantine, err)
			}
		})
	}
	if commit, err := os.ReadFile(filepath.Join(next, commitFile)); err != nil || len(commit) == 0 {
		t.Errorf("%s: %q, %v", commitFile, commit, err)
	}
	problems := compareState(t, next, want, wantQuarantine)
	if len(problems) > 0 && golden.Updating() {
		// Each directory has other keys, so an equal one is not written again.
		for _, name := range []string{FileName, "keyring.json"} {
			text, err := os.ReadFile(filepath.Join(made, name))
			mustSucceed(t, err)
			mustSucceed(t, os.WriteFile(filepath.Join(next, name), text, 0o600))
		}
		problems = compareState(t, next, want, wantQuarantine)
	}
	if len(problems) > 0 {
		t.Errorf("%s differs from what this build stores: %s\n%s", next, golden.Advice, strings.Join(problems, "\n"))
	}
}

// compareState returns how the records in a data directory, which needs no conversion, differ from the given ones.
func compareState(t *testing.T, from string, want map[recordKey]any, wantQuarantine int) (problems []string) {
	t.Helper()
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	dir := copyState(t, from)
	contents, err := InspectFile(filepath.Join(dir, FileName))
	if err != nil || len(contents.Damage) > 0 || len(contents.UnknownParts) > 0 || len(contents.Quarantine) != wantQuarantine {
		report("damage %v, unknown %v, quarantine %v, %v", contents.Damage, contents.UnknownParts, contents.Quarantine, err)
		return problems
	}
	s := openWithKeys(t, dir)
	if d := s.Damage(); len(d) > 0 || len(s.sealer.decryptErrors) > 0 {
		report("damage %v, sealed %v", d, s.sealer.decryptErrors)
	}
	content := storeContent(s)
	for key, object := range content {
		if record, ok := object.(*localRecord); ok {
			unknown, err := record.decode(newLocalRecordValues(key.table, key.key))
			if err != nil || len(unknown) > 0 {
				report("%s %q: unknown fields %q, %v", key.table, key.key, unknown, err)
			}
			record.hasOnlyKnownFields.Store(false) // as in want's records
		}
	}
	for key, object := range want {
		if got := content[key]; !reflect.DeepEqual(got, object) {
			report("%s %q: %s", key.table, readableKey(key.key), firstDifference(string(key.table), decodedValue(t, key, got), decodedValue(t, key, object)))
		}
	}
	if len(content) != len(want) {
		report("%d records, want %d", len(content), len(want))
	}
	return problems
}

// decodedValue returns a storeContent record's value.
func decodedValue(t *testing.T, key recordKey, object any) reflect.Value {
	t.Helper()
	record, ok := object.(*localRecord)
	if !ok {
		return reflect.ValueOf(object)
	}
	open, secret := newLocalRecordValues(key.table, key.key)
	if _, err := record.decode(open, secret); err != nil {
		t.Error(err)
	}
	record.hasOnlyKnownFields.Store(false) // a later comparison must not see that this one has decoded the record
	return reflect.ValueOf([]any{open, secret})
}

// Each record kind is in the directory next, and each of its fields has a value.
func TestStateFixtureIsComplete(t *testing.T) {
	s := openWithKeys(t, copyState(t, filepath.Join(stateFixtures, "next")))
	content := storeContent(s)
	found := make(map[string]bool)
	for key, object := range content {
		name := string(key.table)
		if kind := state.AgentRecordKindOf(key.key); key.table == agentMetaTable && kind != nil {
			name += " " + kind.NameOrPrefix
		}
		found[name] = true
		if record, ok := object.(*localRecord); ok && record.secretPart != nil && (key.table == taskLocalsTable || key.table == taskHandlesTable) {
			found[name+" (sealed)"] = true
		}
	}
	for _, name := range []string{metaBucket + " " + indexKey, quarantineBucket, jobBucket, string(Variables) + " (sealed)", string(taskStatesTable) + " (written)"} {
		found[name] = true // each state has these
	}
	for _, r := range storedRecords() {
		if !found[r.Name] {
			t.Errorf("no record of %s", r.Name)
		}
	}
}
