package allocdir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// The accounts for these tests. None has an entry in the user database.
const (
	attackerUID = 4242
	aliceUID    = 4001
	bobUID      = 4002
	carolUID    = 4003
)

// newPublicTempDir returns a directory that every account can enter, as /var/lib is.
func newPublicTempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// newPublicDir returns a built directory in a directory that every account can enter.
func newPublicDir(t *testing.T) *Dir {
	t.Helper()
	requireRoot(t)
	d, err := New(filepath.Join(newPublicTempDir(t), "alloc"), allocID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		entries, _ := os.ReadDir(d.Path())
		for _, e := range entries { // drops each task's secrets, as the runner does when a task has ended
			if e.Name() != sharedDirName {
				if err := d.DropSecretsAndUnmount(e.Name()); err != nil {
					t.Error(err)
				}
			}
		}
		if err := d.Destroy(); err != nil {
			t.Error(err)
		}
	})
	if err := d.Build(); err != nil {
		t.Fatal(err)
	}
	return d
}

func mustBuildTask(t *testing.T, d *Dir, name string, o TaskDirOptions) *TaskDir {
	t.Helper()
	task, err := d.BuildTaskDir(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// runShellAs runs a script as another account, which knows the allocation's paths.
func runShellAs(t *testing.T, uid int, script string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	var exitErr *exec.ExitError
	if err != nil && !errors.As(err, &exitErr) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out)), err
}

func wantAllowed(t *testing.T, uid int, script string, args ...string) {
	t.Helper()
	if out, err := runShellAs(t, uid, script, args...); err != nil {
		t.Errorf("user %d cannot %s %q: %s", uid, script, args, out)
	}
}

func wantDenied(t *testing.T, uid int, script string, args ...string) {
	t.Helper()
	if out, err := runShellAs(t, uid, script, args...); err == nil {
		t.Errorf("user %d can %s %q: %s", uid, script, args, out)
	}
}

