package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// Runs with different plugins share one file: each keeps the entries of unknown
// plugins that still exist, and drops those of removed plugins.
func TestRunsShareAMemory(t *testing.T) {
	dir := t.TempDir()
	plugin := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	mine, others, gone := plugin("mine"), plugin("others"), plugin("gone")
	m := fileCache(filepath.Join(dir, "cache", "nomad-lite", "plugins.json"))
	if known, err := m.load(); err != nil || known != nil {
		t.Fatalf("before anybody has been there: %v, %v", known, err)
	}
	for _, saved := range [][]state.PluginInfo{
		{{Path: others, Program: "1", Every: "gatekeeper"}, {Path: gone, Program: "1"}, {Path: mine, Program: "1", Every: "old"}},
		{{Path: mine, Program: "2"}},
	} {
		if err := m.save(saved); err != nil {
			t.Fatal(err)
		}
		os.Remove(gone)
	}
	known, err := m.load()
	if want := []state.PluginInfo{{Path: mine, Program: "2"}, {Path: others, Program: "1", Every: "gatekeeper"}}; err != nil || !slices.Equal(known, want) {
		t.Errorf("known are %v, %v; want %v", known, err, want)
	}
	if entries, err := os.ReadDir(filepath.Dir(string(m))); err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
	if err := os.WriteFile(string(m), []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if known, err := m.load(); err == nil || len(known) > 0 {
		t.Errorf("of a damaged file: %v, %v", known, err)
	}
	if err := m.save([]state.PluginInfo{{Path: mine, Program: "3"}}); err != nil {
		t.Fatal(err)
	}
	if known, err := m.load(); err != nil || len(known) != 1 {
		t.Errorf("after a damage: %v, %v", known, err)
	}
	if err := fileCache("").save(known); err != nil {
		t.Errorf("without a file: %v", err)
	}
}
