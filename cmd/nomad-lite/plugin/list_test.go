package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

func TestContainsTextFindsItAcrossReads(t *testing.T) {
	key := basewire.Handshake.MagicCookieKey
	path := filepath.Join(t.TempDir(), "file")
	for name, c := range map[string]struct {
		content string
		want    bool
	}{
		"empty":                    {"", false},
		"at the start":             {key + "x", true},
		"across two reads":         {strings.Repeat("x", 1<<20-3) + key, true},
		"at the end of many reads": {strings.Repeat("x", 3<<20) + key, true},
		"not complete":             {strings.Repeat("x", 1<<20) + key[:len(key)-1], false},
	} {
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := containsText(path, key); got != c.want || err != nil {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}