// wantAllDenied expects that each script fails. One shell runs them all.
func wantAllDenied(t *testing.T, uid int, scripts []string, args ...string) {
	t.Helper()
	var all strings.Builder
	for i, script := range scripts {
		fmt.Fprintf(&all, "(%s) >/dev/null 2>&1 && echo %d\n", script, i)
	}
	out, err := runShellAs(t, uid, all.String()+"echo all", args...)
	allowed := strings.Fields(out)
	if n := len(allowed); err != nil || n == 0 || allowed[n-1] != "all" {
		t.Fatalf("the shell of user %d: %v, %s", uid, err, out)
	}
	for _, i := range allowed[:len(allowed)-1] {
		n, err := strconv.Atoi(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("user %d can %s %q", uid, scripts[n], args)
	}
}

// runTestAs runs one of this package's tests as another account.
func runTestAs(t *testing.T, uid int, name string) {
	t.Helper()
	dir := newPublicTempDir(t)
	program := filepath.Join(dir, "allocdir.test")
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	// A child that is started concurrently must not inherit the file while it is open
	// for writing: the file could not be executed.
	syscall.ForkLock.RLock()
	to, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	if err == nil {
		_, err = io.Copy(to, from)
		err = errors.Join(err, to.Close())
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(dir, "tmp")
	if err := errors.Join(os.Mkdir(tmp, 0o700), os.Chown(tmp, uid, uid)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^"+name+"$", "-test.v")
	cmd.Dir = tmp
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+name)) {
		t.Errorf("as user %d: %v\n%s", uid, err, out)
	}
}

// A local account cannot read, list, replace or create anything in an allocation, although it knows all paths; the tasks'
// users can use their own directories, but not each other's.
func TestOtherUsersHaveNoAccess(t *testing.T) {
	isolations := map[string]driver.FSIsolation{
		"none": driver.FSIsolationNone, "chroot": driver.FSIsolationChroot,
		"image": driver.FSIsolationImage, "unveil": driver.FSIsolationUnveil,
	}
	for name, isolation := range isolations {
		t.Run(name, func(t *testing.T) {
			d := newPublicDir(t)
			users := map[string]string{"as-root": "", "as-alice": strconv.Itoa(aliceUID), "as-bob": strconv.Itoa(bobUID)}
			for task, user := range users {
				dir := mustBuildTask(t, d, task, TaskDirOptions{User: user, Isolation: isolation})
				for _, file := range []string{
					filepath.Join(dir.SecretsDir, "token"), filepath.Join(dir.PrivateDir, "token"), filepath.Join(dir.LocalDir, "run.sh"),
					filepath.Join(dir.Dir, "file"), filepath.Join(dir.Dir, "tmp", "file"), filepath.Join(dir.SharedAllocDir, "data", task),
				} {
					if err := os.WriteFile(file, []byte("secret"), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			attack := func(uid int, dir string) {
				t.Helper()
				var scripts []string
				for _, sub := range []string{"", "local", "secrets", "private", "tmp"} {
					path := `"$1/` + sub + `"`
					if isolation == driver.FSIsolationChroot && sub == "" && uid != attackerUID {
						continue // with isolation chroot, a task's directory has the mode 0755
					}
					scripts = append(scripts, "ls "+path, ": > "+path+"/new", "cd "+path)
				}
				scripts = append(scripts, `cat "$1/secrets/token"`, `cat "$1/local/run.sh"`, `echo evil > "$1/local/run.sh"`,
					`mv "$1/local/run.sh" "$1/local/moved"`, `ln -sf /etc/passwd "$1/local/run.sh"`, `ln "$1/local/run.sh" "$2/stolen"`)
				wantAllDenied(t, uid, scripts, dir, newPublicTempDir(t))
			}
			wantDenied(t, attackerUID, `ls "$1"`, d.Path())
			wantDenied(t, attackerUID, `ls "$1/alloc/data"`, d.Path())
			wantDenied(t, attackerUID, `: > "$1/alloc/data/new"`, d.Path())
			for task := range users {
				attack(attackerUID, d.TaskPaths(task).Dir)
				if place := filepath.Dir(d.TaskPaths(task).UnveiledTaskDir); isolation == driver.FSIsolationUnveil {
					wantDenied(t, attackerUID, `ls "$1"`, place)
					wantDenied(t, attackerUID, `cat "$1/secrets/token"`, place)
					wantDenied(t, attackerUID, `cat "$1/alloc/data/as-root"`, place)
				}
			}
			if isolation == driver.FSIsolationImage {
				wantDenied(t, aliceUID, `ls "$1"`, d.Path())
				return // with isolation image, the driver binds the directories into a container
			}
			for uid, task := range map[int]string{aliceUID: "as-alice", bobUID: "as-bob"} {
				own := d.TaskPaths(task)
				wantAllowed(t, uid, `cd "$1/local" && cat run.sh && : > new && rm new && cat "$1/secrets/token" && : > "$1/secrets/new"`, own.Dir)
				wantAllowed(t, uid, `: > "$1/tmp/new" && cat "$2/data/as-root" && : > "$2/data/by-$3"`, own.Dir, own.SharedAllocDir, task)
				wantDenied(t, uid, `ls "$1"`, d.Path())
				wantDenied(t, uid, `: > "$1/new"`, d.Path())
				if isolation == driver.FSIsolationUnveil {
					wantAllowed(t, uid, `cat "$1/secrets/token" "$1/local/run.sh" "$1/alloc/data/as-root"`, filepath.Dir(own.UnveiledTaskDir))
				}
				for other := range users {
					if other != task {
						attack(uid, d.TaskPaths(other).Dir)
					}
				}
			}
		})
	}
}

// A task that changes its user by itself names the users in lite_users: they can use its directories, but cannot replace
// another user's files.
func TestAdmittedUsers(t *testing.T) {
	for name, o := range map[string]TaskDirOptions{
		"of root":     {AdmittedUsers: []string{"4001", "4002", "0"}},
		"of carol":    {User: strconv.Itoa(carolUID), AdmittedUsers: []string{"4002", "4001", "4001", "4003"}},
		"with chroot": {AdmittedUsers: []string{"4001", "4002"}, Isolation: driver.FSIsolationChroot},
		"with image":  {AdmittedUsers: []string{"4001", "4002"}, Isolation: driver.FSIsolationImage},
		"with unveil": {AdmittedUsers: []string{"4001", "4002"}, Isolation: driver.FSIsolationUnveil},
	} {
		t.Run(name, func(t *testing.T) {
			d := newPublicDir(t)
			task := mustBuildTask(t, d, "web", o)
			for _, file := range []string{filepath.Join(task.SecretsDir, "token"), filepath.Join(task.LocalDir, "run.sh")} {
				if err := os.WriteFile(file, []byte("secret"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				for _, uid := range []int{aliceUID, bobUID} {
					wantAllowed(t, uid, `cat "$1/secrets/token" "$1/local/run.sh"`, task.Dir)
					wantAllowed(t, uid, `for d in local secrets tmp; do : > "$1/$d/by-$2" && ls "$1/$d" && rm "$1/$d/by-$2"; done`, task.Dir, strconv.Itoa(uid))
					wantAllowed(t, uid, `: > "$1/data/by-$2"`, task.SharedAllocDir, strconv.Itoa(uid))
					if o.Isolation != driver.FSIsolationImage { // with isolation image, only the container separates the users
						wantDenied(t, uid, `echo evil > "$1/local/run.sh"`, task.Dir)
						wantDenied(t, uid, `mv "$1/local/run.sh" "$1/local/moved"`, task.Dir)
						wantDenied(t, uid, `rm -f "$1/secrets/token"`, task.Dir)
					}
					if o.Isolation == driver.FSIsolationUnveil {
						wantAllowed(t, uid, `cat "$1/secrets/token"`, filepath.Dir(task.UnveiledTaskDir))
					}
				}
				wantDenied(t, attackerUID, `cat "$1/secrets/token"`, task.Dir)
				task = mustBuildTask(t, d, "web", o)
			}
		})
	}
}

// Users admitted when the directories exist cannot replace another user's files either. An agent killed after it had set
// the owner leaves directories in the same state.
func TestUsersAreAdmittedLater(t *testing.T) {
	d := newPublicDir(t)
	for _, user := range []string{"", "4003"} {
		task := mustBuildTask(t, d, "web"+user, TaskDirOptions{User: user})
		mustBuildTask(t, d, "web"+user, TaskDirOptions{User: user, AdmittedUsers: []string{"4001"}})
		for _, dir := range []string{task.Dir, task.LocalDir} {
			if st := stat(t, dir); st.Mode&0o7070 != unix.S_ISVTX|0o070 {
				t.Errorf("%s of user %q: mode %o has no sticky bit or no ACL", dir, user, st.Mode&0o7777)
			}
		}
	}
}

// A task's directory belongs to the task's user at this start, even if the user was created by another task, has another
// uid than before, or an earlier version has used Nomad's modes.
func TestDirectoryFollowsTheUser(t *testing.T) {
	d := newPublicDir(t)
	task := mustBuildTask(t, d, "web", TaskDirOptions{User: strconv.Itoa(aliceUID)})
	wantAllowed(t, aliceUID, `mkdir -p "$1/local/deep/er" && echo mine > "$1/local/deep/er/file" && ln -s /etc/passwd "$1/local/link" && echo mine > "$1/secrets/file"`, task.Dir)
	artifact := filepath.Join(task.LocalDir, "artifact")
	if err := os.WriteFile(artifact, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	elsewhere := newPublicTempDir(t)
	bound := filepath.Join(task.LocalDir, "bound")
	if err := errors.Join(os.Chown(elsewhere, aliceUID, aliceUID), os.Mkdir(bound, 0o700), unix.Mount(elsewhere, bound, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}

	mustBuildTask(t, d, "web", TaskDirOptions{User: strconv.Itoa(bobUID)})
	wantAllowed(t, bobUID, `echo mine > "$1/local/deep/er/file" && rm "$1/local/link" && cat "$1/secrets/file"`, task.Dir)
	wantDenied(t, aliceUID, `ls "$1/local"`, task.Dir)
	if st := stat(t, artifact); st.Uid != 0 {
		t.Errorf("a file that belonged to root belongs to user %d", st.Uid)
	}
	if st := stat(t, elsewhere); st.Uid != aliceUID {
		t.Errorf("what is behind a mount was given to user %d", st.Uid)
	}
	if st := stat(t, "/etc/passwd"); st.Uid != 0 {
		t.Fatalf("a link was followed: /etc/passwd belongs to user %d", st.Uid)
	}

	mustBuildTask(t, d, "web", TaskDirOptions{})
	wantDenied(t, bobUID, `ls "$1/local"`, task.Dir)
}

// Sticky data gets the owner that the task has in the next allocation.
func TestStickyDataFollowsTheUser(t *testing.T) {
	ids := map[string][]string{"": {"4001"}, "4001": {"4001", "4002", ""}}
	for before, next := range ids {
		for _, after := range next {
			t.Run(fmt.Sprintf("from %q to %q", before, after), func(t *testing.T) {
				previous := newPublicDir(t)
				was := mustBuildTask(t, previous, "web", TaskDirOptions{User: before, AdmittedUsers: []string{strconv.Itoa(carolUID)}})
				uid, _ := strconv.Atoi("0" + before)
				wantAllowed(t, uid, `mkdir "$1/data" && echo kept > "$1/data/file" && chmod 600 "$1/data/file"`, was.LocalDir)

				d, err := New(filepath.Dir(previous.Path()), "next")
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(d.Build(), d.MoveDataFrom(previous, []string{"web"})); err != nil {
					t.Fatal(err)
				}
				wantDenied(t, uid+attackerUID, `ls "$1"`, d.Path())
				task := mustBuildTask(t, d, "web", TaskDirOptions{User: after})
				defer d.Destroy()
				uid, _ = strconv.Atoi("0" + after)
				wantAllowed(t, uid, `test "$(cat "$1/data/file")" = kept && echo more >> "$1/data/file"`, task.LocalDir)
				wantDenied(t, carolUID, `ls "$1"`, task.LocalDir) // the earlier allocation has admitted carol, and this one has not
				if st := stat(t, task.LocalDir); st.Mode&0o777 != 0o700 {
					t.Errorf("mode %o, want 700", st.Mode&0o777)
				}
			})
		}
	}
}

// Directories left open by an earlier version are closed while their tasks run: the tasks' users are not locked out.
func TestRestrictAccess(t *testing.T) {
	d := newPublicDir(t)
	uid, gid := nobodyIDs()
	open := func(name string, mode fs.FileMode, uid, gid int) {
		t.Helper()
		path := filepath.Join(d.Path(), name)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chown(path, uid, gid), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	tasks := map[string]TaskDirOptions{
		"as-root": {}, "as-alice": {User: "4001"}, "as-nobody": {Isolation: driver.FSIsolationUnveil}, "gone": {User: "a-user-that-is-gone"},
	}
	open(".", 0o755, 0, 0)
	var all []TaskDirOptions
	for name, o := range tasks {
		open(name, 0o777, uid, gid)
		for _, sub := range []string{"local", "secrets", "private"} {
			open(name+"/"+sub, 0o777, uid, gid)
		}
		open(name+"/tmp", 0o777|fs.ModeSticky, uid, gid)
		if err := os.WriteFile(filepath.Join(d.Path(), name, "local", "file"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	wantAllowed(t, attackerUID, `ls "$1/as-root/local"`, d.Path()) // the test is meaningful only if the attacker has access at first

	for range 2 {
		if err := d.RestrictToTaskUsers(all); err != nil {
			t.Fatal(err)
		}
		wantDenied(t, attackerUID, `ls "$1/as-root/local"`, d.Path())
		wantAllowed(t, aliceUID, `cat "$1/as-alice/local/file"`, d.Path())
		wantAllowed(t, uid, `cat "$1/as-nobody/local/file"`, d.Path())
	}
	for name, o := range tasks {
		if name == "gone" {
			if _, err := d.BuildTaskDir(name, o); err == nil || !strings.Contains(err.Error(), "unknown user a-user-that-is-gone") {
				t.Errorf("a user that is not there: %v", err)
			}
			continue
		}
		mustBuildTask(t, d, name, o)
		owner := stat(t, d.TaskPaths(name).LocalDir)
		for _, sub := range []string{"", "local", "tmp", "secrets", "private"} {
			if st := stat(t, filepath.Join(d.TaskPaths(name).Dir, sub)); st.Mode&0o7777 != 0o700 || st.Uid != owner.Uid {
				t.Errorf("%s/%s: mode %o of %d", name, sub, st.Mode&0o7777, st.Uid)
			}
		}
	}
	wantAllowed(t, aliceUID, `cat "$1/as-alice/local/file" && : > "$1/as-alice/local/new"`, d.Path())
	wantDenied(t, aliceUID, `ls "$1/as-root"`, d.Path())
	wantDenied(t, aliceUID, `ls "$1/as-nobody"`, d.Path())
}

func TestDenyAccess(t *testing.T) {
	d := newPublicDir(t)
	mustBuildTask(t, d, "web", TaskDirOptions{User: "4001"})
	if err := os.Chmod(d.Path(), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.RestrictToRoot(); err != nil {
			t.Fatal(err)
		}
		wantDenied(t, attackerUID, `ls "$1/alloc"`, d.Path())
	}
	never, err := New(filepath.Dir(d.Path()), "never")
	if err != nil {
		t.Fatal(err)
	}
	if err := never.RestrictToRoot(); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// A task that runs as root may have mounted another service's data in place of its own directories.
func TestMountsOfTheTaskKeepTheirOwner(t *testing.T) {
	d := newPublicDir(t)
	task := mustBuildTask(t, d, "web", TaskDirOptions{})
	service := t.TempDir()
	if err := errors.Join(os.Chown(service, aliceUID, aliceUID), os.Chmod(service, 0o777), unix.Mount(service, task.LocalDir, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	mustBuildTask(t, d, "web", TaskDirOptions{User: strconv.Itoa(bobUID)})
	if st := stat(t, service); st.Uid != aliceUID || st.Mode&0o777 != 0o777 {
		t.Errorf("what is mounted there has mode %o and user %d now", st.Mode&0o777, st.Uid)
	}
}

// A dismissed user has no access to the allocation's files, although some belong to the user, until a task is built for
// the user again. Other users keep their access.
func TestRevokeUserAccess(t *testing.T) {
	d := newPublicDir(t)
	uid, _ := nobodyIDs()
	mustBuildTask(t, d, "web", TaskDirOptions{User: "nomad-4001"})
	mustBuildTask(t, d, "other", TaskDirOptions{User: "nobody"})
	wantAllowed(t, aliceUID, `: > "$1/web/local/file" && ls "$1/alloc/data"`, d.Path())
	for range 2 {
		if err := d.RevokeUserAccess(uint32(aliceUID)); err != nil {
			t.Fatal(err)
		}
	}
	wantDenied(t, aliceUID, `cat "$1/web/local/file"`, d.Path())
	wantDenied(t, aliceUID, `ls "$1/alloc/data"`, d.Path())
	wantAllowed(t, uid, `ls "$1/other/local"`, d.Path())
	mustBuildTask(t, d, "web", TaskDirOptions{User: "nomad-4001"})
	wantAllowed(t, aliceUID, `cat "$1/web/local/file"`, d.Path())
}

// An allocation's tasks start at the same time: each admits its user.
func TestUsersAreAdmittedConcurrently(t *testing.T) {
	d := newPublicDir(t)
	const taskCount = 40
	errs := make(chan error)
	for i := range taskCount {
		go func() {
			_, err := d.BuildTaskDir(fmt.Sprint("task-", i), TaskDirOptions{User: fmt.Sprint(5000 + i)})
			errs <- err
		}()
	}
	for range taskCount {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	h, err := openTrustedDir(d.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	users, err := h.readTraverseUIDs()
	if err != nil || len(users) != taskCount {
		t.Errorf("%d users are admitted, want %d: %v", len(users), taskCount, err)
	}
}

// The file system ramfs supports owners, but no ACLs. A task starts there if it needs no ACL. If it needs an ACL, it
// fails with the reason, unless the operator allows Nomad's modes.
func TestFileSystemWithoutACLs(t *testing.T) {
	requireRoot(t)
	base := newPublicTempDir(t)
	if err := unix.Mount("ramfs", base, "ramfs", 0, ""); err != nil {
		t.Skipf("ramfs cannot be mounted here: %v", err)
	}
	defer unix.Unmount(base, unix.MNT_DETACH)
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := New(filepath.Join(base, "alloc"), allocID)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Destroy()
	if err := d.Build(); err != nil {
		t.Fatal(err)
	}
	mustBuildTask(t, d, "as-root", TaskDirOptions{})
	wantDenied(t, attackerUID, `ls "$1"`, d.Path())
	for name, o := range map[string]TaskDirOptions{
		"as-alice": {User: "4001"}, "admits": {AdmittedUsers: []string{"4001"}}, "image": {Isolation: driver.FSIsolationImage, AdmittedUsers: []string{"4001"}},
		"unveil": {Isolation: driver.FSIsolationUnveil, User: "4001"},
	} {
		_, err := d.BuildTaskDir(name, o)
		if err == nil || !strings.Contains(err.Error(), "alloc_dir.nomad_modes") || !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s: %v, want an error that names the option", name, err)
		}
		wantDenied(t, attackerUID, `ls "$1"`, d.Path())
	}
	for name, o := range map[string]TaskDirOptions{
		"as-alice": {User: "4001"}, "admits": {AdmittedUsers: []string{"4001"}}, "image": {Isolation: driver.FSIsolationImage, AdmittedUsers: []string{"4001"}},
		"unveil": {Isolation: driver.FSIsolationUnveil, User: "4001"},
	} {
		o.AllowNomadOpenFileModes = true
		mustBuildTask(t, d, name, o)
		wantAllowed(t, aliceUID, `: > "$1/local/new" && : > "$1/secrets/new"`, d.TaskPaths(name).Dir)
	}
	if err := d.RestrictToTaskUsers([]TaskDirOptions{{User: "4001", AllowNomadOpenFileModes: true}}); err != nil {
		t.Error(err)
	}
	wantAllowed(t, aliceUID, `ls "$1/local"`, d.TaskPaths("as-alice").Dir)
}

func TestACLs(t *testing.T) {
	for _, users := range [][]uint32{nil, {4001}, {0, 1, 1<<32 - 2}} {
		got, err := decodeTraverseUIDs(encodeOwnerAndUsersACL(users, aclTraverse))
		if err != nil || !slices.Equal(got, users) {
			t.Errorf("decoded %v, %v; want %v", got, err, users)
		}
	}
	if got, err := decodeTraverseUIDs(encodeOwnerAndUsersACL([]uint32{4001}, 6)); err != nil || len(got) != 0 {
		t.Errorf("users who cannot pass through: %v, %v", got, err)
	}
	good := encodeOwnerAndUsersACL([]uint32{4001}, aclTraverse)
	for name, b := range map[string][]byte{
		"nothing": nil, "three bytes": good[:3], "half an entry": good[:len(good)-4], "another version": append([]byte{3}, good[1:]...),
	} {
		if users, err := decodeTraverseUIDs(b); err == nil {
			t.Errorf("%s: decoded %v", name, users)
		}
	}
}

func FuzzDecodeACL(f *testing.F) {
	f.Add(encodeOwnerAndUsersACL([]uint32{4001, 4002}, aclTraverse))
	f.Add(encodeOwnerAndUsersACL(nil, aclRWX))
	f.Add([]byte{2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		users, err := decodeTraverseUIDs(b)
		if err != nil {
			return
		}
		if !slices.IsSorted(users) || len(users) > len(b)/aclEntrySize {
			t.Fatalf("%d bytes name %v", len(b), users)
		}
		again, err := decodeTraverseUIDs(encodeOwnerAndUsersACL(users, aclTraverse))
		if err != nil || !slices.Equal(again, users) {
			t.Fatalf("%v became %v, %v", users, again, err)
		}
	})
}
