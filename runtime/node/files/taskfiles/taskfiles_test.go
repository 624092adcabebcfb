package taskfiles

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const allocID = "11111111-2222-3333-4444-555555555555"

// Contents that must never be returned.
const (
	outsideText = "outside of the allocation"
	secretText  = "secret of the task"
)

// newAllocDir makes an allocation's directory, with protected files around it and in it. It returns
// the handle and the path.
func newAllocDir(t testing.TB) (*AllocDir, string) {
	t.Helper()
	top := t.TempDir()
	base := filepath.Join(top, "allocs", allocID)
	for name, text := range map[string]string{
		"passwd": outsideText, "allocs/other/passwd": outsideText, "allocs/" + allocID + "x/passwd": outsideText,
		"allocs/" + allocID + "/web/secrets/token":   secretText,
		"allocs/" + allocID + "/web/private/token":   secretText,
		"allocs/" + allocID + "/web/local/page.html": "<html>",
		"allocs/" + allocID + "/web/local/secrets/x": "no secret",
		"allocs/" + allocID + "/.allocation":         "a job with its environment",
		"allocs/" + allocID + "/alloc/data/a":        "a",
		"allocs/" + allocID + "/alloc/logs/b":        "b",
	} {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"alloc/in": "data", "alloc/data/up": "../logs/b", "alloc/abs": base + "/alloc/data/a", "alloc/self": base,
		"alloc/out": "../../../passwd", "alloc/outdir": "../..", "alloc/absout": filepath.Join(top, "passwd"), "alloc/sibling": base + "x",
		"alloc/loop": "loop", "alloc/loop1": "loop2", "alloc/loop2": "loop1", "alloc/proc": "/proc/self/cwd",
		"web/local/keys": "../secrets", "web/local/key": "../secrets/token", "alloc/task": "../web", "web/local/abskey": base + "/web/private/token",
	} {
		if err := os.Symlink(target, filepath.Join(base, name)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := new(AllocDirOpener).OpenAllocDir(filepath.Dir(base), allocID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, base
}

// Secrets and files outside the directory are not read (rule RS-079 of docs/reference/rules.md).
func TestOpen(t *testing.T) {
	d, base := newAllocDir(t)
	if err := unix.Mkfifo(filepath.Join(base, "alloc/fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", filepath.Join(base, "alloc/s"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := os.MkdirAll(filepath.Join(base, strings.Repeat("d/", maxDepth)), 0o755); err != nil {
		t.Fatal(err)
	}
	missing := base + "/%s: no such file or directory"
	for _, c := range []struct{ name, path, want, err string }{
		{"a file", "alloc/data/a", "a", ""},
		{"with slashes", "//alloc//data/./a", "a", ""},
		{"up and down again", "alloc/../web/../alloc/data/a", "a", ""},
		{"through a link", "alloc/in/a", "a", ""},
		{"through links", "alloc/in/up", "b", ""},
		{"an absolute link that stays", "alloc/abs", "a", ""},
		{"a link to the directory itself", "alloc/self/alloc/self/alloc/data/a", "a", ""},
		{"a directory that is only called secrets", "web/local/secrets/x", "no secret", ""},

		{"up", "..", "", ErrPathEscapes.Error()},
		{"up from below", "alloc/../../other/passwd", "", ErrPathEscapes.Error()},
		{"a link up", "alloc/out", "", ErrPathEscapes.Error()},
		{"through a link up", "alloc/outdir/passwd", "", ErrPathEscapes.Error()},
		{"an absolute link", "alloc/absout", "", ErrPathEscapes.Error()},
		{"a link to a directory of a longer name", "alloc/sibling/passwd", "", ErrPathEscapes.Error()},
		{"a link into proc", "alloc/proc/taskfiles.go", "", ErrPathEscapes.Error()},
		{"a link to itself", "alloc/loop", "", "stat " + base + "/alloc/loop: too many levels of symbolic links"},
		{"links in a circle", "alloc/loop1", "", "stat " + base + "/alloc/loop1: too many levels of symbolic links"},
		{"too deep", strings.Repeat("d/", maxDepth+1), "", "stat " + base + "/" + strings.Repeat("d/", maxDepth) + "d: no such file or directory"},

		{"a file of the agent", ".allocation", "", "Reading agent file prohibited: .allocation"},
		{"a file of the agent, up and down", "web/../.allocation", "", "Reading agent file prohibited: web/../.allocation"},
		{"a secret", "web/secrets/token", "", "Reading secret file prohibited: web/secrets/token"},
		{"something private", "/web/private/token", "", "Reading private file prohibited: /web/private/token"},
		{"a secret through a link", "web/local/key", "", "Reading secret file prohibited: web/local/key"},
		{"a secret through a linked directory", "web/local/keys/token", "", "Reading secret file prohibited: web/local/keys/token"},
		{"a secret through a linked task", "alloc/task/secrets/token", "", "Reading secret file prohibited: alloc/task/secrets/token"},
		{"a secret through an absolute link", "web/local/abskey", "", "Reading private file prohibited: web/local/abskey"},
		{"a secret up and down", "web/local/../secrets/token", "", "Reading secret file prohibited: web/local/../secrets/token"},

		{"the directory itself", "/", "", `file "/" is a directory`},
		{"a directory", "alloc/data", "", `file "alloc/data" is a directory`},
		{"what is not there", "alloc/nope", "", "stat " + strings.Replace(missing, "%s", "alloc/nope", 1)},
		{"below a file", "alloc/data/a/b", "", "stat " + base + "/alloc/data/a/b: not a directory"},
		{"a FIFO without a writer", "alloc/fifo", "", `file "alloc/fifo" is not a regular file`},
		{"a socket", "alloc/s", "", `file "alloc/s" is not a regular file`},
		{"NUL", "alloc/\x00", "", "stat " + base + "/alloc/\x00: invalid argument"},
		{"a name of 256 bytes", strings.Repeat("x", 256), "", "stat " + base + "/" + strings.Repeat("x", 256) + ": file name too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := openDescriptors(t)
			got, err := readFile(d, c.path)
			if text := ""; err != nil {
				text = err.Error()
				if text != c.err {
					t.Errorf("error %q, want %q", text, c.err)
				}
			} else if got != c.want || c.err != "" {
				t.Errorf("%q, want %q %q", got, c.want, c.err)
			}
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors, %d before", after, before)
			}
		})
	}
}

func readFile(d *AllocDir, path string) (string, error) {
	f, err := d.OpenUnprotectedFile(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	return string(text), err
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// The host files that a chroot task sees are not shown to remote clients, under any name.
func TestMountedHostFilesAreProtected(t *testing.T) {
	d, base := newAllocDir(t)
	host := filepath.Join(base, "web", "etc")
	if err := os.Mkdir(host, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(filepath.Dir(filepath.Dir(base)), host, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("bind mounts are not possible here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(host, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Symlink("../etc", filepath.Join(base, "web/local/link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"web/etc/passwd", "web/local/link/passwd", "web/etc/allocs/../passwd"} {
		_, err := d.OpenUnprotectedFile(path)
		if e, ok := errors.AsType[*ProtectedFileError](err); !ok || e.Kind != "host" {
			t.Errorf("%s: got %v, want a protected file of the host", path, err)
		}
	}
	f, err := d.OpenUnprotectedFile("web/etc/../local/page.html") // this path leaves the mount
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestDeviceIsNotOpened(t *testing.T) {
	d, base := newAllocDir(t)
	if err := unix.Mknod(filepath.Join(base, "alloc/zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		t.Skip("devices can be made by root only: ", err)
	}
	if _, err := d.OpenUnprotectedFile("alloc/zero"); !errors.Is(err, ErrNotRegular) {
		t.Errorf("a device: %v", err)
	}
	if info, err := d.Stat("alloc/zero"); err != nil || info.Mode()&fs.ModeDevice == 0 {
		t.Errorf("%v, %v", info, err)
	}
}

// No file that a task can make blocks a caller, and no descriptor stays open.
func TestSpecialFilesDoNotBlock(t *testing.T) {
	d, base := newAllocDir(t)
	fifo, socket, device := filepath.Join(base, "alloc/fifo"), filepath.Join(base, "alloc/socket"), filepath.Join(base, "alloc/device")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	kinds := []string{"alloc/fifo", "alloc/socket", "alloc/fifo/below"}
	if err := unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err == nil { // root only
		kinds = append(kinds, "alloc/device")
	}
	before := openDescriptors(t)
	for _, path := range kinds {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := d.List(path); !errors.Is(err, unix.ENOTDIR) {
				t.Errorf("List of %s: %v, want %v", path, err, unix.ENOTDIR)
			}
			if _, err := d.OpenUnprotectedFile(path); err == nil {
				t.Errorf("%s was opened", path)
			}
			info, err := d.Stat(path)
			if err == nil && info.Mode().IsRegular() {
				t.Errorf("%s: %v", path, info.Mode())
			}
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s keeps a caller waiting", path)
		}
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// A link swapped with a directory during a read never leads outside, at any point in time.
func TestSwappedLink(t *testing.T) {
	d, base := newAllocDir(t)
	dir, link := base+"/alloc/swap", base+"/alloc/swap.link"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/passwd", []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../..", link); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for {
			select {
			case <-done:
				return
			default:
			}
			_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
		}
	}()
	mine, refused := 0, 0
	for range 3000 {
		switch text, err := readFile(d, "alloc/swap/passwd"); {
		case err == nil && text == "mine":
			mine++
		case errors.Is(err, ErrPathEscapes):
			refused++
		default:
			t.Fatalf("%q, %v", text, err)
		}
	}
	close(done)
	<-swapped
	if mine == 0 || refused == 0 {
		t.Errorf("the directory was read %d times, the link refused %d times: nothing was swapped", mine, refused)
	}
}

func TestListAndStat(t *testing.T) {
	d, base := newAllocDir(t)
	infos, err := d.List("/alloc")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name())
		if i.Name() == "out" && (i.Mode()&fs.ModeSymlink == 0 || i.IsDir()) {
			t.Errorf("a link to the outside is listed as %v", i.Mode())
		}
	}
	if !slices.IsSorted(names) || !slices.Contains(names, "data") || len(names) != 14 {
		t.Errorf("names %q", names)
	}
	if infos, err := d.List("web/secrets"); err != nil || len(infos) != 1 || infos[0].Name() != "token" {
		t.Errorf("secrets cannot be listed: %v, %v", infos, err)
	}
	for path, want := range map[string]string{
		"alloc/data/a": "open " + base + "/alloc/data/a: not a directory",
		"nope":         "open " + base + "/nope: no such file or directory",
		"../":          ErrPathEscapes.Error(),
		"alloc/outdir": ErrPathEscapes.Error(),
	} {
		if _, err := d.List(path); err == nil || err.Error() != want {
			t.Errorf("list %s: %v, want %s", path, err, want)
		}
	}
	for _, c := range []struct {
		path, name, kind string
		dir              bool
		size             int64
	}{
		{"/", allocID, unknownContentType, true, -1},
		{"web/local", "local", unknownContentType, true, -1},
		{"web/local/page.html", "page.html", "text/html; charset=utf-8", false, 6},
		{"alloc/in/up", "b", "text/plain; charset=utf-8", false, 1},
		{"web/secrets/token", "token", unknownContentType, false, int64(len(secretText))},
	} {
		i, err := d.Stat(c.path)
		if err != nil || i.Name() != c.name || i.ContentType != c.kind || i.IsDir() != c.dir || c.size >= 0 && i.Size() != c.size {
			t.Errorf("stat %s: %s %s %v %d, %v", c.path, i.Name(), i.ContentType, i.IsDir(), i.Size(), err)
		}
	}
	if _, err := d.Stat("nope"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of nothing: %v", err)
	}
}

func TestOpenDirectory(t *testing.T) {
	_, base := newAllocDir(t)
	for _, id := range []string{"..", ".", "a/b", "nope", ""} {
		d, err := new(AllocDirOpener).OpenAllocDir(filepath.Dir(base), id)
		if err == nil {
			d.Close()
			t.Errorf("%q is the directory of an allocation", id)
		}
	}
}

// No path reads a file outside the allocation, or a secret.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{
		"alloc/data/a", "../passwd", "alloc/outdir/passwd", "web/local/keys/token", "alloc/task/SECRETS/token",
		"alloc/self/web/secrets/../secrets/token", "alloc/in/../loop", "/web/local/abskey/", "alloc/sibling/passwd", "a\x00b", "...",
	} {
		f.Add(seed)
	}
	d, _ := newAllocDir(f)
	f.Fuzz(func(t *testing.T, path string) {
		if text, err := readFile(d, path); err == nil && (text == outsideText || text == secretText) {
			t.Errorf("%q reads the %s", path, text)
		}
		if _, err := d.Stat(path); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
		infos, err := d.List(path)
		for _, i := range infos {
			if i.Name() == "passwd" || i.Name() == "allocs" {
				t.Errorf("%q lists the outside: %v", path, err)
			}
		}
	})
}
