package allocdir

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

func TestWriteTaskFile(t *testing.T) {
	d := newPublicDir(t)
	o := TaskDirOptions{}
	if isAgentRoot() {
		o.User = "nobody"
	}
	task := mustBuildTask(t, d, "web", o)
	for _, name := range []string{"secrets/nomad_token", "local/a/b/token.jwt", "/token", "secrets/nomad_token"} {
		if err := d.WriteTaskFile("web", name, o, []byte("the token")); err != nil {
			t.Error(err)
			continue
		}
		path := filepath.Join(task.Dir, name)
		content, err := os.ReadFile(path)
		var st unix.Stat_t
		if err := errors.Join(err, unix.Lstat(path, &st)); err != nil || string(content) != "the token" {
			t.Errorf("%s: %q, %v", name, content, err)
		}
		owner := os.Geteuid()
		if isAgentRoot() {
			owner, _ = nobodyIDs()
		}
		if st.Mode != unix.S_IFREG|0o600 || int(st.Uid) != owner {
			t.Errorf("%s: mode %o, user %d; want mode 0600, user %d", name, st.Mode, st.Uid, owner)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(task.SecretsDir, ".nomad_token*")); len(left) > 0 {
		t.Errorf("temporary files %v", left)
	}
}

// The task's user can change all directories in which the agent writes.
func TestWriteTaskFileFollowsNoLinks(t *testing.T) {
	d := newPublicDir(t)
	task := mustBuildTask(t, d, "web", TaskDirOptions{})
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := errors.Join(
		os.WriteFile(victim, []byte("before"), 0o600),
		os.Symlink(outside, filepath.Join(task.LocalDir, "dir")),
		os.Symlink(victim, filepath.Join(task.SecretsDir, "link")),
		os.Symlink(victim, filepath.Join(task.SecretsDir, ".token.new")),
		os.Link(victim, filepath.Join(task.LocalDir, "hardlink")),
		unix.Mkfifo(filepath.Join(task.SecretsDir, "fifo"), 0o600),
		os.Mkdir(filepath.Join(task.SecretsDir, "taken"), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"local/dir/victim": false, "secrets/link": true, "secrets/token": true, "local/hardlink": true, "secrets/fifo": true, "secrets/taken": false,
		"../token": false, "local/../../x": false, ".": false, "": false, "secrets/fifo/x": false,
	} {
		if err := d.WriteTaskFile("web", name, TaskDirOptions{}, []byte("the token")); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
	if content, err := os.ReadFile(victim); string(content) != "before" || err != nil {
		t.Errorf("the file outside has %q: %v", content, err)
	}
	if names, err := filepath.Glob(filepath.Join(outside, "*")); len(names) != 1 {
		t.Errorf("files outside: %v, %v", names, err)
	}
}

// A directory that a killed agent has not given to the task's user is created again.
func TestWriteTaskFileReplacesDirOfKilledAgent(t *testing.T) {
	d := newPublicDir(t)
	o := TaskDirOptions{User: "nobody"}
	task := mustBuildTask(t, d, "web", o)
	if err := d.WriteTaskFile("web", "local/id/token.jwt", o, nil); err != nil {
		t.Fatal(err)
	}
	// The state after mkdirat, the first step.
	id, incomplete := filepath.Join(task.LocalDir, "id"), filepath.Join(task.LocalDir, ".id.new")
	if err := errors.Join(os.RemoveAll(id), os.Mkdir(incomplete, 0o700)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		wg.Go(func() {
			if err := d.WriteTaskFile("web", "local/id/"+name, o, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var st unix.Stat_t
	uid, _ := nobodyIDs()
	if err := unix.Lstat(id, &st); err != nil || int(st.Uid) != uid || st.Mode != unix.S_IFDIR|0o700 {
		t.Errorf("mode %o, user %d, %v; want mode 0700, user %d", st.Mode, st.Uid, err, uid)
	}
	if _, err := os.Lstat(incomplete); err == nil {
		t.Error("the incomplete directory is left")
	}
}

// connectAs connects to a socket with another user's file access.
func connectAs(t *testing.T, uid int, path string) error {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if uid != os.Geteuid() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, _ = unix.SetfsuidRetUid(uid)
		defer unix.Setfsuid(0)
	}
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

func TestListenInSecrets(t *testing.T) {
	d := newPublicDir(t)
	o := TaskDirOptions{}
	uid := os.Geteuid()
	if isAgentRoot() {
		o.User, uid = "12345", 12345
	}
	task := mustBuildTask(t, d, "web", o)
	path := filepath.Join(task.SecretsDir, "api.sock")
	victim := filepath.Join(t.TempDir(), "victim")
	for _, before := range []func() error{
		func() error { return nil },
		func() error { return nil }, // an earlier agent's socket
		func() error { return errors.Join(os.Remove(path), os.Symlink(victim, path)) },
	} {
		if err := before(); err != nil {
			t.Fatal(err)
		}
		fd, err := d.ListenInSecretsDir("web", "api.sock", o)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Mode != unix.S_IFSOCK|0o600 || int(st.Uid) != uid {
			t.Errorf("mode %o, user %d, want 0600, user %d: %v", st.Mode, st.Uid, uid, err)
		}
		if err := connectAs(t, uid, path); err != nil {
			t.Errorf("the user of the task cannot connect: %v", err)
		}
		if isAgentRoot() {
			if err := connectAs(t, 12346, path); err == nil {
				t.Error("another user can connect")
			}
			// The directory is not the only protection.
			if err := os.Chmod(task.SecretsDir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := connectAs(t, 12346, path); err == nil {
				t.Error("another user can connect when the task has opened its directory")
			}
		}
		unix.Close(fd)
	}
	if _, err := os.Lstat(victim); err == nil {
		t.Error("the socket was made at the target of a link")
	}
	if fd, err := d.ListenInSecretsDir("../web", "api.sock", o); err == nil {
		unix.Close(fd)
		t.Error("a task outside of the allocation has a socket")
	}
}

// With isolation image, the user is defined in the image.
func TestFilesForUsersOfAnImage(t *testing.T) {
	d := newPublicDir(t)
	o := TaskDirOptions{Isolation: driver.FSIsolationImage}
	task := mustBuildTask(t, d, "web", o)
	if err := d.WriteTaskFile("web", "secrets/a/token", o, nil); err != nil {
		t.Fatal(err)
	}
	fd, err := d.ListenInSecretsDir("web", "api.sock", o)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for name, want := range map[string]os.FileMode{"a": 0o755 | os.ModeDir, "a/token": 0o644, "api.sock": 0o666 | os.ModeSocket} {
		if info, err := os.Lstat(filepath.Join(task.SecretsDir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, want %v", name, info.Mode(), want)
		}
	}
}
