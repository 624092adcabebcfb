package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
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
	for _, saved := range [][]pluginInfo{
		{{others, "1", "gatekeeper"}, {gone, "1", ""}, {mine, "1", "old"}},
		{{mine, "2", ""}},
	} {
		if err := m.save(saved); err != nil {
			t.Fatal(err)
		}
		os.Remove(gone)
	}
	known, err := m.load()
	if want := []pluginInfo{{mine, "2", ""}, {others, "1", "gatekeeper"}}; err != nil || !slices.Equal(known, want) {
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
	if err := m.save([]pluginInfo{{mine, "3", ""}}); err != nil {
		t.Fatal(err)
	}
	if known, err := m.load(); err != nil || len(known) != 1 {
		t.Errorf("after a damage: %v, %v", known, err)
	}
	if err := fileCache("").save(known); err != nil {
		t.Errorf("without a file: %v", err)
	}
}
