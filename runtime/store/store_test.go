package store

import (
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

func open(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(Config{Path: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, s.file.path)
}

func temp(t testing.TB) string { return filepath.Join(t.TempDir(), "state.db") }

// update makes a change that must succeed.
func update(t testing.TB, s *Store, fn func(*Txn)) uint64 {
	t.Helper()
	index, err := s.Update(t.Context(), func(tx *Txn) error { fn(tx); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func testJob(id string, version uint64) *api.Job {
	count := 1
	return &api.Job{
		ID: &id, Name: &id, Namespace: new("default"), Version: &version,
		TaskGroups: []*api.TaskGroup{{Name: new("app"), Count: &count, Tasks: []*api.Task{{
			Name: "web", Driver: "raw_exec", Config: map[string]any{"command": "sleep", "args": []any{"1"}, "n": 5, "f": 1.0},
			Env: map[string]string{"PASSWORD": "hunter2"},
		}}}},
	}
}

func TestSmoke(t *testing.T) {
	s := open(t, temp(t))
	if got := update(t, s, func(tx *Txn) { tx.PutJob(testJob("a", 0)) }); got != 1 {
		t.Errorf("index %d, want 1", got)
	}
	s = reopen(t, s)
	if s.Snapshot().Job(nil, "default", "a") == nil || s.Index() != 1 {
		t.Errorf("not there, index %d", s.Index())
	}
}
