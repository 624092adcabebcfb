package safepath

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What Locate finds cannot be replaced by another user. In a directory with the sticky bit, the owner of a file can replace it.
func TestLocate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories away")
	}
	root := makeEntries(t, []testDirEntry{
		{path: "srv", mode: 0o755}, {path: "srv/data", mode: 0o700, owner: otherUID},
		{path: "home", mode: 0o755, owner: otherUID}, {path: "home/data", mode: 0o755},
		{path: "shared", mode: 0o775, group: otherUID}, {path: "shared/data", mode: 0o755},
		{path: "tmp", mode: 0o777 | os.ModeSticky}, {path: "tmp/ours", mode: 0o755}, {path: "tmp/theirs", mode: 0o755, owner: otherUID},
		{path: "link", to: "srv/data"}, {path: "tmp/link", to: "../srv/data"}, {path: "tmp/trap", to: "/", owner: otherUID},
		{path: "detour", to: "home/../srv/data"},
	})
	for _, test := range []struct{ path, want, dir, err string }{
		{path: "srv/data", want: "srv/data"},
		{path: "srv/./../srv//data/", want: "srv/data"},
		{path: "link", want: "srv/data"},
		{path: "tmp/link", want: "srv/data"},
		{path: "tmp/ours", want: "tmp/ours"},
		{path: "home/data", dir: "home", err: "belongs to user 12345, who could replace what is mounted"},
		{path: "detour", dir: "home", err: "belongs to user 12345"},
		{path: "shared/data", dir: "shared", err: "chmod g-w"},
		{path: "tmp/theirs", dir: "tmp/theirs", err: "belongs to user 12345, who could replace it"},
		{path: "tmp/trap/etc", dir: "tmp/trap", err: "belongs to user 12345"},
	} {
		at, err := Locate(root + "/" + test.path)
		checkError(t, test.path, err, filepath.Join(root, test.dir), test.err)
		if err == nil && at.Path != filepath.Join(root, test.want) {
			t.Errorf("%s leads to %s", test.path, at.Path)
		}
	}
}

// A mount of a directory is the same location as the directory.
func TestLocationIsBelow(t *testing.T) {
	root := makeEntries(t, []testDirEntry{{path: "a", mode: 0o755}, {path: "a/b", mode: 0o755}, {path: "c", mode: 0o755}})
	locate := func(path string) *Location {
		at, err := Locate(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, test := range []struct {
		path, other string
		want        bool
	}{{"a/b", "a", true}, {"a/b", ".", true}, {"a", "a", false}, {"a", "a/b", false}, {"c", "a", false}} {
		if got := locate(test.path).IsBelow(locate(test.other)); got != test.want {
			t.Errorf("%s is below %s: %v", test.path, test.other, got)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	if err := unix.Mount(filepath.Join(root, "a"), filepath.Join(root, "c"), "", unix.MS_BIND, ""); err != nil {
		t.Skip("mount: ", err)
	}
	t.Cleanup(func() { unix.Unmount(filepath.Join(root, "c"), unix.MNT_DETACH) })
	if !locate("c/b").IsBelow(locate("a")) {
		t.Error("a directory in a mount is not below the mounted directory")
	}
}

// OpenBeneath follows no link and does not leave the directory.
func TestOpenBeneath(t *testing.T) {
	root := makeEntries(t, []testDirEntry{
		{path: "dir", mode: 0o755}, {path: "dir/sub", mode: 0o755}, {path: "dir/sub/deep", mode: 0o755}, {path: "dir/here", to: "sub"}, {path: "dir/out", to: "/"},
	})
	dir, err := OpenDir(filepath.Join(root, "dir"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	for name, want := range map[string]error{
		"sub/deep": nil, ".": nil, "here/deep": unix.ELOOP, "here": unix.ELOOP, "out/etc": unix.ELOOP, "..": unix.EXDEV, "/etc": unix.EXDEV, "none": unix.ENOENT,
	} {
		fd, err := OpenBeneath(dir, name)
		if err != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
}
