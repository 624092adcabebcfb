package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// The path of a data directory, its sockets and the environment may change while no agent
// runs: the next agent connects to the running keeper.
func TestAgentFindsKeeperAfterPathChange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dir string) (path string)
	}{
		{"a symbolic link", func(t *testing.T, dir string) string {
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(dir, link); err != nil {
				t.Fatal(err)
			}
			return link
		}},
		{"a directory that was moved", func(t *testing.T, dir string) string {
			moved := filepath.Join(t.TempDir(), strings.Repeat("moved", 30))
			if err := os.Rename(dir, moved); err != nil {
				t.Fatal(err)
			}
			return moved
		}},
		{"a socket directory that was removed", func(t *testing.T, dir string) string {
			if err := os.RemoveAll(helperdir.SocketDir(dir)); err != nil {
				t.Fatal(err)
			}
			return dir
		}},
		{"a directory that was moved, without its sockets", func(t *testing.T, dir string) string {
			moved := filepath.Join(t.TempDir(), "moved")
			if err := errors.Join(os.Rename(dir, moved), os.RemoveAll(helperdir.SocketDir(moved))); err != nil {
				t.Fatal(err)
			}
			return moved
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			task, keeper := startAndKillAgent(t, dir, "persistent")
			c := startClient(t, Config{DataDir: tt.change(t, dir)})
			if got := c.Status().KeeperProcess; got != keeper {
				t.Errorf("the keeper is %v, was %v", got, keeper)
			}
			if dir := findRunningDir(keeper); !sameFile(dir, c.cfg.DataDir) {
				t.Errorf("the keeper is found in %q, want the directory %s", dir, c.cfg.DataDir)
			}
			plugin, err := ConnectFromPlugin(t.Context(), c.SocketPath())
			if err != nil {
				t.Fatal(err)
			}
			defer plugin.Close()
			if err := task.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if status, err := plugin.Wait(t.Context(), task); err != nil || status.Signal != int(unix.SIGTERM) {
				t.Errorf("status of the task: %v, %v", status, err)
			}
			if err := c.SetEphemeral(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A keeper whose directory was lost, as a whole or without its PID file, is found by the path that the directory had.
func TestKeeperWithLostDirIsFound(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		change    func(dir string) error
		wantFound bool
	}{
		{"nothing is lost", func(string) error { return nil }, false},
		{"the directory was moved", func(dir string) error { return os.Rename(dir, dir+".moved") }, false},
		{"the directory was removed", os.RemoveAll, true},
		{"another directory has its path", func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o711)) }, true},
		{"its files were removed", func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "mounted"), 0o700), os.Remove(filepath.Join(dir, keeperwire.PIDFileName)))
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			_, keeper := startAndKillAgent(t, dir, "persistent")
			t.Cleanup(func() { killTree(keeper) })
			if err := tt.change(dir); err != nil {
				t.Fatal(err)
			}
			if found := slices.Contains(FindWithLostDir(dir), keeper); found != tt.wantFound {
				t.Errorf("found: %t, want %t", found, tt.wantFound)
			}
			if found := FindWithLostDir(dir + ".other"); slices.Contains(found, keeper) {
				t.Error("found for another path")
			}
			if findRunningDir(keeper) == "" {
				t.Error("FindRunning does not find the keeper")
			}
		})
	}
}

// findRunningDir returns the directory in which FindRunning finds a keeper, and "" if it does not find it.
func findRunningDir(p osprocess.ID) string {
	for _, k := range FindRunning() {
		if k.Process == p {
			return k.DataDir
		}
	}
	return ""
}

func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// No second keeper runs beside a keeper that has lost its socket: if the first keeper cannot
// listen again, it is killed before the second is started.
func TestKeeperThatCannotBeReachedIsReplaced(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits two seconds for a keeper that does not answer")
	}
	dir := filepath.Join(t.TempDir(), "data")
	task, keeper := startAndKillAgent(t, dir, "persistent")
	t.Cleanup(func() { killTree(task) })
	if err := errors.Join(keeper.Signal(unix.SIGSTOP), os.RemoveAll(helperdir.SocketDir(dir))); err != nil {
		t.Fatal(err)
	}
	c := startClient(t, Config{DataDir: dir})
	if keeper.Alive() || c.Status().KeeperProcess == keeper {
		t.Errorf("keepers %v and %v serve one directory", keeper, c.Status().KeeperProcess)
	}
}

// The keeper restores a removed socket while agent and plugins are connected.
func TestRestoreSocket(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	if err := os.RemoveAll(helperdir.SocketDir(c.cfg.DataDir)); err != nil {
		t.Fatal(err)
	}
	if err := c.RequestSocketRecreation(); err != nil {
		t.Fatal(err)
	}
	var pluginClient *Client
	for end := time.Now().Add(time.Minute); pluginClient == nil; time.Sleep(time.Millisecond) {
		var err error
		if pluginClient, err = ConnectFromPlugin(t.Context(), c.SocketPath()); err != nil && time.Now().After(end) {
			t.Fatal(err)
		}
	}
	defer pluginClient.Close()
	p, err := c.Spawn(t.Context(), sh("exit 5"))
	if err != nil {
		t.Fatal(err)
	}
	if st, err := pluginClient.Wait(t.Context(), p); err != nil || st.ExitCode != 5 {
		t.Errorf("Wait = %v, %v", st, err)
	}
}

