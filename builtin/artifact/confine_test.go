package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// attackHostFromDownload tries to affect the rest of the machine, as a compromised download
// could, and reports the calls that have succeeded.
func attackHostFromDownload(outer string) int {
	var succeededCalls []string
	try := func(what string, err error) {
		if err == nil {
			succeededCalls = append(succeededCalls, what)
		}
	}
	_, err := os.ReadFile("/etc/shadow")
	try("read /etc/shadow", err)
	_, err = os.ReadFile("/etc/hostname")
	try("read /etc/hostname", err)
	_, err = os.ReadDir("/tmp")
	try("list /tmp", err)
	_, err = os.ReadFile(filepath.Join(outer, "open"))
	try("read a file of everybody", err)
	try("write outside", os.WriteFile(filepath.Join(outer, "everybody", "evil"), nil, 0o644))
	try("truncate outside", os.Truncate(filepath.Join(outer, "open"), 0))
	try("link from outside", os.Link(filepath.Join(outer, "open"), "in"))
	_, err = net.Dial("unix", filepath.Join(outer, "everybody", "socket"))
	try("talk to a service", err)
	_, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	try("", err) // socket pairs are allowed, so this call must succeed
	try("make a pipe", unix.Mkfifo("pipe", 0o600))
	try("make a device", unix.Mknod("device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	_, err = unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true)
	try("use the kernel's keys", err)
	// These calls must fail with EACCES, the error of the seccomp filter: the
	// filter acts before the kernel checks permissions.
	for what, err := range map[string]error{
		"mount": unix.Mount("none", ".", "tmpfs", 0, ""), "look into its parent": unix.PtraceSeize(os.Getppid()), "unshare": unix.Unshare(unix.CLONE_NEWNS),
	} {
		if !errors.Is(err, unix.EACCES) {
			succeededCalls = append(succeededCalls, fmt.Sprintf("ask to %s: %v", what, err))
		}
	}
	if os.Geteuid() == 0 {
		succeededCalls = append(succeededCalls, "be root")
	}
	if i := slices.Index(succeededCalls, ""); i < 0 {
		succeededCalls = append(succeededCalls, "not even talk to itself")
	} else {
		succeededCalls = slices.Delete(succeededCalls, i, i+1)
	}
	if len(succeededCalls) > 0 {
		fmt.Fprintln(os.Stderr, "could "+strings.Join(succeededCalls, ", "))
		return 1
	}
	return 0
}

// tryConfinedCalls makes calls that ConfineHookProcess denies, and reports those that
// were not denied.
func tryConfinedCalls() int {
	self, err := os.Open("/proc/self/ns/uts")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for what, err := range map[string]error{
		"look into its parent":      unix.PtraceSeize(os.Getppid()),
		"unmount something":         unix.Unmount("/proc/self/fd", 0),
		"change its root":           unix.Chroot("/"),
		"go into another namespace": unix.Setns(int(self.Fd()), unix.CLONE_NEWUTS),
		"load a module":             unix.InitModule(nil, ""),
	} {
		if !errors.Is(err, unix.EACCES) {
			fmt.Fprintf(os.Stderr, "could %s: %v\n", what, err)
			return 1
		}
	}
	return 0
}

func TestConfinedProcess(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "confined")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestConfinement(t *testing.T) {
	for _, c := range []struct {
		name       string
		noLandlock bool
		want       string
	}{
		{"with landlock nothing else is there", false, ""},
		{"without it the process has no account at least", true,
			"could read /etc/hostname, list /tmp, read a file of everybody, write outside, talk to a service, make a pipe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newFixture(t)
			if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 && !c.noLandlock {
				t.Skip(errNoLandlock)
			}
			if err := os.WriteFile(filepath.Join(w.outerDir, "open"), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
			everybody := filepath.Join(w.outerDir, "everybody")
			if err := errors.Join(os.Mkdir(everybody, 0o777), os.Chmod(everybody, 0o777)); err != nil {
				t.Fatal(err)
			}
			socket, err := net.Listen("unix", filepath.Join(everybody, "socket"))
			if err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
			if err := os.Chmod(filepath.Join(everybody, "socket"), 0o777); err != nil {
				t.Fatal(err)
			}
			stage := filepath.Join(w.outerDir, "stage")
			if os.Geteuid() != 0 && c.noLandlock {
				t.Skip("somebody else has nothing to give up")
			}
			if err := os.Mkdir(stage, 0o700); err != nil {
				t.Fatal(err)
			}
			dir, err := os.Open(stage)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			err = runDownloadProcess(t.Context(), []string{"burgle", w.outerDir}, downloadRequest{Limits: Limits{DisableLandlock: c.noLandlock}}, dir, io.Discard)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("the process %v", err)
			case c.want != "" && (err == nil || !strings.HasSuffix(err.Error(), c.want)):
				t.Errorf("got %v, want …%s", err, c.want)
			}
		})
	}
}

// takeOwnershipAndCheckFiles rejects results that only a compromised download process can
// make.
func TestInspectRejectsHostileResults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		make func(dir, outer string) error
		want string
	}{
		{"a link", func(dir, _ string) error { return os.Symlink("/etc", dir+"/l") }, "artifact includes symlink that resolves outside of sandbox"},
		{"a pipe", func(dir, _ string) error { return unix.Mkfifo(dir+"/p", 0o600) }, `artifact includes "p", which is a named pipe`},
		{"a hard link", func(dir, outer string) error { return os.Link(outer+"/mine", dir+"/h") }, `artifact includes hard link "h" to a file outside of it`},
		{"directories without end", func(dir, _ string) error { return os.MkdirAll(dir+strings.Repeat("/d", 300), 0o755) }, "artifact includes directories that are nested more than 256 deep"},
		{"nothing", func(dir, _ string) error { return os.Remove(dir) }, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			if err := os.WriteFile(w.outerDir+"/mine", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := newInstallerWithStagingDir(destination{w.dir.Dir, "local"}, "main", "k", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer p.closeAndRemoveStagingDir()
			dir := filepath.Join(w.dir.Dir, p.stagingDirName, resultFileName)
			if err := errors.Join(os.Mkdir(dir, 0o755), c.make(dir, w.outerDir)); err != nil {
				t.Fatal(err)
			}
			if _, err := p.install(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want …%s…", err, c.want)
			}
			w.expectLocalFiles(map[string]string{})
		})
	}
}

