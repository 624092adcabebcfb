package datadirectory

import (
	"os"
	"testing"
)

// A directory that got the inode of a removed one has the same name for its link, which the end of the removed one must not remove.
func TestLinkWithAnotherTargetStays(t *testing.T) {
	dir := t.TempDir()
	for _, other := range []string{"", "/another/directory"} {
		link, err := makeSocketDirLink(dir)
		if err != nil {
			t.Fatal(err)
		}
		if other != "" {
			if err := ensureSymlink(link, other); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(link)
		}
		if err := removeSockets(dir); err != nil {
			t.Fatal(err)
		}
		if target, _ := os.Readlink(link); target != other {
			t.Errorf("the link leads to %q, want %q", target, other)
		}
	}
}
