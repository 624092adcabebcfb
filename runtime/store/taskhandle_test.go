package store

import (
	"cmp"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// runningFields returns the fields of a running task.
func runningFields(startID, env string) record.Fields {
	return record.Fields{StartID: startID, Handle: &driver.Handle{
		Version: 1, Config: &driver.TaskConfig{ID: startID, Env: map[string]string{"A": env}}, DriverState: []byte("pid 7"),
	}}
}

// storedHandleIDs returns the ids of the starts with a stored handle of the allocation a's task web.
func storedHandleIDs(s *Store) (ids []string) {
	const prefix = "a\x00web\x00"
	for _, r := range listRows[localRecord](s.Snapshot().Reader, nil, taskHandlesTable, "id_prefix", prefix) {
		ids = append(ids, r.key[len(prefix):])
	}
	return ids
}

func TestHandleIsWrittenOncePerStart(t *testing.T) {
	var recordCounts []int
	c := configWithKeys(t.TempDir())
	c.OnWrite = func(_ time.Duration, records int, _ error) { recordCounts = append(recordCounts, records) }
	s, err := Open(t.Context(), c)
	mustSucceed(t, err)
	mustUpdate(t, s, func(tx *Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "a"}) })
	recordCounts = nil
	put := func(fields record.Fields) {
		t.Helper()
		mustSucceed(t, s.PutTask("a", "web", fields, &api.TaskState{State: "running"}, state.DurabilitySync)())
	}
	reopen := func() {
		t.Helper()
		mustSucceed(t, s.Close())
		s = openWithKeys(t, filepath.Dir(c.StateFilePath))
	}
	running := runningFields("1", "b")
	put(running)
	stopping := running
	stopping.KillRequested = true
	stopping.FirstPendingDestroy = &record.PendingDestroy{StartID: "1", Handle: running.Handle}
	put(stopping)
	if got, want := recordCounts, []int{3, 1}; !reflect.DeepEqual(got, want) {
		t.Errorf("records per put %v, want %v", got, want)
	}

	other := runningFields("1", "of another environment") // does not replace what was started
	put(other)
	reopen()
	if got, _, err := taskFieldsWithSecrets(s.Snapshot().Reader, "a", "web"); err != nil || !reflect.DeepEqual(got.Handle, running.Handle) {
		t.Errorf("handle %+v, %v; want %+v", got.Handle, err, running.Handle)
	}
	if got, _, err := s.Snapshot().TaskFields("a", "web"); err != nil || got.Handle.Config.Env != nil || string(got.Handle.DriverState) != "pid 7" {
		t.Errorf("without the environment: handle %+v, %v", got.Handle, err)
	}

	next := runningFields("2", "c")
	next.FirstPendingDestroy = &record.PendingDestroy{StartID: "1", Handle: running.Handle}
	put(next)
	if got, want := storedHandleIDs(s), []string{"1", "2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("handles of %q, want %q", got, want)
	}
	if got, _, err := taskFieldsWithSecrets(s.Snapshot().Reader, "a", "web"); err != nil || !reflect.DeepEqual(got, next) {
		t.Errorf("fields %+v, %v; want %+v", got, err, next)
	}
	next.FirstPendingDestroy = nil
	put(next)
	if got, want := storedHandleIDs(s), []string{"2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("after the destroy: handles of %q, want %q", got, want)
	}
	put(record.Fields{})
	if got := storedHandleIDs(s); got != nil {
		t.Errorf("after the end: handles of %q", got)
	}
}

