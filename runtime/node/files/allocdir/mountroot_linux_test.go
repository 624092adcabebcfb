package allocdir

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// rootMountFixture is a data directory in its own mount namespace, for a root agent's tasks.
type rootMountFixture struct {
	dataDir        string
	tasks          map[string]*TaskDir // by the allocation's id
	program        []byte              // prints the user id
	closed         bool                // the tasks' directories are closed to other users
	operatorMounts int                 // on the allocations directory
}

// withRootMountFixture calls f with a data directory on a file system with a given mount propagation.
func withRootMountFixture(t *testing.T, propagation uintptr, f func(w *rootMountFixture) error) {
	t.Helper()
	base := newPublicTempDir(t)
	runInMountNamespace(t, func() error {
		err := errors.Join(
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", base, "tmpfs", 0, "mode=755"),
			unix.Mount("", base, "", propagation, ""))
		if err != nil {
			return err
		}
		defer unix.Unmount(base, unix.MNT_DETACH)
		w := &rootMountFixture{dataDir: filepath.Join(base, "data directory"), tasks: map[string]*TaskDir{}}
		if w.program, err = os.ReadFile("/usr/bin/id"); err != nil {
			return err
		}
		if err := errors.Join(os.Mkdir(w.dataDir, 0o711), os.Mkdir(w.allocsDir(), 0o711)); err != nil {
			return err
		}
		return f(w)
	})
}

func (f *rootMountFixture) allocsDir() string { return filepath.Join(f.dataDir, "alloc") }

// start starts a task. The id's last figure selects its driver's isolation.
func (f *rootMountFixture) start(id string) error {
	d, err := New(f.allocsDir(), id)
	if err != nil {
		return err
	}
	if err := d.Build(); err != nil {
		return err
	}
	isolations := []driver.FSIsolation{driver.FSIsolationNone, driver.FSIsolationChroot, driver.FSIsolationImage, driver.FSIsolationUnveil}
	f.tasks[id], err = d.BuildTaskDir("web", TaskDirOptions{AdmittedUsers: []string{strconv.Itoa(aliceUID)}, Isolation: isolations[id[len(id)-1]-'0']})
	return err
}

func (f *rootMountFixture) destroy(id string) error {
	d, err := New(f.allocsDir(), id)
	if err != nil {
		return err
	}
	delete(f.tasks, id)
	if err := errors.Join(d.DropSecretsAndUnmount("web"), d.Destroy()); err != nil {
		return err
	}
	if _, err := os.Lstat(d.Path()); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is still there: %v", d.Path(), err)
	}
	return nil
}

