package netns

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func skipUnlessRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can create network namespaces")
	}
}

// newTestName returns the name of a namespace that does not exist when the test has ended.
func newTestName(t *testing.T) string {
	t.Helper()
	skipUnlessRoot(t)
	name := "netns-test-" + strings.ReplaceAll(t.Name(), "/", "-")
	t.Cleanup(func() {
		if err := Remove(name); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(Path(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", Path(name), err)
		}
	})
	return name
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

func TestCreateAndRemove(t *testing.T) {
	name := newTestName(t)
	before := inode(t, "/proc/self/ns/net")
	if err := Create(name); err != nil {
		t.Fatal(err)
	}
	created := inode(t, Path(name))
	if created == before || !Exists(Path(name)) {
		t.Errorf("namespace %d, own namespace %d", created, before)
	}
	if now := inode(t, "/proc/self/ns/net"); now != before {
		t.Errorf("the process is in namespace %d, was in %d", now, before)
	}
	if err := Create(name); err != nil || inode(t, Path(name)) != created {
		t.Errorf("an existing namespace was replaced: %v", err)
	}
	for range 2 {
		if err := Remove(name); err != nil {
			t.Error(err)
		}
	}
	if Exists(Path(name)) {
		t.Error("the namespace exists after Remove")
	}
}

func TestNewNamespaceHasOnlyLoopback(t *testing.T) {
	name := newTestName(t)
	if err := Create(name); err != nil {
		t.Fatal(err)
	}
	err := Do(Path(name), func() error {
		list, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, i := range list {
			if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
				t.Errorf("interface %s", i.Name)
			}
			if i.Flags&net.FlagLoopback != 0 && i.Flags&net.FlagUp == 0 {
				t.Error("the loopback interface is down")
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// An agent that dies between the creation of the file and of the namespace leaves an empty file.
func TestCreateCompletesLeftover(t *testing.T) {
	name := newTestName(t)
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Path(name), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if Exists(Path(name)) {
		t.Error("an empty file is a namespace")
	}
	if err := Create(name); err != nil || !Exists(Path(name)) {
		t.Error(err)
	}
}

// inEmptyRun runs the test again in a process with its own mount namespace and an empty /run. It returns true in that process,
// and false in the first one, where the test must return.
func inEmptyRun(t *testing.T) bool {
	t.Helper()
	skipUnlessRoot(t)
	const marker = "NETNS_TEST_EMPTY_RUN"
	if os.Getenv(marker) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), marker+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
		return false
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	return true
}

// mountOverUnlessMount does what `ip netns add` and podman do before they use Dir.
func mountOverUnlessMount(t *testing.T) {
	t.Helper()
	err := unix.Mount("", Dir, "", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount(Dir, Dir, "", unix.MS_BIND|unix.MS_REC, "")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func checkDirIsEmpty(t *testing.T) {
	t.Helper()
	if names, err := os.ReadDir(Dir); err != nil || len(names) != 0 {
		t.Errorf("%v are left: %v", names, err)
	}
}

func TestAnotherProgramCannotHideNamespaces(t *testing.T) {
	if !inEmptyRun(t) {
		return
	}
	if err := Create("a"); err != nil {
		t.Fatal(err)
	}
	mountOverUnlessMount(t)
	if err := Remove("a"); err != nil {
		t.Error(err)
	}
	checkDirIsEmpty(t)
}

func TestNamespacesOfEarlierVersionsCanBeRemoved(t *testing.T) {
	if !inEmptyRun(t) {
		return
	}
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Path("old"), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	err := inNewNamespace(func() error { return unix.Mount(threadNamespace, Path("old"), "", unix.MS_BIND, "") })
	if err != nil {
		t.Fatal(err)
	}
	old := inode(t, Path("old"))
	if err := Create("new"); err != nil {
		t.Fatal(err)
	}
	if now := inode(t, Path("old")); now != old || !Exists(Path("old")) {
		t.Errorf("namespace %d became %d", old, now)
	}
	for _, name := range []string{"old", "new"} {
		if err := Remove(name); err != nil {
			t.Error(err)
		}
	}
	checkDirIsEmpty(t)
}

func TestDoRejectsFile(t *testing.T) {
	newTestName(t)
	path := t.TempDir() + "/file"
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Do(path, func() error { t.Error("called"); return nil }); err == nil || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}
