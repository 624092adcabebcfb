package datadirectory

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// A foreground run does not use a directory with an agent's tasks, also when the agent's state file was lost. The tasks left by a
// killed run belong to no agent.
func TestRunRefusesTasksOfAgent(t *testing.T) {
	const allocID = "6f2e0f6c-43e3-4a2d-9a3a-4b8f6f0d5c11"
	task := exec.Command("/bin/sleep", "1000")
	task.Env = []string{"NOMAD_ALLOC_ID=" + allocID, "NOMAD_TASK_NAME=web"}
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = task.Process.Kill()
		_ = task.Wait()
	})
	const otherID = "0d6a2d65-8a7e-4ff4-86a4-06e3a3f9b0aa" // this allocation has no running process
	write := func(t *testing.T, dir, name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	putMeta := func(t *testing.T, dir, name string, value any) {
		t.Helper()
		s := openTestStore(t, filepath.Join(dir, store.FileName))
		_, err := s.Update(t.Context(), func(tx *store.Txn) error {
			tx.PutAgentRecord(name, value)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		allocID string
		prepare func(t *testing.T, dir string)
		want    string // part of the error; empty if the run starts
	}{
		"no agent, and no process":           {otherID, func(*testing.T, string) {}, ""},
		"the tasks of a killed run":          {allocID, func(t *testing.T, dir string) { write(t, dir, RunStateFile) }, ""},
		"the state of the agent was removed": {allocID, func(*testing.T, string) {}, "1 allocations (6f2e0f6c) whose agent has lost its state file"},
		"the state of the agent was emptied": {allocID, func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, store.FileName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "that state cannot be read"},
		"a task without a process, and the state of the agent was removed": {otherID, func(t *testing.T, dir string) { write(t, dir, keeper.OwnerFile) },
			"1 allocations (0d6a2d65) whose agent has lost its state file"},
		"the agent was here, and its tasks have ended": {otherID, func(t *testing.T, dir string) {
			write(t, dir, keeper.OwnerFile)
			putMeta(t, dir, state.DirectoryOwnerName, &state.DirectoryOwner{StateID: "i"})
		}, ""},
		"the agent has recorded an unknown allocation": {otherID, func(t *testing.T, dir string) { putMeta(t, dir, state.UnknownAllocPrefix+otherID, true) },
			"it belongs to an agent with 1 allocations (0d6a2d65)"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, allocDir, c.allocID), 0o700); err != nil {
				t.Fatal(err)
			}
			c.prepare(t, dir)
			err := checkNoAllocsOfPermanentAgent(dir)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
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
