package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

const allocID = "5a1ad3b8-0c2c-7d5e-3f4d-8d4f2a1b9c0e"

// newTestDir returns a built directory that is destroyed with the test.
func newTestDir(t *testing.T) *Dir {
	t.Helper()
	d, err := New(filepath.Join(t.TempDir(), "alloc"), allocID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Destroy(); err != nil {
			t.Error(err)
		}
	})
	if err := d.Build(); err != nil {
		t.Fatal(err)
	}
	return d
}

func buildTask(t *testing.T, d *Dir, name string) *TaskDir {
	t.Helper()
	task, err := d.BuildTaskDir(name, TaskDirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
}

// mountsBelow returns the mount points at or below path. A test may have put the main thread, which is /proc/self, into its own
// mount namespace.
func mountsBelow(t *testing.T, path string) []string {
	t.Helper()
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var mountPoints []string
	for line := range strings.Lines(string(table)) {
		point := strings.Fields(line)[4]
		if point == path || strings.HasPrefix(point, path+"/") {
			mountPoints = append(mountPoints, point)
		}
	}
	return mountPoints
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st
}

// The directories have the documented layout, modes and owners, whatever the umask is (rule RS-076 of docs/reference/rules.md).
func TestLayout(t *testing.T) {
	uid, gid := nobodyIDs()
	taskOwned := [2]int{uid, gid}
	type dir struct {
		mode  uint32
		owner [2]int
	}
	layout := func(alloc, task, local, tmp, secrets dir) map[string]dir {
		shared := dir{0o777, taskOwned}
		return map[string]dir{
			"..": {0o711, [2]int{0, 0}}, ".": alloc,
			"alloc": shared, "alloc/data": shared, "alloc/logs": shared, "alloc/tmp": shared,
			"web": task, "web/local": local, "web/tmp": tmp, "web/secrets": secrets, "web/private": secrets,
		}
	}
	ofRoot, user := [2]int{0, 0}, [2]int{4001, 4001}
	closed, passable := dir{0o700, ofRoot}, dir{0o710, ofRoot} // with an ACL, the mode's group bits show the ACL's mask
	of := func(owner [2]int) dir { return dir{0o700, owner} }
	open := dir{0o777, taskOwned}
	for _, c := range []struct {
		name    string
		options TaskDirOptions
		want    map[string]dir
	}{
		{"none", TaskDirOptions{}, layout(closed, closed, closed, closed, closed)},
		{"none with a user", TaskDirOptions{User: "4001"}, layout(passable, of(user), of(user), of(user), of(user))},
		{"unveil", TaskDirOptions{Isolation: driver.FSIsolationUnveil}, layout(passable, of(taskOwned), of(taskOwned), of(taskOwned), of(taskOwned))},
		{"unveil with a user", TaskDirOptions{Isolation: driver.FSIsolationUnveil, User: "nomad-4001"},
			layout(passable, of(user), of(user), of(user), of(user))},
		{"chroot", TaskDirOptions{Isolation: driver.FSIsolationChroot}, layout(passable, dir{0o755, ofRoot}, of(taskOwned), of(taskOwned), of(taskOwned))},
		{"chroot with a user", TaskDirOptions{Isolation: driver.FSIsolationChroot, User: "4001"},
			layout(passable, dir{0o755, ofRoot}, of(user), of(user), of(user))},
		{"image", TaskDirOptions{Isolation: driver.FSIsolationImage, User: "postgres-of-the-image"},
			layout(closed, closed, open, dir{0o1777, taskOwned}, open)},
		{"admitted users", TaskDirOptions{AdmittedUsers: []string{"4001", "4002"}},
			layout(passable, dir{0o1770, ofRoot}, dir{0o1770, ofRoot}, dir{0o1770, ofRoot}, dir{0o1770, ofRoot})},
	} {
		for _, umask := range []int{0o022, 0o077, 0} {
			t.Run(fmt.Sprintf("%s, umask %03o", c.name, umask), func(t *testing.T) {
				requireRoot(t)
				defer unix.Umask(unix.Umask(umask))
				d := newTestDir(t)
				for range 2 {
					if _, err := d.BuildTaskDir("web", c.options); err != nil {
						t.Fatal(err)
					}
					for name, want := range c.want {
						st := stat(t, filepath.Join(d.Path(), name))
						if got := (dir{st.Mode &^ unix.S_IFMT, [2]int{int(st.Uid), int(st.Gid)}}); got != want {
							t.Errorf("%s: mode %o of %v, want %o of %v", name, got.mode, got.owner, want.mode, want.owner)
						}
					}
				}
			})
		}
	}
}

// An agent that is not root uses Nomad's modes: rootless containers need them.
func TestLayoutUnprivileged(t *testing.T) {
	if isAgentRoot() {
		runTestAs(t, 4001, t.Name())
		return
	}
	for _, umask := range []int{0o022, 0o077, 0} {
		defer unix.Umask(unix.Umask(umask))
		d := newTestDir(t)
		if _, err := d.BuildTaskDir("web", TaskDirOptions{User: "root"}); err != nil {
			t.Fatal(err)
		}
		for name, mode := range map[string]uint32{
			"..": 0o711, ".": 0o755, "alloc": 0o777, "alloc/data": 0o777, "alloc/logs": 0o777, "alloc/tmp": 0o777,
			"web": 0o777, "web/local": 0o777, "web/tmp": 0o1777, "web/secrets": 0o777, "web/private": 0o777,
		} {
			st := stat(t, filepath.Join(d.Path(), name))
			if st.Mode != unix.S_IFDIR|mode || int(st.Uid) != os.Geteuid() {
				t.Errorf("umask %03o, %s: mode %o of user %d, want directory %o of %d", umask, name, st.Mode, st.Uid, mode, os.Geteuid())
			}
		}
	}
}

func TestPaths(t *testing.T) {
	d, err := New("/var/lib/x/alloc/", allocID)
	if err != nil {
		t.Fatal(err)
	}
	task := d.TaskPaths("web")
	base := "/var/lib/x/alloc/" + allocID
	for got, want := range map[string]string{
		d.Path():                base,
		d.LogDir():              base + "/alloc/logs",
		task.AllocDir:           base,
		task.Dir:                base + "/web",
		task.SharedAllocDir:     base + "/alloc",
		task.SharedTaskDir:      base + "/web/alloc",
		task.LocalDir:           base + "/web/local",
		task.LogDir:             base + "/alloc/logs",
		task.SecretsDir:         base + "/web/secrets",
		task.PrivateDir:         base + "/web/private",
		task.UnveiledAllocDir:   "/var/lib/x/alloc_mounts/" + allocID + "-web/alloc",
		task.UnveiledTaskDir:    "/var/lib/x/alloc_mounts/" + allocID + "-web/local",
		task.UnveiledSecretsDir: "/var/lib/x/alloc_mounts/" + allocID + "-web/secrets",
		filepath.Dir(d.Path()):  "/var/lib/x/alloc",
	} {
		if got != want {
			t.Errorf("path %s, want %s", got, want)
		}
	}
}

// Tasks are rejected if their names cannot be directory names.
func TestInvalidNamesAreRejected(t *testing.T) {
	d := newTestDir(t)
	for _, name := range []string{"", ".", "..", "a/b", "../x", "/etc", `a\b`, "a\x00b", strings.Repeat("x", 256)} {
		if _, err := New("/var/lib", name); err == nil {
			t.Errorf("New took the alloc id %q", name)
		}
		if _, err := d.BuildTaskDir(name, TaskDirOptions{}); err == nil {
			t.Errorf("BuildTask took the name %q", name)
		}
		if err := d.DropSecretsAndUnmount(name); err == nil {
			t.Errorf("DropSecrets took the name %q", name)
		}
		if err := d.WriteLocalFile(name, "x", nil); err == nil {
			t.Errorf("WriteLocal took the task name %q", name)
		}
	}
	for _, name := range []string{"alloc", ".web.stdout.fifo"} {
		if _, err := d.BuildTaskDir(name, TaskDirOptions{}); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("BuildTask of the name %s: %v", name, err)
		}
	}
	if _, err := New("relative", allocID); err == nil {
		t.Error("New took a relative root")
	}
	for _, name := range []string{strings.Repeat("x", 255), "a b", "a\nb", "-rf", "...", "Alloc", "ünï"} {
		buildTask(t, d, name)
		if err := d.DropSecretsAndUnmount(name); err != nil {
			t.Error(err)
		}
	}
}

