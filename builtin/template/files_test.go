package template

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFind(t *testing.T) {
	d := dirs{task: "/a/alloc-1/web", shared: "/a/alloc-1/alloc"}
	for _, test := range []struct {
		path   string
		rejoin bool
		want   place
		ok     bool
	}{
		{"local/x", false, place{d.task, "local/x"}, true},
		{"./local//x", false, place{d.task, "local/x"}, true},
		{"local/../../x", false, place{}, false},
		{"../other/secrets/x", true, place{}, false},
		{"../alloc/data/x", false, place{d.shared, "data/x"}, true},
		{"../webber/x", true, place{}, false},
		{"/a/alloc-1/web/local/x", false, place{d.task, "local/x"}, true},
		{"/a/alloc-1/alloc/x", true, place{d.shared, "x"}, true},
		{"/etc/zz", false, place{}, false},
		{"/etc/zz", true, place{d.task, "etc/zz"}, true},
		{"/../../etc/zz", true, place{}, false},
		{"", true, place{}, false},
		{".", true, place{}, false},
	} {
		got, ok := d.find(test.path, test.rejoin)
		if ok != test.ok || got != test.want {
			t.Errorf("%q, rejoin %v: %v, %v, want %v, %v", test.path, test.rejoin, got, ok, test.want, test.ok)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add("../x", true)
	f.Add("/a/b/../../etc", false)
	f.Fuzz(func(t *testing.T, path string, rejoin bool) {
		d := dirs{task: "/a/b/web", shared: "/a/b/alloc"}
		p, ok := d.find(path, rejoin)
		if !ok {
			return
		}
		full := filepath.Join(p.root, p.name)
		if !strings.HasPrefix(full, p.root+"/") || p.root != d.task && p.root != d.shared || !filepath.IsLocal(p.name) {
			t.Errorf("%q is %v", path, p)
		}
	})
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(touch(t, dir, "huge"), maxSize+1); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"fifo": "not a regular file", ".": "not a regular file", "huge": "more than 4194304 bytes", "nope": "no such file"} {
		if _, err := (place{dir, name}).read(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func touch(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A write that fails leaves nothing.
func TestWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "taken", "by"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (place{dir, "taken"}).write([]byte("x"), 0o644, -1, -1); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
}

func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	f := newFixture(t)
	uid, gid, none := 1234, 2345, -1
	f.run(f.request("web", []block{{EmbeddedTmpl: "x", DestPath: "local/a", Uid: &uid, Gid: &gid}, {EmbeddedTmpl: "x", DestPath: "local/b", Uid: &none}}))
	defer f.stop()
	for path, want := range map[string][2]uint32{"web/local/a": {1234, 2345}, "web/local/b": {0, 0}} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(f.dir, path), &st); err != nil || st.Uid != want[0] || st.Gid != want[1] {
			t.Errorf("%s belongs to %d:%d, %v", path, st.Uid, st.Gid, err)
		}
	}
}

// What runs confined sees its directory, and nothing else even by its path; the
// rest of the process is as free as before.
func TestConfine(t *testing.T) {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 {
		t.Skipf("this kernel has no Landlock: %v", errno)
	}
	dir, outside := t.TempDir(), t.TempDir()
	inside := touch(t, dir, "x")
	other := touch(t, outside, "x")
	err := confine(dir, func() error {
		if _, err := os.ReadFile(inside); err != nil {
			return err
		}
		if _, err := os.ReadFile(other); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("read outside: %v", err)
		}
		if err := os.WriteFile(filepath.Join(outside, "new"), nil, 0o600); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("write outside: %v", err)
		}
		return os.WriteFile(filepath.Join(dir, "new"), nil, 0o600)
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.ReadFile(other); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
