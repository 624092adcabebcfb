package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluators"
)

func TestResolvePath(t *testing.T) {
	d := templateDirs{taskDir: "/a/alloc-1/web", sharedAllocDir: "/a/alloc-1/alloc"}
	for _, test := range []struct {
		path   string
		rejoin bool
		want   rootedPath
		ok     bool
	}{
		{"local/x", false, rootedPath{d.taskDir, "local/x"}, true},
		{"./local//x", false, rootedPath{d.taskDir, "local/x"}, true},
		{"local/../../x", false, rootedPath{}, false},
		{"../other/secrets/x", true, rootedPath{}, false},
		{"../alloc/data/x", false, rootedPath{d.sharedAllocDir, "data/x"}, true},
		{"../webber/x", true, rootedPath{}, false},
		{"/a/alloc-1/web/local/x", false, rootedPath{d.taskDir, "local/x"}, true},
		{"/a/alloc-1/alloc/x", true, rootedPath{d.sharedAllocDir, "x"}, true},
		{"/etc/zz", false, rootedPath{}, false},
		{"/etc/zz", true, rootedPath{d.taskDir, "etc/zz"}, true},
		{"/../../etc/zz", true, rootedPath{}, false},
		{"", true, rootedPath{}, false},
		{".", true, rootedPath{}, false},
	} {
		got, ok := d.resolvePath(test.path, test.rejoin)
		if ok != test.ok || got != test.want {
			t.Errorf("%q, rejoin %v: %v, %v, want %v, %v", test.path, test.rejoin, got, ok, test.want, test.ok)
		}
	}
}

func FuzzResolvePath(f *testing.F) {
	f.Add("../x", true)
	f.Add("/a/b/../../etc", false)
	f.Fuzz(func(t *testing.T, path string, rejoin bool) {
		d := templateDirs{taskDir: "/a/b/web", sharedAllocDir: "/a/b/alloc"}
		p, ok := d.resolvePath(path, rejoin)
		if !ok {
			return
		}
		full := filepath.Join(p.rootDir, p.pathInRoot)
		if !strings.HasPrefix(full, p.rootDir+"/") || p.rootDir != d.taskDir && p.rootDir != d.sharedAllocDir || !filepath.IsLocal(p.pathInRoot) {
			t.Errorf("%q is %v", path, p)
		}
	})
}

func TestReadFileErrors(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(createFile(t, dir, "huge"), maxContentSize+1); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"fifo": "not a regular file", ".": "is a directory", "huge": "more than 16777216 bytes", "nope": "no such file"} {
		if _, err := (rootedPath{dir, name}).readFile(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func createFile(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A failed write leaves no files.
func TestFailedWriteLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "taken", "by"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (rootedPath{dir, "taken"}).replaceFileAtomically([]byte("x"), 0o644, -1, -1); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
}

func TestConfiguredFileOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	f := newFixture(t)
	uid, gid, none := 1234, 2345, -1
	f.startTask(f.newRequest("web", []templateBlock{{EmbeddedTmpl: "x", DestPath: "local/a", Uid: &uid, Gid: &gid}, {EmbeddedTmpl: "x", DestPath: "local/b", Uid: &none}}))
	defer f.stopTasks()
	for path, want := range map[string][2]uint32{"web/local/a": {1234, 2345}, "web/local/b": {0, 0}} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(f.dir, path), &st); err != nil || st.Uid != want[0] || st.Gid != want[1] {
			t.Errorf("%s belongs to %d:%d, %v", path, st.Uid, st.Gid, err)
		}
	}
}

// requireLandlock skips a test if the kernel has no Landlock.
func requireLandlock(t *testing.T) {
	t.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 {
		t.Skipf("this kernel has no Landlock: %v", errno)
	}
}