func TestBuildAgainKeepsChangesOfTasks(t *testing.T) {
	d := newTestDir(t)
	task := buildTask(t, d, "web")
	file := filepath.Join(task.LocalDir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(task.LocalDir, 0o750); err != nil { // as the task could
		t.Fatal(err)
	}
	if err := d.Build(); err != nil {
		t.Fatal(err)
	}
	buildTask(t, d, "web")
	if st := stat(t, task.LocalDir); st.Mode&0o7777 != 0o750 {
		t.Errorf("mode of local is %o, and the task has set 750", st.Mode&0o7777)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// A crash between mkdir and chmod leaves a directory that no task can use.
func TestBuildCompletesInterruptedBuild(t *testing.T) {
	d, err := New(filepath.Join(t.TempDir(), "alloc"), allocID)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{d.Path(), filepath.Join(d.Path(), "alloc"), filepath.Join(d.Path(), "web")} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Build(); err != nil {
		t.Fatal(err)
	}
	defer d.Destroy()
	if !isAgentRoot() {
		// If the agent cannot change owners, the tasks run as its user, and the directory
		// keeps Nomad's mode.
		if st := stat(t, d.Path()); st.Mode&0o777 != 0o755 {
			t.Errorf("mode %o, want 755", st.Mode&0o777)
		}
		return
	}
	if _, err := d.BuildTaskDir("web", TaskDirOptions{User: "4001"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]uint32{"alloc": {0o777, 65534}, "web": {0o700, 4001}} {
		if st := stat(t, filepath.Join(d.Path(), name)); st.Mode&0o777 != want[0] || st.Uid != want[1] {
			t.Errorf("%s: mode %o of user %d", name, st.Mode&0o777, st.Uid)
		}
	}
}

func TestBuildTaskNeedsAllocDir(t *testing.T) {
	d, err := New(t.TempDir(), allocID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.BuildTaskDir("web", TaskDirOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("BuildTask without Build: %v", err)
	}
}

func TestDestroyTwiceOrOfMissingDir(t *testing.T) {
	d := newTestDir(t)
	buildTask(t, d, "web")
	for range 2 {
		if err := d.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(d.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
	never, err := New(filepath.Join(t.TempDir(), "nothing", "here"), allocID)
	if err != nil {
		t.Fatal(err)
	}
	if err := never.Destroy(); err != nil {
		t.Error(err)
	}
}

// Destroy removes everything that a task may leave behind, and nothing else.
func TestDestroyRemovesAllFileTypes(t *testing.T) {
	d := newTestDir(t)
	task := buildTask(t, d, "web")
	outside := t.TempDir()
	keep := filepath.Join(outside, "keep")
	if err := os.WriteFile(keep, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	locked := filepath.Join(task.LocalDir, "mod", "cache")
	must(os.MkdirAll(locked, 0o755))
	must(os.WriteFile(filepath.Join(locked, "file"), nil, 0o444))
	must(os.Chmod(locked, 0o555))
	must(os.Chmod(filepath.Dir(locked), 0))
	must(unix.Mkfifo(filepath.Join(task.LocalDir, "fifo"), 0o600))
	must(os.Symlink(outside, filepath.Join(task.LocalDir, "dir-link")))
	must(os.Symlink(keep, filepath.Join(task.LocalDir, "file-link")))
	must(os.Symlink("loop", filepath.Join(task.LocalDir, "loop")))
	must(os.Link(keep, filepath.Join(task.LocalDir, "hard-link")))
	must(os.WriteFile(filepath.Join(task.LocalDir, "new\nline\xff"), nil, 0))
	for i := range 300 { // more entries than one directory read returns
		must(os.WriteFile(filepath.Join(task.LocalDir, fmt.Sprint("many-", i)), nil, 0o600))
	}

	must(d.Destroy())
	if _, err := os.Lstat(d.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("a file outside is gone: %v", err)
	}
}

// A tree deeper than the open file limit, and with paths longer than PATH_MAX.
func TestDestroyDeepTrees(t *testing.T) {
	d := newTestDir(t)
	task := buildTask(t, d, "web")
	const treeDepth = 250
	dir, err := unix.Open(task.LocalDir, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The name to which the removal moves a deep directory already exists.
	if err := os.MkdirAll(filepath.Join(d.Path(), ".removed-1", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range treeDepth {
		if err := unix.Mkdirat(dir, "a-name-of-some-length", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(dir, "a-name-of-some-length", unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(dir)
		dir = next
	}
	unix.Close(dir)

	var oldLimit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &oldLimit); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &oldLimit)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: oldLimit.Max}); err != nil {
		t.Fatal(err)
	}
	if err := d.Destroy(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(d.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// A task replaces directories by links. No function may touch the links' targets.
func TestLinksAreNotFollowed(t *testing.T) {
	for _, name := range []string{"local", "tmp", "secrets", "private"} {
		for _, target := range []string{"outside", "inside"} {
			t.Run(name+" leads "+target, func(t *testing.T) {
				d := newTestDir(t)
				task := buildTask(t, d, "web")
				if err := d.DropSecretsAndUnmount("web"); err != nil {
					t.Fatal(err)
				}
				victim := t.TempDir()
				if target == "inside" { // the target is in another task's directory
					victim = buildTask(t, d, "other").LocalDir
				}
				if err := os.Chmod(victim, 0o700); err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(victim, "file")
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				before := stat(t, victim)

				swapped := filepath.Join(task.Dir, name)
				if err := os.Remove(swapped); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(victim, swapped); err != nil {
					t.Fatal(err)
				}

				buildTask(t, d, "web")
				if name == "secrets" || name == "private" {
					if st := stat(t, swapped); st.Mode&unix.S_IFMT != unix.S_IFDIR {
						t.Errorf("%s is still no directory", name)
					}
				}
				if err := d.DropSecretsAndUnmount("web"); err != nil {
					t.Fatal(err)
				}
				if points := mountsBelow(t, victim); len(points) > 0 {
					t.Errorf("mounted on %s", points)
				}
				if after := stat(t, victim); after.Mode != before.Mode || after.Uid != before.Uid {
					t.Errorf("victim changed from %o of %d to %o of %d", before.Mode, before.Uid, after.Mode, after.Uid)
				}
				if _, err := os.Stat(file); err != nil {
					t.Error(err)
				}
				if target == "outside" {
					if err := d.Destroy(); err != nil {
						t.Fatal(err)
					}
					if _, err := os.Stat(file); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// A task directory that is a link or a file is rejected.
func TestTaskDirectoryMustBeADirectory(t *testing.T) {
	d := newTestDir(t)
	victim := t.TempDir()
	if err := os.Symlink(victim, filepath.Join(d.Path(), "web")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.BuildTaskDir("web", TaskDirOptions{}); err == nil {
		t.Error("BuildTask followed a link")
	}
	if entries, _ := os.ReadDir(victim); len(entries) > 0 {
		t.Errorf("it has made %v", entries)
	}
}

// A task changes the links during BuildTaskDir and DropSecretsAndUnmount.
func TestLinksThatChangeDuringBuild(t *testing.T) {
	d := newTestDir(t)
	task := buildTask(t, d, "web")
	if err := d.DropSecretsAndUnmount("web"); err != nil {
		t.Fatal(err)
	}
	victim := t.TempDir()
	file := filepath.Join(victim, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := stat(t, victim)

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		link, dir := filepath.Join(task.Dir, "link"), filepath.Join(task.Dir, "dir")
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, name := range []string{"local", "secrets"} {
				path := filepath.Join(task.Dir, name)
				os.Symlink(victim, link)
				os.Remove(path)
				os.Rename(link, path)
				os.Mkdir(dir, 0o755)
				os.Remove(path)
				os.Rename(dir, path)
			}
		}
	}()
	for range 200 {
		d.BuildTaskDir("web", TaskDirOptions{}) // may fail, must not follow
		d.DropSecretsAndUnmount("web")
	}
	close(stop)
	<-stopped
	if points := mountsBelow(t, victim); len(points) > 0 {
		t.Errorf("mounted on %s", points)
		unix.Unmount(victim, unix.MNT_DETACH)
	}
	if after := stat(t, victim); after.Mode != before.Mode || after.Uid != before.Uid {
		t.Errorf("victim changed from %o of %d to %o of %d", before.Mode, before.Uid, after.Mode, after.Uid)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func TestWriteLocal(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	d := newTestDir(t)
	task := buildTask(t, d, "web")
	for range 2 {
		if err := d.WriteLocalFile("web", "a/b/payload", []byte("data\x00")); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(task.LocalDir, "a/b/payload")
	if got, err := os.ReadFile(path); err != nil || string(got) != "data\x00" {
		t.Errorf("read %q, %v", got, err)
	}
	for _, p := range []string{path, filepath.Dir(path), filepath.Dir(filepath.Dir(path))} {
		if st := stat(t, p); st.Mode&0o7777 != 0o755 {
			t.Errorf("mode of %s is %o, want 755", p, st.Mode&0o7777)
		}
	}
	if err := d.WriteLocalFile("web", "../../note", nil); err != nil {
		t.Errorf("a path within the allocation: %v", err)
	}

	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(victim), filepath.Join(task.LocalDir, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(task.LocalDir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(task.LocalDir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../../../x", "/../../../x", "out/victim", "out/new", "", ".", ".."} {
		if err := d.WriteLocalFile("web", name, []byte("new")); err == nil {
			t.Errorf("WriteLocal took the path %q", name)
		}
	}
	for _, name := range []string{"link", "fifo", "/abs"} { // WriteLocalFile replaces the link and the FIFO, and treats the absolute path as relative
		if err := d.WriteLocalFile("web", name, []byte("new")); err != nil {
			t.Error(err)
		}
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != "old" {
		t.Errorf("outside: read %q, %v", got, err)
	}
}

func TestOpenConfinesPaths(t *testing.T) {
	d := newTestDir(t)
	buildTask(t, d, "web")
	root, err := d.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := root.Stat("web/local"); err != nil {
		t.Error(err)
	}
	if err := os.Symlink("/etc", filepath.Join(d.Path(), "web", "etc")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"web/etc/passwd", "../x", "/etc/passwd"} {
		if _, err := root.Stat(path); err == nil {
			t.Errorf("the handle leads to %s", path)
		}
	}
}

// A link in place of the file or the allocation's directory does not make the agent write elsewhere.
func TestOpenToAppendFollowsNoLink(t *testing.T) {
	d, outside := newTestDir(t), t.TempDir()
	buildTask(t, d, "web")
	for range 2 {
		file, err := d.OpenToAppend("log")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString("line\n"); err != nil {
			t.Error(err)
		}
		file.Close()
	}
	if got, err := os.ReadFile(filepath.Join(d.Path(), "log")); string(got) != "line\nline\n" {
		t.Errorf("the file has %q, %v", got, err)
	}
	if err := os.Symlink(outside+"/file", filepath.Join(d.Path(), "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "web", "../x", "web/x"} {
		if file, err := d.OpenToAppend(name); err == nil {
			t.Errorf("%s was opened for writing", name)
			file.Close()
		}
	}
	linked, err := New(filepath.Dir(d.Path()), "linked")
	if err == nil {
		err = os.Symlink(outside, linked.Path())
	}
	if err != nil {
		t.Fatal(err)
	}
	if file, err := linked.OpenToAppend("file"); !errors.Is(err, errNotDir) {
		t.Errorf("opened %v behind a link: %v", file, err)
	}
	if entries, err := os.ReadDir(outside); len(entries) > 0 || err != nil {
		t.Errorf("files behind links: %v, %v", entries, err)
	}
}

func TestRemoveAllocDir(t *testing.T) {
	base := filepath.Join(t.TempDir(), "run-1")
	d, err := New(filepath.Join(base, "alloc"), allocID)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Build(); err != nil {
		t.Fatal(err)
	}
	buildTask(t, d, "web")
	for range 2 {
		if err := UnmountAndRemoveOwnDir(base); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(base); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if points := mountsBelow(t, base); len(points) > 0 {
		t.Errorf("still mounted: %s", points)
	}

	link := filepath.Join(t.TempDir(), "link")
	victim := t.TempDir()
	if err := os.Symlink(victim, link); err != nil {
		t.Fatal(err)
	}
	if err := UnmountAndRemoveOwnDir(link); err == nil {
		t.Error("Sweep took a link")
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
	if isAgentRoot() {
		foreign := t.TempDir()
		if err := os.Chown(foreign, 1234, 1234); err != nil {
			t.Fatal(err)
		}
		if err := UnmountAndRemoveOwnDir(foreign); err == nil {
			t.Error("Sweep took a directory of another user")
		}
	}
}

func TestDestroyErrorNamesRemainingFiles(t *testing.T) {
	requireRoot(t)
	d := newTestDir(t)
	task := buildTask(t, d, "web")
	var files []string
	for i := range 20 {
		path := filepath.Join(task.LocalDir, fmt.Sprint("immutable-", i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if !setImmutable(t, path, true) {
			t.Skip("this file system has no immutable files")
		}
		files = append(files, path)
	}
	err := d.Destroy()
	for _, path := range files {
		setImmutable(t, path, false)
	}
	if err == nil || !strings.Contains(err.Error(), "immutable-") || !strings.Contains(err.Error(), "more") {
		t.Errorf("Destroy = %v, want some of the files and that there are more", err)
	}
	if n := strings.Count(fmt.Sprint(err), "\n"); n > maxReturnedErrors {
		t.Errorf("%d lines of errors", n)
	}
	if points := mountsBelow(t, d.Path()); len(points) > 0 {
		t.Errorf("it has stopped at the error, and left %s", points)
	}
}

func setImmutable(t *testing.T, path string, on bool) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags := 0
	if on {
		flags = unix.STATX_ATTR_IMMUTABLE // STATX_ATTR_IMMUTABLE is the same bit as FS_IMMUTABLE_FL
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags) == nil
}

func TestNoFileDescriptorIsLeaked(t *testing.T) {
	before := openFiles(t)
	d := newTestDir(t)
	buildTask(t, d, "web")
	buildTask(t, d, "web")
	d.WriteLocalFile("web", "x", nil)
	d.DropSecretsAndUnmount("web")
	d.Destroy()
	if after := openFiles(t); !slices.Equal(before, after) {
		t.Errorf("open files before: %v, after: %v", before, after)
	}
}

func openFiles(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(target, "anon_inode") {
			names = append(names, e.Name()+" "+target)
		}
	}
	return names
}

func TestRemoveWhileAnotherProcessRemoves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r := treeRemover{}
	if r.removeDirContent(dir, 0); r.errorCount > 0 {
		t.Error(r.firstErrs)
	}
}
