package agent

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/agentplugins"
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
			if list := (agentplugins.CleanupStore{Store: s, Logger: logger}).ListDeletingExpired(); len(list) > 0 {
				t.Errorf("pending: %+v", list)
			}
		}},
		{"pending cleanup without a request", state.CleanupPrefix + "x", map[string]string{"hook": "h", "alloc_id": "a"}, func(t *testing.T, s *store.Store) {
			if list := (agentplugins.CleanupStore{Store: s, Logger: logger}).ListDeletingExpired(); len(list) > 0 {
				t.Errorf("pending: %+v", list)
			}
		}},
		{"hook key", state.HookKeyName, map[string]string{"a": "b"}, func(t *testing.T, s *store.Store) {
			key := agentplugins.LoadOrCreateHookTokenKey(s, logger)
			if len(key) != state.HookKeySize {
				t.Errorf("key %v", key)
			}
			if _, err := s.Update(t.Context(), func(*store.Txn) error { return nil }); err != nil { // stores the key too
				t.Fatal(err)
			}
			if again := agentplugins.LoadOrCreateHookTokenKey(s, logger); !slices.Equal(key, again) {
				t.Error("the new key does not stay")
			}
		}},
		{"short hook key", state.HookKeyName, []byte("short"), func(t *testing.T, s *store.Store) { agentplugins.LoadOrCreateHookTokenKey(s, logger) }},
		{"allocation that is being removed", state.PendingRemovalPrefix + "gone", "text", func(t *testing.T, s *store.Store) {
			if allocs := s.Snapshot().AllocationsPendingRemoval(); len(allocs) > 0 {
				t.Errorf("being removed: %v", allocs)
			}
		}},
		{"allocation that is being removed, without its job", state.PendingRemovalPrefix + "gone", map[string]string{"ID": "gone"}, func(t *testing.T, s *store.Store) { s.Snapshot().AllocationsPendingRemoval() }},
		{"plugin process", state.PluginProcessPrefix + "builtin raw_exec", "text", func(t *testing.T, s *store.Store) {
			if all, err := agentplugins.NewProcessRecordStore(s, t.TempDir(), logger).PluginRecordByKey(); err != nil || len(all) > 0 {
				t.Errorf("plugins %v, %v", all, err)
			}
		}},
		{"plugin process without a pid", state.PluginProcessPrefix + "builtin raw_exec", map[string]string{"addr": "/x"}, func(t *testing.T, s *store.Store) {
			_, _ = agentplugins.NewProcessRecordStore(s, t.TempDir(), logger).PluginRecordByKey()
		}},
		{"hooks of an ended allocation", "attached/a", "text", func(t *testing.T, s *store.Store) { s.Snapshot().AttachedHookConfigs("a") }},
		{"known plugins", state.PluginInfoName, "text", func(_ *testing.T, s *store.Store) {
			agentplugins.New(supervisor.Config{Logger: logger}, agentplugins.StoreCache{Store: s}, time.Second)
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
	if key := agentplugins.LoadOrCreateHookTokenKey(s, hclog.NewNullLogger()); len(key) != state.HookKeySize {
		t.Errorf("key %v", key)
	}
}