// The agent finds a host process by the driver's state, even if that is sealed because it contains a variable's name.
func TestFieldsHaveSealedDriverState(t *testing.T) {
	s := openWithKeys(t, t.TempDir())
	mustUpdate(t, s, func(tx *Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "a"}) })
	fields := runningFields("1", "b")
	fields.Handle.DriverState = []byte(`{"pid":7,"denied":["NOMAD_ALLOC_ID"]}`)
	mustSucceed(t, s.PutTask("a", "web", fields, &api.TaskState{State: "running"}, state.DurabilitySync)())
	if got, _, err := s.Snapshot().TaskFields("a", "web"); err != nil || !reflect.DeepEqual(got.Handle.DriverState, fields.Handle.DriverState) {
		t.Errorf("handle %+v, %v", got.Handle, err)
	}
}

// A task whose handle is missing or unreadable is still known by its start's id.
func TestTaskWithoutItsHandle(t *testing.T) {
	for name, value := range map[string][]byte{"missing": nil, "damaged": []byte("damaged")} {
		dir := t.TempDir()
		s := openWithKeys(t, dir)
		mustUpdate(t, s, func(tx *Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "a"}) })
		fields := runningFields("1", "b")
		fields.RestartState.EndsInWindow = 2
		mustSucceed(t, s.PutTask("a", "web", fields, &api.TaskState{State: "running"}, state.DurabilitySync)())
		mustSucceed(t, s.Close())
		putRawRecords(t, dir, bucketWrite{string(taskHandlesTable), "a\x00web\x001", value})
		s = openWithKeys(t, dir)
		fields.Handle = nil
		if got, ok, err := taskFieldsWithSecrets(s.Snapshot().Reader, "a", "web"); !ok || err != nil || !reflect.DeepEqual(got, fields) {
			t.Errorf("%s: fields %+v, %t, %v", name, got, ok, err)
		}
		if damage := s.Damage(); (len(damage) == 1) != (value != nil) {
			t.Errorf("%s: damage %v", name, damage)
		}
	}
}

// A handle that a task record of format 1 has inside gets its own record with the next put, and is the same.
func TestHandleOfFormat1(t *testing.T) {
	s := openWithKeys(t, copyState(t, filepath.Join(stateFixtures, "0.1")))
	alloc := s.Snapshot().Allocations(nil, "")[0]
	before, ok, err := taskFieldsWithSecrets(s.Snapshot().Reader, alloc.ID, "task")
	if !ok || err != nil || before.Handle == nil || before.FirstPendingDestroy == nil || before.FirstPendingDestroy.Handle == nil {
		t.Fatalf("fields %+v, %t, %v", before, ok, err)
	}
	before.FirstPendingDestroy.StartID = "other" // the fixture has the same id in both
	mustSucceed(t, s.PutTask(alloc.ID, "task", before, &api.TaskState{State: "running"}, state.DurabilitySync)())
	mustSucceed(t, s.Close())
	s = openWithKeys(t, filepath.Dir(s.file.path))
	if got, _, err := taskFieldsWithSecrets(s.Snapshot().Reader, alloc.ID, "task"); err != nil || !reflect.DeepEqual(got, before) {
		t.Errorf("fields %+v, %v; want %+v", got, err, before)
	}
	if handles := listRows[localRecord](s.Snapshot().Reader, nil, taskHandlesTable, "id_prefix", ""); len(handles) == 0 {
		t.Error("no handle has a record of its own")
	}
}

// taskFieldsWithSecrets returns a task's fields with the secrets of their handles.
func taskFieldsWithSecrets(r Reader, allocID, task string) (record.Fields, bool, error) {
	fields, ok, err := r.TaskFields(allocID, task)
	complete := func(startID string, h *driver.Handle) *driver.Handle {
		stored, handleErr := r.TaskHandle(allocID, task, startID)
		err = errors.Join(err, handleErr)
		return cmp.Or(stored, h) // a handle of format 1 is not stored apart
	}
	if fields.Handle != nil {
		fields.Handle = complete(fields.HandleStartID(), fields.Handle)
	}
	for d := fields.FirstPendingDestroy; d != nil; d = d.Next {
		if d.Handle != nil {
			d.Handle = complete(d.StartID, d.Handle)
		}
	}
	return fields, ok, err
}
