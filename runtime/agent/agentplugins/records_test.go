package agentplugins

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func TestPluginRecordsSurvive(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	s := openTestStore(t, path)
	records := NewProcessRecordStore(s, dir, hclog.NewNullLogger())
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
		got, err := NewProcessRecordStore(s, dir, hclog.NewNullLogger()).PluginRecordByKey()
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
	cleanups := CleanupStore{s, hclog.NewNullLogger()}
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

func openTestStore(t *testing.T, path string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
