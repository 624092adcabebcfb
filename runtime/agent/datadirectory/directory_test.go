package datadirectory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// If a run and its keeper are killed, the next run kills the killed run's processes before it removes the directory.
func TestNextRunKillsProcessesOfKilledRun(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, temporaryDirPrefix+"1")
	if err := os.MkdirAll(filepath.Join(dir, allocDir, "8a1b2c3d-0000-4000-8000-000000000001"), 0o700); err != nil {
		t.Fatal(err)
	}
	processes := map[string]*exec.Cmd{}
	for name, variable := range map[string]string{
		"plugin":       keeper.EnvSocket + "=" + keeper.SocketPath(dir),
		"task":         "NOMAD_ALLOC_ID=8a1b2c3d-0000-4000-8000-000000000001",
		"other plugin": keeper.EnvSocket + "=" + keeper.SocketPath(dir+"2"),
	} {
		cmd := exec.Command("sleep", "1000")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), variable}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		processes[name] = cmd
	}
	removeAbandonedDataDirs(t.Context(), base, hclog.NewNullLogger())
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of the killed run: %v, want none", err)
	}
	for name, cmd := range processes {
		p, err := osprocess.LookupID(cmd.Process.Pid)
		if want := name == "other plugin"; err != nil || p.Alive() != want {
			t.Errorf("%s is alive: %v, %v; want %v", name, p.Alive(), err, want)
		}
	}
}

// Another account that creates files of any type under nomad-lite's names below /tmp does not prevent users from running jobs.
func TestTakenTemporaryDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another account")
	}
	for _, tool := range []string{"mkdir", "touch", "ln", "mkfifo"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the other account needs %s", tool) // the test is skipped: in a virtual machine it lacks a tool
		}
	}
	tmp := os.TempDir()
	for _, squat := range []string{"mkdir -m 777 %s", "touch %s", "ln -s /etc %s", "ln -s nowhere %s", "mkfifo %s"} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			t.Fatal(err)
		}
		for parent := filepath.Dir(dir); parent != tmp; parent = filepath.Dir(parent) {
			if err := os.Chmod(parent, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, "nomad-lite-0")
		cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("umask 0; "+squat+" && mkdir %s.1", path, path))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4711}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Setenv("TMPDIR", dir)
		first, held, err := makeAndLockTemporaryDataDir(t.Context(), hclog.NewNullLogger())
		if err != nil {
			t.Errorf("%s: %v", squat, err)
			continue
		}
		if err := checkDirWritableOnlyByUser(filepath.Dir(first)); err != nil {
			t.Error(err)
		}
		held.Close() // as if the run was killed
		second, held, err := makeAndLockTemporaryDataDir(t.Context(), hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(second) != filepath.Dir(first) {
			t.Errorf("%s, and then %s", first, second)
		}
		if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what was left is not removed: %v", err)
		}
		held.Close()
		// After the other account has removed its file, the usual path is used again, and directories
		// with a suffix are removed.
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		third, held, err := makeAndLockTemporaryDataDir(t.Context(), hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		held.Close()
		if _, err := os.Stat(second); filepath.Dir(third) != path || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("third %s, and of the second %v", third, err)
		}
	}
}

func TestFindOwnedDirs(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "a.1", "a-run", "ab", "a.link"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(dir+"/a.link"), os.Symlink("a", dir+"/a.link")); err != nil {
		t.Fatal(err)
	}
	if got, want := findDirAndSuffixedDirs(dir+"/a"), []string{dir + "/a", dir + "/a.1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// runAsUser calls f on a thread with the uid and without other privileges.
func runAsUser(t *testing.T, uid int, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread stays locked, so it exits with the goroutine
		id := uintptr(uid)
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			// These are raw system calls, because package syscall's functions would change all threads.
			if _, _, errno := unix.RawSyscall(call, id, id, id); errno != 0 {
				done <- errno
				return
			}
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Errorf("as user %d: %v", uid, err)
	}
}

