package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// The directories secrets and private are in memory, and files there cannot be executed (rule RS-076 of docs/reference/rules.md).
func TestSecretsAreInMemory(t *testing.T) {
	requireRoot(t)
	d := newTestDir(t)
	task, err := d.BuildTaskDir("web", TaskDirOptions{SecretsMB: 3})
	if err != nil {
		t.Fatal(err)
	}
	if task.SecretsOnDiskReason != nil {
		t.Skipf("memory file systems are not possible here: %v", task.SecretsOnDiskReason)
	}
	for path, sizeMB := range map[string]uint64{task.SecretsDir: 3, task.PrivateDir: 1} {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Type != unix.TMPFS_MAGIC {
			t.Errorf("%s is of type %x, want tmpfs", path, st.Type)
		}
		if got := st.Blocks * uint64(st.Bsize) >> 20; got != sizeMB {
			t.Errorf("%s has %d MB, want %d", path, got, sizeMB)
		}
		const want = unix.ST_NOEXEC | unix.ST_NOSUID | unix.ST_NODEV
		if st.Flags&want != want {
			t.Errorf("%s has the flags %x, want noexec, nosuid and nodev", path, st.Flags)
		}
		if _, err := os.Stat(filepath.Join(path, ".nomad-mount")); err != nil {
			t.Error(err)
		}
	}
}

