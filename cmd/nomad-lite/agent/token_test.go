package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// A power failure can leave the file of a token empty or with zero bytes.
func TestEmptyTokenFileGetsNewToken(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "blank": " \n", "zero bytes": strings.Repeat("\x00", 37)} {
		path := filepath.Join(t.TempDir(), TokenFile)
		if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		token, made, err := readToken(path, hclog.NewNullLogger())
		if err != nil || !made || len(token) != 36 {
			t.Errorf("%s: token of %d bytes, made %t, error %v", name, len(token), made, err)
			continue
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: mode %v, error %v, want the mode of the operator", name, info.Mode(), err)
		}
		again, made, err := readToken(path, hclog.NewNullLogger())
		if err != nil || made || again != token {
			t.Errorf("%s: the next agent has another token (made %t, error %v)", name, made, err)
		}
	}
}

func TestTokenIsNotWrittenToDevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), TokenFile)
	if err := os.Symlink(os.DevNull, path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readToken(path, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v, want one that names the file", err)
	}
}
