package datadirectory

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"alloc", "state.db", "state.db.damaged-20260102T120000", "token-read", "reserve.inodes", "run.history", restoreDir, restoredStateFile, restoredKeyFile, "state.tar", "tokens", "backup"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := ForeignFiles(dir), []string{"backup", "state.tar", "tokens"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