// countMounts returns how many mounts are on the allocations directory, and below it.
func (f *rootMountFixture) countMounts() (on, below int, err error) {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(table)) {
		point := strings.NewReplacer(`\040`, " ", `\134`, `\`).Replace(strings.Fields(line)[4])
		switch {
		case point == f.allocsDir():
			on++
		case strings.HasPrefix(point, f.allocsDir()+"/"):
			below++
		}
	}
	return on, below, nil
}

// attack leaves a root set-user-id program and a device in a task's directories, and uses them as another user. It returns what
// the user obtains.
func (f *rootMountFixture) attack(task *TaskDir) (gained []string, err error) {
	for _, dir := range []string{task.LocalDir, filepath.Join(task.SharedAllocDir, "data")} {
		program, device := filepath.Join(dir, "id"), filepath.Join(dir, "zero")
		_ = os.Remove(device)
		err := errors.Join(
			os.WriteFile(program, f.program, 0o755), os.Chmod(program, 0o755|os.ModeSetuid|os.ModeSetgid),
			unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))), os.Chmod(device, 0o666))
		if err != nil {
			return nil, err
		}
		out, err := asAlice(program, "-u").Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", program, err)
		}
		if got := strings.TrimSpace(string(out)); got != strconv.Itoa(aliceUID) {
			gained = append(gained, "user id "+got+" by "+program)
		}
		if out, err := asAlice("head", "-c", "1", device).Output(); err == nil {
			gained = append(gained, fmt.Sprintf("%q of the device %s", out, device))
		}
	}
	return gained, nil
}

// asAlice returns a command that runs as a user whom the tasks admit to their directories.
func asAlice(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: aliceUID, Gid: aliceUID}}
	return cmd
}

// check compares the mounts and the result of an attack on each task with the expected ones.
func (f *rootMountFixture) check(wantOn int) error {
	on, below, err := f.countMounts()
	if err != nil {
		return err
	}
	var errs []error
	if on != wantOn+f.operatorMounts {
		errs = append(errs, fmt.Errorf("%d mounts on the directory of the allocations, want %d", on, wantOn+f.operatorMounts))
	}
	if len(f.tasks) == 0 && below > 0 {
		errs = append(errs, fmt.Errorf("%d mounts are left below it", below))
	}
	for id, task := range f.tasks {
		if f.closed {
			if out, err := asAlice("ls", task.SharedAllocDir).CombinedOutput(); err == nil {
				errs = append(errs, fmt.Errorf("another user can list a directory of %s: %s", id, out))
			}
			continue
		}
		gained, err := f.attack(task)
		if err != nil || len(gained) > 0 {
			errs = append(errs, fmt.Errorf("tasks of %s let another user have %q, %v", id, gained, err))
		}
	}
	return errors.Join(errs...)
}

// propagations are the mount kinds that a data directory can be on.
var propagations = map[string]uintptr{"private": unix.MS_PRIVATE, "shared": unix.MS_SHARED}

// The allocations directory is mounted once over all sequences of events that can happen to it. While it is mounted, a program or
// a device left there by a task gives another user nothing, and nothing stays mounted.
func TestRootMountLifecycles(t *testing.T) {
	requireRoot(t)
	if testing.Short() {
		t.Skip("it starts many processes")
	}
	lives := 2
	if slowtest.Enabled() {
		lives = 40
	}
	for name, propagation := range propagations {
		for range lives {
			seed := rand.Uint64()
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				withRootMountFixture(t, propagation, func(w *rootMountFixture) error {
					return w.live(rand.New(rand.NewPCG(seed, 0)))
				})
			})
		}
	}
}

// live lets random events happen, and after each the next agent starts.
func (f *rootMountFixture) live(r *rand.Rand) error {
	var history []string
	step := func(name string, event func() error, wantMounts int) error {
		history = append(history, name)
		if err := errors.Join(event(), f.check(wantMounts)); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(history, ", "), err)
		}
		return nil
	}
	restart := func() error { return BindAllocsRootNosuidNodev(f.allocsDir()) }
	if err := step("first agent", restart, 1); err != nil {
		return err
	}
	for range 8 {
		id := strconv.Itoa(r.IntN(4))
		var err error
		switch r.IntN(6) {
		case 0, 1:
			err = step("start "+id, func() error { return f.start(id) }, 1)
		case 2:
			err = step("destroy "+id, func() error { return f.destroy(id) }, 1)
		case 3:
			err = step("move", f.move, 1)
		case 4:
			err = step("replace a file of "+id, func() error { return f.replaceFile(id) }, 1)
		case 5:
			err = errors.Join(step("end without tasks", f.end, 0), step("agent", restart, 1), step("start all", f.startAll, 1))
		}
		if err == nil {
			err = step("agent", restart, 1)
		}
		if err != nil {
			return err
		}
	}
	return step("the end", func() error {
		var errs []error
		for id := range f.tasks {
			errs = append(errs, f.destroy(id))
		}
		return errors.Join(append(errs, RestrictAndUnmountAllocsRoot(f.allocsDir()))...)
	}, 0)
}

// move gives the data directory another name.
func (f *rootMountFixture) move() error {
	moved := f.dataDir + `\x`
	if err := os.Rename(f.dataDir, moved); err != nil {
		return err
	}
	f.dataDir = moved
	return f.startAll()
}

// replaceFile replaces a file in a task's directory with one written by the agent.
func (f *rootMountFixture) replaceFile(id string) error {
	if f.tasks[id] == nil {
		return nil
	}
	d, err := New(f.allocsDir(), id)
	if err != nil {
		return err
	}
	return d.WriteLocalFile("web", "id", nil)
}

// end ends all tasks, and the agent.
func (f *rootMountFixture) end() error {
	var errs []error
	for id := range f.tasks {
		d, err := New(f.allocsDir(), id)
		if err != nil {
			return err
		}
		errs = append(errs, d.DropSecretsAndUnmount("web"))
	}
	f.closed = true
	errs = append(errs, RestrictAndUnmountAllocsRoot(f.allocsDir()))
	return errors.Join(errs...)
}

func (f *rootMountFixture) startAll() error {
	f.closed = false
	var errs []error
	for id := range f.tasks {
		errs = append(errs, f.start(id))
	}
	return errors.Join(errs...)
}

// Without the mount, another user gets what TestRootMountLifecycles attacks: the test can fail.
func TestWithoutRootMount(t *testing.T) {
	requireRoot(t)
	withRootMountFixture(t, unix.MS_PRIVATE, func(w *rootMountFixture) error {
		if err := w.start("0"); err != nil {
			return err
		}
		gained, err := w.attack(w.tasks["0"])
		if err == nil && len(gained) != 4 {
			err = fmt.Errorf("another user gets %q, want two programs and two devices", gained)
		}
		return err
	})
}

// A mount below the directory is made once, although it would appear in each peer of the mount.
func TestMountsBelowRootMountAreNotDoubled(t *testing.T) {
	requireRoot(t)
	for name, propagation := range propagations {
		t.Run(name, func(t *testing.T) {
			withRootMountFixture(t, propagation, func(w *rootMountFixture) error {
				if err := errors.Join(BindAllocsRootNosuidNodev(w.allocsDir()), w.start("0")); err != nil {
					return err
				}
				_, below, err := w.countMounts()
				if err == nil && below != 2 {
					err = fmt.Errorf("%d mounts, want secrets and private", below)
				}
				return err
			})
		})
	}
}

// A mount namespace that gets the machine's mounts, such as a container engine's, gets the mount and those below it.
func TestRootMountReachesOtherNamespaces(t *testing.T) {
	requireRoot(t)
	withRootMountFixture(t, unix.MS_SHARED, func(w *rootMountFixture) error {
		other := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", `echo ready; read line; grep -F 'data\040directory/alloc' /proc/self/mountinfo`)
		input, inputErr := other.StdinPipe()
		output, outputErr := other.StdoutPipe()
		if err := errors.Join(inputErr, outputErr, other.Start()); err != nil {
			return err
		}
		defer other.Wait()
		lines := bufio.NewReader(output)
		if _, err := lines.ReadString('\n'); err != nil {
			return err
		}
		if err := errors.Join(BindAllocsRootNosuidNodev(w.allocsDir()), w.start("0"), input.Close()); err != nil {
			return err
		}
		table, err := io.ReadAll(lines)
		if got := strings.Count(string(table), " rw,nosuid,nodev"); err == nil && got != 3 {
			err = fmt.Errorf("another mount namespace sees %d mounts, want the directory, secrets and private:\n%s", got, table)
		}
		return err
	})
}

// Tasks from a version without the mount keep their secrets and working directories while the mount is made. Where that is
// impossible, the mount is not made.
func TestRootMountOverTasksOfAnEarlierVersion(t *testing.T) {
	requireRoot(t)
	withRootMountFixture(t, unix.MS_SHARED, func(w *rootMountFixture) error {
		ids := []string{"0", "1", "2", "3"}
		for _, id := range ids {
			if err := w.start(id); err != nil {
				return err
			}
		}
		secret := filepath.Join(w.tasks["0"].SecretsDir, "token")
		cwd, err := openTrustedDir(w.tasks["0"].Dir) // a running task's working directory
		if err != nil {
			return err
		}
		defer cwd.close()
		if err := errors.Join(os.WriteFile(secret, []byte("x"), 0o600), BindAllocsRootNosuidNodev(w.allocsDir()), w.check(1)); err != nil {
			return err
		}
		for _, path := range []string{secret, cwd.procPath() + "/secrets/token"} {
			if text, err := os.ReadFile(path); string(text) != "x" {
				return fmt.Errorf("%s: %q, %v", path, text, err)
			}
		}
		for _, id := range ids {
			if err := w.destroy(id); err != nil {
				return err
			}
		}
		return errors.Join(w.check(1), RestrictAndUnmountAllocsRoot(w.allocsDir()), w.check(0))
	})
	withRootMountFixture(t, unix.MS_PRIVATE, func(w *rootMountFixture) error {
		if err := w.start("0"); err != nil {
			return err
		}
		if err := BindAllocsRootNosuidNodev(w.allocsDir()); !errors.Is(err, errMountsBelow) {
			return fmt.Errorf("got %v, want that tasks of an earlier version have mounts", err)
		}
		return errors.Join(w.destroy("0"), w.check(0), BindAllocsRootNosuidNodev(w.allocsDir()), w.check(1))
	})
}

// A disk that the operator has mounted on the directory stays. If it has the options already, nothing is mounted on it.
func TestRootMountOnDiskOfTheOperator(t *testing.T) {
	requireRoot(t)
	for _, c := range []struct {
		name    string
		options uintptr
		want    int // mounts on the disk
	}{{"restricted", unix.MS_NOSUID | unix.MS_NODEV, 0}, {"without options", 0, 1}, {"nosuid", unix.MS_NOSUID, 1}} {
		t.Run(c.name, func(t *testing.T) {
			withRootMountFixture(t, unix.MS_SHARED, func(w *rootMountFixture) error {
				if err := unix.Mount("tmpfs", w.allocsDir(), "tmpfs", c.options, "mode=711"); err != nil {
					return err
				}
				w.operatorMounts = 1
				mount := func() error { return BindAllocsRootNosuidNodev(w.allocsDir()) }
				return errors.Join(mount(), mount(), w.start("0"), w.check(c.want), w.destroy("0"), RestrictAndUnmountAllocsRoot(w.allocsDir()), w.check(0))
			})
		})
	}
}

// Nothing is mounted if the operator has restricted a directory above, and what the operator has mounted stays.
func TestRootMountBelowMountOfTheOperator(t *testing.T) {
	requireRoot(t)
	withRootMountFixture(t, unix.MS_PRIVATE, func(w *rootMountFixture) error {
		if err := errors.Join(unix.Mount(w.dataDir, w.dataDir, "", unix.MS_BIND, ""),
			unix.Mount("", w.dataDir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, "")); err != nil {
			return err
		}
		err := errors.Join(BindAllocsRootNosuidNodev(w.allocsDir()), w.start("0"), w.check(0), w.destroy("0"), RestrictAndUnmountAllocsRoot(w.allocsDir()))
		return errors.Join(err, unix.Unmount(w.dataDir, 0))
	})
}

// The directories that the mount leaves are closed to other accounts, until a task starts in them again. A link to the data directory is
// as good as its path.
func TestUnmountRootClosesDirectories(t *testing.T) {
	requireRoot(t)
	withRootMountFixture(t, unix.MS_PRIVATE, func(w *rootMountFixture) error {
		link := w.dataDir + "-link"
		if err := errors.Join(os.Symlink(w.dataDir, link), BindAllocsRootNosuidNodev(link+"/alloc"), w.start("0"), w.start("1"), w.check(1)); err != nil {
			return err
		}
		return errors.Join(os.WriteFile(w.allocsDir()+"/file", nil, 0o644), w.end(), w.check(0),
			RestrictAndUnmountAllocsRoot(w.allocsDir()), BindAllocsRootNosuidNodev(w.allocsDir()), w.startAll(), w.check(1))
	})
}