// A non-root agent's data directory is inaccessible to other accounts, because its tasks run as the same user.
func TestUnprivilegedAgentClosesItsDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes other users")
	}
	const us, attackerUID, ownerUID = 4001, 4242, 4002
	for _, c := range []struct {
		name             string
		owner            int
		before, dir, all os.FileMode // modes of the data directory before and after the start, and of the allocation directory root
	}{
		{"new", us, 0o755, 0o700, 0o711},
		{"of an earlier version", us, 0o711, 0o700, 0o711},
		{"closed", us, 0o700, 0o700, 0o711},
		{"of another user", ownerUID, 0o777, 0o777, 0o700},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := t.TempDir()
			dir := filepath.Join(base, "data")
			secret := filepath.Join(dir, allocDir, "id", "web", "secrets")
			err := errors.Join(os.Chmod(filepath.Dir(base), 0o755), os.Chmod(base, 0o755),
				os.Mkdir(dir, 0o700), os.Chown(dir, c.owner, c.owner), os.Chmod(dir, c.before))
			if err != nil {
				t.Fatal(err)
			}
			runAsUser(t, us, func() error {
				if err := (&Directory{Path: dir}).denyOtherUsers(); err != nil {
					return err
				}
				return os.MkdirAll(secret, 0o777)
			})
			for path, want := range map[string]os.FileMode{dir: c.dir, filepath.Join(dir, allocDir): c.all} {
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
					t.Errorf("%s: mode %v, %v; want %v", path, info.Mode().Perm(), err, want)
				}
			}
			runAsUser(t, attackerUID, func() error {
				if _, err := os.ReadDir(secret); !errors.Is(err, os.ErrPermission) {
					return fmt.Errorf("read %s: %v, want %v", secret, err, os.ErrPermission)
				}
				return nil
			})
		})
	}
}

func TestTemporaryDirectoryIsPrivate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes other users")
	}
	base := t.TempDir()
	for _, d := range []string{base, filepath.Dir(base)} {
		if err := os.Chmod(d, 0o777|os.ModeSticky); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", base)
	runAsUser(t, 4001, func() error {
		dir, lock, err := makeAndLockTemporaryDataDir(t.Context(), hclog.NewNullLogger())
		if err != nil {
			return err
		}
		defer lock.Close()
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			return fmt.Errorf("%s: mode %v, %v", dir, info.Mode().Perm(), err)
		}
		return nil
	})
}

// A child process started by a killed agent has the agent's lock until it executes its program.
func TestLockAfterKilledAgent(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	agent, err := lockDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := lockDataDirAfterKilledAgent(t.Context(), dir); !errors.Is(err, ErrInUse) || time.Since(began) >= filelock.KilledOwnerTimeout {
		t.Errorf("beside a living agent: %v after %v", err, time.Since(began))
	}
	// A killed process is alive for a while, and has the lock as long.
	time.AfterFunc(100*time.Millisecond, func() { agent.Close() })
	killed, err := lockDataDirAfterKilledAgent(t.Context(), dir)
	if err != nil {
		t.Fatalf("after an agent that dies: %v", err)
	}
	if err := helperdir.WriteLockOwner(killed, osprocess.ID{PID: os.Getpid(), StartTime: 1}); err != nil {
		t.Fatal(err)
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockDataDirAfterKilledAgent(interrupted, dir); !errors.Is(err, ErrInUse) || time.Since(began) >= filelock.KilledOwnerTimeout {
		t.Errorf("interrupted: %v after %v", err, time.Since(began))
	}
	if _, err := waitAndLockDataDir(interrupted, dir); !errors.Is(err, ErrInUse) {
		t.Errorf("interrupted wait for the lock of another run: %v", err)
	}
	time.AfterFunc(100*time.Millisecond, func() { killed.Close() })
	next, err := lockDataDirAfterKilledAgent(t.Context(), dir)
	if err != nil {
		t.Fatalf("after a killed agent: %v", err)
	}
	next.Close()
}