// A plugin reconnects to the keeper of its data directory even if the directory was moved and
// another data directory has taken its path.
func TestPluginReconnectsAfterTheDirectoryWasMoved(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir, moved := filepath.Join(base, "data"), filepath.Join(base, "moved")
	first := startClient(t, Config{DataDir: dir})
	plugin, err := ConnectFromPlugin(t.Context(), first.SocketPath())
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Close()
	first.Close()
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	startClient(t, Config{DataDir: dir})
	own := startClient(t, Config{DataDir: moved})
	if err := first.Status().KeeperProcess.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !first.Status().KeeperProcess.EndsWithin(time.Minute) {
		t.Fatal("the keeper does not end")
	}
	p, err := own.Spawn(t.Context(), sh("exit 6"))
	for errors.Is(err, ErrKeeperDied) { // retries until the client has noticed that the first keeper died
		p, err = own.Spawn(t.Context(), sh("exit 6"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if st, err := plugin.Wait(t.Context(), p); err != nil || st.ExitCode != 6 {
		t.Errorf("Wait = %v, %v", st, err)
	}
	if got, want := plugin.Status().KeeperProcess, own.Status().KeeperProcess; got != want || got == first.Status().KeeperProcess {
		t.Errorf("the plugin is connected to %v, its keeper is %v", got, want)
	}
}

// DataDir.LockFile does not return a file that was removed while LockFile waited for it.
func TestLockOfARemovedFile(t *testing.T) {
	t.Parallel()
	d, err := OpenOrCreateDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	first, err := d.LockFile("l", unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.LockFile("l", unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a second lock: %v", err)
	}
	locked := make(chan *os.File)
	go func() {
		f, err := d.LockFile("l", unix.LOCK_EX)
		if err != nil {
			t.Error(err)
		}
		locked <- f
	}()
	d.RemoveFile("l")
	first.Close()
	second := <-locked
	defer second.Close()
	if _, err := d.LockFile("l", unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("two processes have the lock: %v", err)
	}
}

// A lock file that is a link is rejected: another user could have planted it, to have a record
// written to a file of that user's choice, or read from it.
func TestLockThatIsALinkIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d, err := OpenOrCreateDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(target, filepath.Join(dir, "soft")), os.Link(target, filepath.Join(dir, "hard")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"soft", "hard", "fifo"} {
		if f, err := d.LockFile(name, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			f.Close()
			t.Errorf("%s is locked", name)
		}
	}
}

func TestLockedBy(t *testing.T) {
	t.Parallel()
	d, err := OpenOrCreateDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	self, err := osprocess.LookupID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if p, ok, _ := d.LockOwner("l"); ok {
		t.Errorf("without a file: %v", p)
	}
	lock, err := d.LockFile("l", unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok, _ := d.LockOwner("l"); ok {
		t.Errorf("without a record: %v", p)
	}
	for _, p := range []osprocess.ID{{PID: 4194303, StartTime: 1 << 60}, self} {
		if err := helperdir.WriteLockOwner(lock, p); err != nil {
			t.Fatal(err)
		}
		if got, ok, _ := d.LockOwner("l"); ok != (p == self) || ok && got != p {
			t.Errorf("recorded %v, got %v, %v", p, got, ok)
		}
	}
	// Closing a lock file does not release the lock while a child that another test has
	// forked, and that has not called exec yet, has a duplicate of the descriptor.
	if err := errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_UN), lock.Close()); err != nil {
		t.Fatal(err)
	}
	if p, ok, _ := d.LockOwner("l"); ok {
		t.Errorf("without a lock: %v", p)
	}
}

// If the file system has no unix sockets, the error names the remedy.
func TestFileSystemWithoutSockets(t *testing.T) {
	group := fmt.Sprintf("/sys/fs/cgroup/unified/keeper-test-%d", os.Getpid())
	if err := os.Mkdir(group, 0o700); err != nil {
		t.Skip("needs a file system without sockets: ", err)
	}
	defer os.Remove(group)
	d, err := OpenOrCreateDataDir(group)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.Mkdir(helperdir.SocketDir(group), 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(helperdir.SocketDir(group))
	if err := os.Chmod(helperdir.SocketDir(group), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = d.ListenReplacingSocket("s")
	if err == nil || !strings.Contains(err.Error(), "choose a data directory on another one") {
		t.Errorf("got %v", err)
	}
}

// An agent that starts while an ephemeral keeper shuts down creates the directory for sockets again.
func TestSocketDirIsRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	dir, err := OpenOrCreateDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	processtest.Repeat(t, func() error { dir.RemoveSocketDir(); return nil })
	for range 2000 {
		if err := dir.EnsurePrivateSocketDir(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIsKeeperExitError(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"the connection has ended", errConnDown, true},
		{"a killed keeper still has its lock", fmt.Errorf("lock: %w", filelock.ErrLocked), true},
		{"a killed keeper still runs", fmt.Errorf("process 7 %w", osprocess.ErrStillRunning), true},
		{"the directory cannot be used", os.ErrPermission, false},
	} {
		if got := isKeeperExitError(tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
