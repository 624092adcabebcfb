package store

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// TestStoreInMemory checks that a store without a file has changes, errors, watches, events and runner records like a store
// with a file, and creates no file.
func TestStoreInMemory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	synctest.Test(t, func(t *testing.T) {
		s, err := OpenMemory(Config{StateFilePath: "state.db", KeyFile: "keyring.json", Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		ws := NewWatchSet()
		s.Snapshot().Job(ws, "default", "web")
		job := testJob("web", 0)
		index := mustUpdate(t, s, func(tx *Txn) {
			tx.PutJobAndVersion(job)
			tx.PutScheduledAllocation(&api.Allocation{ID: "a", Namespace: "default", JobID: "web", Job: job})
			tx.PutVariable(&api.Variable{Namespace: "default", Path: "v", Items: api.VariableItems{"k": "secret"}})
			tx.PutAgentRecord(state.BootIDName, "value")
		})
		if index != 1 || s.Index() != 1 {
			t.Errorf("index %d, the store is at %d", index, s.Index())
		}
		if ws.Watch(time.After(time.Minute)) {
			t.Error("a watch of the job was not triggered")
		}
		if err := s.PutTask("a", "t", record.Fields{StartID: "one"}, &api.TaskState{State: "running"}, state.DurabilityAsync)(); err != nil {
			t.Error(err)
		}
		refused := errors.New("refused")
		if _, err := s.Update(t.Context(), func(tx *Txn) error { tx.DeleteAllocationAndQueueRemoval("a"); return refused }); err != refused {
			t.Errorf("error %v", err)
		}
		snapshot := s.Snapshot()
		local, known, err := snapshot.TaskFields("a", "t")
		if err != nil || !known || local.StartID != "one" {
			t.Errorf("record of the task: %+v, %v", local, err)
		}
		fact := ""
		if known, err := snapshot.ReadAgentRecord(state.BootIDName, &fact); err != nil || !known || fact != "value" {
			t.Errorf("fact %q, %v", fact, err)
		}
		if a := snapshot.Allocation(nil, "a"); a == nil || a.Job != job || a.CreateIndex != 1 {
			t.Errorf("allocation %+v", a)
		}
		if v := snapshot.Variable(nil, "default", "v"); v == nil || v.Items["k"] != "secret" {
			t.Errorf("variable %+v", v)
		}
		events, err := s.Subscribe(1).Next(t.Context())
		if err != nil || len(events) != 3 {
			t.Errorf("events %+v, %v", events, err)
		}
		if _, err := s.RotateKeys(t.Context(), true); !errors.Is(err, ErrNoKeyFile) {
			t.Errorf("rotation of keys: %v", err)
		}
		if err := s.LastWriteErr(); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * idleReleaseDelay)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := s.Update(context.Background(), func(*Txn) error { return nil }); !errors.Is(err, ErrClosed) {
			t.Errorf("update of a closed store: %v", err)
		}
	})
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("files %v, %v", files, err)
	}
}

// TestUnreadableRecordInMemory checks that a store without a file removes and reports an unreadable record.
func TestUnreadableRecordInMemory(t *testing.T) {
	s, err := OpenMemory(Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mustUpdate(t, s, func(tx *Txn) { tx.PutAgentRecord(state.BootIDName, map[string]string{"a": "b"}) })
	text := ""
	if _, err := s.Snapshot().ReadAgentRecord(state.BootIDName, &text); err == nil {
		t.Fatal("a map was read as a text")
	}
	mustUpdate(t, s, func(*Txn) {}) // the writer runs this update after the record's removal
	if d := s.Damage(); len(d) != 1 || d[0].Key != state.BootIDName || d[0].KeptIn != "" || s.Snapshot().HasAgentRecord(state.BootIDName) {
		t.Errorf("damage %+v", d)
	}
}

// TestEndAndRemovalOfAnAllocation checks which records exist between an allocation's end and its removal from the disk.
func TestEndAndRemovalOfAnAllocation(t *testing.T) {
	s := openStore(t, tempStatePath(t))
	hooks := map[string]string{"hook": "config"}
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutScheduledAllocation(&api.Allocation{ID: "a", Job: testJob("web", 0), TaskStates: map[string]*api.TaskState{"t": {}}})
	})
	if err := s.PutTask("a", "t", record.Fields{AllocHookConfigByName: hooks}, &api.TaskState{}, state.DurabilitySync)(); err != nil {
		t.Fatal(err)
	}
	check := func(step string, ended, collect, removal, attached bool) {
		t.Helper()
		r := s.Snapshot()
		if r.AllocationEnded("a") != ended || r.EndedAllocations()["a"] != ended || r.AllocationDirsMarkedForRemoval()["a"] != collect || (len(r.AllocationsPendingRemoval()) == 1) != removal || (r.AttachedHookConfigs("a")["hook"] == "config") != attached {
			t.Errorf("%s: ended %t, collect %t, removals %v, hooks %v", step, r.AllocationEnded("a"), r.AllocationDirsMarkedForRemoval()["a"], r.AllocationsPendingRemoval(), r.AttachedHookConfigs("a"))
		}
	}
	check("running", false, false, false, true)
	mustUpdate(t, s, func(tx *Txn) { tx.MarkAllocationDirForRemovalAtEnd("a"); tx.MarkAllocationEnded("a") })
	check("ended", true, true, false, true)
	if ids := s.Snapshot().AllocIDsWithLocalRecords(); len(ids) > 0 {
		t.Errorf("records of the runner are left: %v", ids)
	}
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteAllocationAndQueueRemoval("a") })
	check("deleted", false, false, true, true)
	if p := s.Snapshot().AllocationsPendingRemoval()[0]; p.ID != "a" || p.TaskStates != nil {
		t.Errorf("pending removal %+v", p)
	}
	mustUpdate(t, s, func(tx *Txn) { tx.MarkAllocationDirForRemovalAtEnd("a"); tx.MarkAllocationEnded("a") })
	check("ended after it was deleted", false, false, true, true)
	mustUpdate(t, s, func(tx *Txn) { tx.FinishAllocationRemoval("a") })
	check("removed", false, false, false, false)
	if facts := s.Snapshot().AgentRecordNames(""); len(facts) > 0 {
		t.Errorf("facts are left: %v", facts)
	}
}