// The process that starts git has access to /proc, which it needs for a user
// namespace; git itself has no access.
func TestGitSeesNoProcesses(t *testing.T) {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 {
		t.Skip(errNoLandlock)
	}
	w := newFixture(t)
	repo := newRepository(t)
	closed := filepath.Join(w.outerDir, "closed")
	if err := os.MkdirAll(closed+"/tool", 0o700); err != nil {
		t.Fatal(err)
	}
	stage := filepath.Join(w.outerDir, "stage")
	if err := os.Mkdir(stage, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(stage)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	// The request makes git run cat instead of this program: with the race detector, the program
	// could not start without /proc.
	o := downloadRequest{Source: "git::https://x" + repo.dir, Limits: Limits{ExtraPaths: []string{"d:r:" + closed + "/tool"}}}
	err = runDownloadProcess(t.Context(), []string{"gitburgle"}, o, dir, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "/proc/1/status: Permission denied") || strings.Contains(err.Error(), "Name:") {
		t.Errorf("got %v, want git to be denied /proc", err)
	}
}

// readProcWithGitAlias runs git with an alias that prints a file of /proc.
func readProcWithGitAlias(o downloadRequest) error {
	root, err := os.OpenRoot(".")
	if err != nil {
		return err
	}
	u, err := url.Parse("https://x/y")
	if err != nil {
		return err
	}
	d := &downloader{downloadRequest: o, stagingRoot: root, parsedSource: &parsedSource{sourceType: "git", url: u}}
	return d.runGit(context.Background(), os.Environ(), []string{"-c", "alias.x=!cat /proc/1/status", "x"}, nil)
}