// Only the confined thread loses access to files outside of its directory; the
// other threads of the process keep their access.
func TestRunConfined(t *testing.T) {
	requireLandlock(t)
	dir, outside := t.TempDir(), t.TempDir()
	inside := createFile(t, dir, "x")
	other := createFile(t, outside, "x")
	err := runOnThreadConfinedToDir(dir, func(*os.Root) error {
		if _, err := os.ReadFile(inside); err != nil {
			return err
		}
		expectAccessDenied(t, outside)
		return os.WriteFile(filepath.Join(dir, "new"), nil, 0o600)
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.ReadFile(other); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// expectAccessDenied accesses files outside of the confinement, as a compromised template
// function could, and expects errors.
func expectAccessDenied(t *testing.T, outside string) {
	t.Helper()
	path := filepath.Join(outside, "x")
	_, read := os.ReadFile(path)
	_, list := os.ReadDir(outside)
	for what, err := range map[string]error{
		"read":     read,
		"list":     list,
		"write":    os.WriteFile(filepath.Join(outside, "new"), nil, 0o600),
		"truncate": os.Truncate(path, 0),
		"remove":   os.Remove(path),
		"link":     os.Link(path, filepath.Join(outside, "link")),
		"symlink":  os.Symlink("/etc", filepath.Join(outside, "symlink")),
		"rename":   os.Rename(path, filepath.Join(outside, "renamed")),
		"mkdir":    os.Mkdir(filepath.Join(outside, "dir"), 0o700),
		"device":   unix.Mknod(filepath.Join(outside, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
		"run":      exec.Command("/bin/true").Run(),
		"become":   setThreadUID(uintptr(os.Geteuid() + 1)),
	} {
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EXDEV) {
			t.Errorf("%s outside: %v", what, err)
		}
	}
}

// setThreadUID calls setuid for the calling thread only.
func setThreadUID(uid uintptr) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETUID, uid, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// TestMain also serves as a confined hook process.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "confined" {
		ConfineHookProcess()
		os.Exit(tryConfinedCalls(os.Args[2]))
	}
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case "launcher":
			os.Exit(evaluators.LauncherMain(os.Stdin, []string{"evaluator"}, os.Stderr))
		case "evaluator":
			os.Exit(evaluators.EvaluatorMain(os.Stdin, os.Stderr))
		}
	}
	os.Exit(m.Run())
}

// tryConfinedCalls makes calls that ConfineHookProcess denies, and reports the calls that have
// succeeded.
func tryConfinedCalls(dir string) int {
	_, internet := net.Dial("udp", "127.0.0.1:9")
	_, local := net.Listen("unix", filepath.Join(dir, "socket"))
	_, interfaces := net.Interfaces()
	for what, err := range map[string]error{
		"ran a program":             exec.Command("/bin/true").Run(),
		"talked to the network":     internet,
		"mounted something":         unix.Mount("none", dir, "tmpfs", 0, ""),
		"changed its root":          unix.Chroot(dir),
		"looked into its parent":    unix.PtraceSeize(os.Getppid()),
		"left for other namespaces": unix.Unshare(unix.CLONE_NEWNS),
	} {
		if !errors.Is(err, unix.EACCES) {
			fmt.Fprintf(os.Stderr, "it %s: %v\n", what, err)
			return 1
		}
	}
	if err := errors.Join(local, interfaces, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600)); err != nil {
		fmt.Fprintln(os.Stderr, "it cannot work:", err)
		return 1
	}
	return 0
}

func TestConfinedProcess(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "confined", t.TempDir())
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A file of the machine that not each user can read is refused.
func TestFilesOfMachineAreRefused(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own")
	if err := os.WriteFile(own, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{own: nil, "/proc/self/environ": unix.EACCES} {
		root, err := os.OpenRoot(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		f, err := openRegularFile(root, filepath.Base(path))
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if err == nil {
			f.Close()
		}
		root.Close()
	}
}

// The data of a task's templates have limits.
func TestDataHaveLimits(t *testing.T) {
	f := newFixture(t)
	dir := filepath.Join(f.dir, "web", "local")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, maxContentSize), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string]string{
		"the templates of a task read at most 64 MiB of data":                                          fmt.Sprintf(`{{ $p := "%s/" }}{{ range loop 5 }}{{ $p = print $p "./" }}{{ len (file (print $p "big")) }}{{ end }}`, dir),
		"the templates of a task read at most 1000 files, and 1000 variables, services and attributes": `{{ range loop 1001 }}{{ if nomadVarExists (print .) }}{{ end }}{{ end }}`,
	} {
		ctx, kill := context.WithTimeout(t.Context(), time.Minute)
		f.onKill = kill
		_, _ = f.hook.Prestart(ctx, f.newRequest("web", singleBlock(templateBlock{EmbeddedTmpl: text}))) // ends with the kill
		f.expectCalls("web: kill Template failed: " + want)
		f.stopTasks()
	}
	w := newSourceWatcher(nil, retryConfig{})
	if err := w.replaceAnswerSizeLocked(0, maxDataSize-1); err != nil {
		t.Error(err)
	}
	if err := w.replaceAnswerSizeLocked(0, 2); err == nil || w.dataSize != maxDataSize-1 {
		t.Errorf("more data than allowed: %v, %d", err, w.dataSize)
	}
	if err := w.replaceAnswerSizeLocked(1000, 1); err != nil || w.dataSize != maxDataSize-1000 {
		t.Errorf("fewer data: %v, %d", err, w.dataSize)
	}
}