// The mount exists once, however often a task starts, and is made again after it was
// lost, for example by a reboot.
func TestSecretsAreCheckedAtEachStart(t *testing.T) {
	requireRoot(t)
	d := newTestDir(t)
	task := buildTask(t, d, "web")
	if task.SecretsOnDiskReason != nil {
		t.Skip(task.SecretsOnDiskReason)
	}
	token := filepath.Join(task.SecretsDir, "token")
	if err := os.WriteFile(token, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(task.SecretsDir, ".nomad-mount")) // a task may remove the marker file
	buildTask(t, d, "web")
	if got := mountsBelow(t, d.Path()); len(got) != 2 {
		t.Errorf("mounts after the second start: %s", got)
	}
	if _, err := os.Stat(token); err != nil {
		t.Errorf("secrets did not survive a second start: %v", err)
	}

	// docs/reference/rules.md, RS-072.
	if err := unix.Unmount(task.SecretsDir, 0); err != nil {
		t.Fatal(err)
	}
	// a marker file below the mount must have no effect on the next mount
	if err := os.WriteFile(filepath.Join(task.SecretsDir, ".nomad-mount"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	buildTask(t, d, "web")
	if got := mountsBelow(t, d.Path()); len(got) != 2 {
		t.Errorf("mounts after a reboot: %s", got)
	}

	// /proc is mounted on the secrets directory, because a test directory may be on a tmpfs itself
	if err := unix.Mount("/proc", task.SecretsDir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	buildTask(t, d, "web")
	if got := mountsBelow(t, d.Path()); len(got) != 2 {
		t.Errorf("mounts after one was covered: %s", got)
	}
}

// A task in a chroot has the shared directory in its own directory, and cannot write
// logs.
func TestChrootTasksSeeTheSharedDirectory(t *testing.T) {
	requireRoot(t)
	d := newTestDir(t)
	for range 2 {
		task, err := d.BuildTaskDir("web", TaskDirOptions{Isolation: driver.FSIsolationChroot})
		if err != nil {
			t.Skipf("bind mounts are not possible here: %v", err)
		}
		if err := os.WriteFile(filepath.Join(task.SharedTaskDir, "data", "file"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(task.SharedAllocDir, "data", "file")); string(got) != "x" {
			t.Errorf("read %q, %v", got, err)
		}
		if err := os.WriteFile(filepath.Join(task.SharedTaskDir, "logs", "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("write to the logs: %v, want a read-only file system", err)
		}
		if got := mountsBelow(t, task.SharedTaskDir); len(got) != 2 {
			t.Errorf("mounts: %s", got)
		}
	}
	if err := d.DropSecretsAndUnmount("web"); err != nil {
		t.Fatal(err)
	}
	if got := mountsBelow(t, d.Path()); len(got) > 0 {
		t.Errorf("still mounted: %s", got)
	}
}

// An unveil task finds its directories beside the root of all allocations.
func TestUnveilTasksHaveMounts(t *testing.T) {
	requireRoot(t)
	d := newTestDir(t)
	options := TaskDirOptions{Isolation: driver.FSIsolationUnveil}
	for range 2 {
		task, err := d.BuildTaskDir("web", options)
		if err != nil {
			t.Skipf("bind mounts are not possible here: %v", err)
		}
		for shown, source := range map[string]string{
			task.UnveiledAllocDir: task.SharedAllocDir, task.UnveiledTaskDir: task.LocalDir, task.UnveiledSecretsDir: task.SecretsDir,
		} {
			if err := os.WriteFile(filepath.Join(shown, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(source, "file")); err != nil {
				t.Error(err)
			}
		}
	}
	place := filepath.Dir(d.TaskPaths("web").UnveiledAllocDir)
	if got := mountsBelow(t, place); len(got) != 3 {
		t.Errorf("mounts: %s", got)
	}
	if err := d.DropSecretsAndUnmount("web"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(d.TaskPaths("web").LocalDir, "file")); err != nil {
		t.Errorf("a file went with the mount: %v", err)
	}
	if _, err := d.BuildTaskDir("web", options); err != nil {
		t.Fatal(err)
	}
	if err := d.Destroy(); err != nil {
		t.Fatal(err)
	}
	if got := mountsBelow(t, filepath.Dir(place)); len(got) > 0 {
		t.Errorf("still mounted: %s", got)
	}
	if _, err := os.Lstat(place); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", place, err)
	}
}

// No file system stays mounted when a task has ended.
func TestDropSecrets(t *testing.T) {
	d := newTestDir(t)
	task := buildTask(t, d, "web")
	buildTask(t, d, "other")
	for _, dir := range []string{task.SecretsDir, task.PrivateDir} {
		if err := os.WriteFile(filepath.Join(dir, "token"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if isAgentRoot() && task.SecretsOnDiskReason == nil { // a driver has died, and has left mounts in its own file system
		left := filepath.Join(task.Dir, driver.MountsDir)
		if err := errors.Join(
			os.Mkdir(left, 0o700), unix.Mount("tmpfs", left, "tmpfs", 0, ""),
			os.Mkdir(filepath.Join(left, "0"), 0o700), unix.Mount(task.LocalDir, filepath.Join(left, "0"), "", unix.MS_BIND, ""),
		); err != nil {
			t.Fatal(err)
		}
	}
	busy, err := os.Open(task.SecretsDir) // a process may still have the directory open
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for range 2 {
		if err := d.DropSecretsAndUnmount("web"); err != nil {
			t.Fatal(err)
		}
	}
	if got := mountsBelow(t, task.Dir); len(got) > 0 {
		t.Errorf("still mounted: %s", got)
	}
	for _, dir := range []string{task.SecretsDir, task.PrivateDir} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s: %v, %v", dir, entries, err)
		}
	}
	if isAgentRoot() && len(mountsBelow(t, filepath.Join(d.Path(), "other"))) != 2 {
		t.Error("the secrets of another task are gone")
	}
	if err := d.DropSecretsAndUnmount("never-built"); err != nil {
		t.Error(err)
	}
}

// A task that runs as root can mount anything in its directory. The mount is detached,
// and nothing behind it is removed.
func TestDestroyNeverEntersMounts(t *testing.T) {
	requireRoot(t)
	d := newTestDir(t)
	task := buildTask(t, d, "web")
	if task.SecretsOnDiskReason != nil {
		t.Skip(task.SecretsOnDiskReason)
	}
	victim := t.TempDir()
	file := filepath.Join(victim, "sub", "file")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}

	bind := func(source, name string, dir bool) {
		t.Helper()
		target := filepath.Join(task.Dir, name)
		if dir {
			os.MkdirAll(target, 0o755)
		} else {
			os.WriteFile(target, nil, 0o600)
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	bind(victim, "local/bind", true) // a bind mount from the same file system, so the device number is the same
	bind(victim, "local/bind", true) // a second mount on the same directory
	bind(file, "local/file", false)
	bind(victim, "deep/er/bind", true)
	bind(task.SharedAllocDir, "alloc", true) // a tree into itself
	bind(victim, "", true)                   // mounts on the whole task directory

	if err := d.Destroy(); err != nil {
		t.Fatal(err)
	}
	if got := mountsBelow(t, d.Path()); len(got) > 0 {
		t.Errorf("still mounted: %s", got)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "x" {
		t.Errorf("behind the mount: read %q, %v", got, err)
	}
}

// Sweep removes what a dead agent has left, including mounts, despite open files there.
func TestRemoveAllocDirUnmounts(t *testing.T) {
	requireRoot(t)
	base := filepath.Join(t.TempDir(), "run-1")
	d, err := New(filepath.Join(base, "alloc"), allocID)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Build(); err != nil {
		t.Fatal(err)
	}
	task := buildTask(t, d, "web")
	f, err := os.Create(filepath.Join(task.SecretsDir, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := UnmountAndRemoveOwnDir(base); err != nil {
		t.Fatal(err)
	}
	if got := mountsBelow(t, base); len(got) > 0 {
		t.Errorf("still mounted: %s", got)
	}
}

// Where the kernel supports noswap, the memory file systems use it.
func TestSecretsDoNotSwap(t *testing.T) {
	requireRoot(t)
	probe := t.TempDir()
	if err := unix.Mount("tmpfs", probe, "tmpfs", 0, "noswap"); err != nil {
		t.Skip("this kernel has no noswap")
	}
	defer unix.Unmount(probe, 0)

	d := newTestDir(t)
	task := buildTask(t, d, "web")
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(strings.Split(string(table), "\n"), func(line string) bool {
		return strings.Contains(line, task.SecretsDir+" ") && strings.Contains(line, "noswap")
	}) {
		t.Error("secrets may be swapped out")
	}
}

// A directory can be a mount point in another mount with the same files: alloc/logs is one in each chroot task's directory. It is
// removed in whatever order the removal reaches the mounts.
func TestDestroyWithManyChroots(t *testing.T) {
	requireRoot(t)
	for _, propagation := range []struct {
		name string
		flag uintptr
	}{{"private", unix.MS_PRIVATE}, {"shared", unix.MS_SHARED}} {
		for _, first := range []string{"alloc", "a", "c"} {
			t.Run(propagation.name+", "+first+" first", func(t *testing.T) {
				base := t.TempDir()
				runInMountNamespace(t, func() error {
					err := errors.Join(
						unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
						unix.Mount("tmpfs", base, "tmpfs", 0, ""), // tmpfs lists the newest name first
						unix.Mount("", base, "", propagation.flag, ""))
					if err != nil {
						return err
					}
					defer unix.Unmount(base, unix.MNT_DETACH)
					d, err := New(filepath.Join(base, "alloc"), allocID)
					if err != nil {
						return err
					}
					if err := d.Build(); err != nil {
						return err
					}
					for _, name := range []string{"a", "b", "c"} {
						if _, err := d.BuildTaskDir(name, TaskDirOptions{Isolation: driver.FSIsolationChroot}); err != nil {
							return err
						}
					}
					if _, err := d.BuildTaskDir("u", TaskDirOptions{Isolation: driver.FSIsolationUnveil}); err != nil {
						return err
					}
					path := filepath.Join(d.Path(), first)
					if err := errors.Join(os.Rename(path, path+".moved"), os.Rename(path+".moved", path)); err != nil {
						return err
					}
					if err := d.Destroy(); err != nil {
						return err
					}
					if _, err := os.Lstat(d.Path()); !errors.Is(err, fs.ErrNotExist) {
						return fmt.Errorf("%s is still there: %v", d.Path(), err)
					}
					return nil
				})
			})
		}
	}
}

// runInMountNamespace calls f on a thread that has its own mount namespace.
func runInMountNamespace(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread is never unlocked, so it ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// If an agent dies between bindMount's two system calls, a task's logs stay writable; the next agent completes the mount.
func TestLogsBecomeReadOnlyAfterInterruptedMount(t *testing.T) {
	requireRoot(t)
	d := newTestDir(t)
	options := TaskDirOptions{Isolation: driver.FSIsolationChroot}
	task, err := d.BuildTaskDir("web", options)
	if err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(task.SharedTaskDir, "logs")
	if err := unix.Mount("", logs, "", unix.MS_REMOUNT|unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := d.BuildTaskDir("web", options); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(logs, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write to the logs: %v", err)
	}
}
