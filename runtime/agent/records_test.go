package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func openTestStore(t *testing.T, path string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPluginRecordsSurvive(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	s := openTestStore(t, path)
	records := newPluginProcessRecordStore(s, dir, hclog.NewNullLogger())
	want := supervisor.Record{ReattachConfig: launch.ReattachConfig{Network: "unix", Addr: "/x", Pid: 7, StartTimeTicks: 8, BootID: "b", StreamKeyPrefix: "k"}, IdentityHash: "i"}
	// beingLaunched has not sent its handshake yet, so its address is unknown.
	beingLaunched := supervisor.Record{ReattachConfig: launch.ReattachConfig{Pid: 9, StartTimeTicks: 10, BootID: "b"}, IdentityHash: "i"}
	for key, record := range map[string]supervisor.Record{"builtin raw_exec": want, "/plugins/x": want, "/plugins/launched": beingLaunched} {
		if err := records.PutPlugin(key, record); err != nil {
			t.Fatal(err)
		}
	}
	if err := records.DeletePlugin("/plugins/x"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, stateIsLost := range []bool{false, true} {
		if stateIsLost {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		s = openTestStore(t, path)
		got, err := newPluginProcessRecordStore(s, dir, hclog.NewNullLogger()).PluginRecordByKey()
		if err != nil || len(got) != 2 || got["builtin raw_exec"] != want || got["/plugins/launched"] != beingLaunched {
			t.Errorf("state is lost: %t: read %+v, %v", stateIsLost, got, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A cleanup that was pending when its allocation was removed, as after a job purge, is retried for a day.
func TestPendingCleanupOutlivesItsAllocation(t *testing.T) {
	s := openTestStore(t, filepath.Join(t.TempDir(), "state.db"))
	defer s.Close()
	put := func(f func(*store.Txn)) {
		t.Helper()
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	put(func(tx *store.Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "a", Job: &api.Job{}}) })
	cleanups := hookCleanupStore{s, hclog.NewNullLogger()}
	pending := state.PendingCleanup{Hook: "h", AllocID: "a", Point: hook.Postrun, Postrun: &hook.AllocPostrunRequest{}}
	if err := cleanups.Put(pending); err != nil {
		t.Fatal(err)
	}
	if list := cleanups.ListDeletingExpired(); len(list) != 1 || !list[0].RetryUntil.IsZero() {
		t.Fatalf("pending: %+v", list)
	}
	put(func(tx *store.Txn) { tx.DeleteAllocationAndQueueRemoval("a") })
	first := cleanups.ListDeletingExpired()
	if len(first) != 1 || time.Until(first[0].RetryUntil) < pluginhooks.CleanupTimeout-time.Minute {
		t.Fatalf("pending after the removal: %+v", first)
	}
	if again := cleanups.ListDeletingExpired(); len(again) != 1 || !again[0].RetryUntil.Equal(first[0].RetryUntil) {
		t.Errorf("pending in the second list: %+v, want the end %s", again, first[0].RetryUntil)
	}
	pending.RetryUntil = time.Now().Add(-time.Second)
	if err := cleanups.Put(pending); err != nil {
		t.Fatal(err)
	}
	if list := cleanups.ListDeletingExpired(); len(list) > 0 {
		t.Errorf("pending after a day: %+v", list)
	}
}

// Each record that the agent cannot use is quarantined and reported, and the agent continues without the record.
func TestUnusableMetaRecordsAreQuarantined(t *testing.T) {
	logger := hclog.NewNullLogger()
	for _, test := range []struct {
		name    string
		fact    string
		content any
		read    func(*testing.T, *store.Store)
	}{
		{"pending cleanup", state.CleanupPrefix + "x", "text", func(t *testing.T, s *store.Store) {
			if list := (hookCleanupStore{s, logger}).ListDeletingExpired(); len(list) > 0 {
				t.Errorf("pending: %+v", list)
			}
		}},
		{"pending cleanup without a request", state.CleanupPrefix + "x", map[string]string{"hook": "h", "alloc_id": "a"}, func(t *testing.T, s *store.Store) {
			if list := (hookCleanupStore{s, logger}).ListDeletingExpired(); len(list) > 0 {
				t.Errorf("pending: %+v", list)
			}
		}},
		{"hook key", state.HookKeyName, map[string]string{"a": "b"}, func(t *testing.T, s *store.Store) {
			key := loadOrCreateHookTokenKey(s, logger)
			if len(key) != state.HookKeySize {
				t.Errorf("key %v", key)
			}
			if again := loadOrCreateHookTokenKey(s, logger); !slices.Equal(key, again) {
				t.Error("the new key does not stay")
			}
		}},
		{"short hook key", state.HookKeyName, []byte("short"), func(t *testing.T, s *store.Store) { loadOrCreateHookTokenKey(s, logger) }},
		{"allocation that is being removed", state.PendingRemovalPrefix + "gone", "text", func(t *testing.T, s *store.Store) {
			if allocs := s.Snapshot().AllocationsPendingRemoval(); len(allocs) > 0 {
				t.Errorf("being removed: %v", allocs)
			}
		}},
		{"allocation that is being removed, without its job", state.PendingRemovalPrefix + "gone", map[string]string{"ID": "gone"}, func(t *testing.T, s *store.Store) { s.Snapshot().AllocationsPendingRemoval() }},
		{"plugin process", state.PluginProcessPrefix + "builtin raw_exec", "text", func(t *testing.T, s *store.Store) {
			if all, err := newPluginProcessRecordStore(s, t.TempDir(), logger).PluginRecordByKey(); err != nil || len(all) > 0 {
				t.Errorf("plugins %v, %v", all, err)
			}
		}},
		{"plugin process without a pid", state.PluginProcessPrefix + "builtin raw_exec", map[string]string{"addr": "/x"}, func(t *testing.T, s *store.Store) {
			_, _ = newPluginProcessRecordStore(s, t.TempDir(), logger).PluginRecordByKey()
		}},
		{"hooks of an ended allocation", "attached/a", "text", func(t *testing.T, s *store.Store) { s.Snapshot().AttachedHookConfigs("a") }},
		{"known plugins", state.PluginInfoName, "text", func(t *testing.T, s *store.Store) {
			if cached := loadCachedPlugins(storePluginCache{s}, logger); len(cached.infos) > 0 {
				t.Errorf("cached: %v", cached.infos)
			}
		}},
		{"boot", state.BootIDName, map[string]string{"a": "b"}, func(t *testing.T, s *store.Store) {
			if detectAndRecordReboot(s, logger) {
				t.Error("a reboot is detected")
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := openTestStore(t, filepath.Join(t.TempDir(), "state.db"))
			defer s.Close()
			put := func(f func(*store.Txn)) {
				t.Helper()
				if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			put(func(tx *store.Txn) { tx.PutAgentRecord(test.fact, test.content) })
			test.read(t, s)
			put(func(*store.Txn) {}) // the writer runs this update after the one that quarantines the record
			if d := s.Damage(); len(d) != 1 || d[0].Key != test.fact || d[0].KeptIn != "quarantine" {
				t.Errorf("reported: %v", d)
			}
		})
	}
}

// After a reboot an agent starts with a state that it cannot change.
func TestStartWithUnchangeableState(t *testing.T) {
	s := openTestStore(t, filepath.Join(t.TempDir(), "state.db"))
	_, err := s.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.BootIDName, "an earlier boot")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // each later change fails
		t.Fatal(err)
	}
	if !detectAndRecordReboot(s, hclog.NewNullLogger()) {
		t.Error("the reboot is not detected")
	}
	if key := loadOrCreateHookTokenKey(s, hclog.NewNullLogger()); len(key) != state.HookKeySize {
		t.Errorf("key %v", key)
	}
	dir := t.TempDir()
	i := &dataDirIdentity{dataDir: dir, store: s, ownRecord: dataDirRecord{ID: "i"}}
	if err := i.storeAsOwner(t.Context(), osprocess.ID{PID: 7}); err == nil {
		t.Error("the owner is recorded in a closed state")
	}
	if o := readOwnerFileOrNil(dir); o == nil || o.ID != "i" || o.Keeper.PID != 7 {
		t.Errorf("the file of the owner has %+v", o)
	}
}
