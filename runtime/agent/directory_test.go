package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A data directory is believed, so nobody else may write to it, or put another in
// its place.
func TestTrust(t *testing.T) {
	const stranger = 4711
	us := os.Geteuid()
	for _, test := range []struct {
		name         string
		parent       os.FileMode
		parentOwner  int
		mode         os.FileMode
		owner, group int
		of, want     string // which directory is blamed, and how; none if it is empty
	}{
		{name: "ours, where everybody may make directories", parent: 0o777 | os.ModeSticky, mode: 0o711},
		{name: "of a group that is root's", parent: 0o755, mode: 0o775, group: 0},
		{name: "of a group of strangers that may not write", parent: 0o755, mode: 0o755, group: stranger},
		{name: "of a group of strangers", parent: 0o755, mode: 0o775, group: stranger, of: "parent/data", want: "chmod g-w"},
		{name: "everybody's", parent: 0o755, mode: 0o777, of: "parent/data", want: "chmod o-w"},
		{name: "everybody's, like /tmp", parent: 0o755, mode: 0o777 | os.ModeSticky, of: "parent/data", want: "chmod o-w"},
		{name: "somebody else's", parent: 0o755, mode: 0o755, owner: stranger, of: "parent/data", want: "belongs to user 4711"},
		{name: "nobody's", parent: 0o755, mode: 0o755, owner: unmapped, of: "parent/data", want: "belongs to user 65534"},
		{name: "in one where everybody may replace it", parent: 0o777, mode: 0o711, of: "parent", want: "chmod o-w"},
		{name: "in one of somebody else's", parent: 0o755, parentOwner: stranger, mode: 0o711, of: "parent", want: "belongs to user 4711"},
		{name: "in one that belongs to nobody in this namespace", parent: 0o755, parentOwner: unmapped, mode: 0o711},
	} {
		t.Run(test.name, func(t *testing.T) {
			if us != 0 && test.owner+test.parentOwner+test.group != 0 {
				t.Skip("only root can give directories away")
			}
			root, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			parent := filepath.Join(root, "parent")
			dir, link := filepath.Join(parent, "data"), filepath.Join(root, "link")
			mkdir := func(dir string, mode os.FileMode, owner, group int) {
				t.Helper()
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if us == 0 {
					if err := os.Chown(dir, owner, group); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.Chmod(dir, mode); err != nil {
					t.Fatal(err)
				}
			}
			mkdir(parent, 0o755, 0, 0)
			mkdir(dir, test.mode, test.owner, test.group)
			if us == 0 {
				if err := os.Chown(parent, test.parentOwner, 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(parent, test.parent); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(dir, link); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{dir, link} {
				err := CheckDir(path)
				if (err == nil) != (test.want == "") {
					t.Errorf("%s: %v, want %q", path, err, test.want)
				} else if err != nil && !(strings.Contains(err.Error(), test.want) && strings.Contains(err.Error(), filepath.Join(root, test.of)+" ")) {
					t.Errorf("%s: %v, want %q of %s", path, err, test.want, test.of)
				}
			}
		})
	}
}
