package allocdir

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// newHostTree returns a directory that stands for the host's files. It has another file system mounted on
// mounted/.
func newHostTree(t *testing.T) string {
	t.Helper()
	tree, err := os.MkdirTemp("/var/tmp", "host-tree-") // /tmp cannot be a path in a chroot
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tree) })
	for _, name := range []string{"etc/app/config", "mounted/hidden", "file", "lib/so"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"lib64": "lib", "outside": "/etc/os-release"} {
		if err := os.Symlink(target, filepath.Join(tree, name)); err != nil {
			t.Fatal(err)
		}
	}
	mounted := filepath.Join(tree, "mounted")
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, ""); err != nil {
		t.Skipf("mounts are not possible here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mounted, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(mounted, "shown"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return tree
}

// checkHostTree fails if a newHostTree file is missing.
func checkHostTree(t *testing.T, tree string) {
	t.Helper()
	for _, name := range []string{"etc/app/config", "mounted/shown", "file", "lib/so", "lib64"} {
		if _, err := os.Lstat(filepath.Join(tree, name)); err != nil {
			t.Errorf("the host has lost a file: %v", err)
		}
	}
}

// An agent that cannot mount makes a chroot's links, and returns the mounts for the driver.
func TestPrepareReturnsMountsOfChroot(t *testing.T) {
	tree, err := os.MkdirTemp("/var/tmp", "host-tree-") // /tmp cannot be a path in a chroot
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tree)
	if err := os.MkdirAll(filepath.Join(tree, "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"lib64": "lib", "outside": "/etc/os-release"} {
		if err := os.Symlink(target, filepath.Join(tree, name)); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	dir, err := openTrustedDir(root)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.close()
	osRelease, err := filepath.EvalSymlinks("/etc/os-release")
	if err != nil {
		t.Fatal(err)
	}
	c := &chroot{rootDir: dir, taskPathByHostPath: map[string]string{
		tree + "/lib": tree + "/lib", tree + "/lib64": tree + "/lib64", tree + "/outside": "/run/outside", tree + "/missing": "/missing",
	}}
	want := []driver.Mount{
		{TaskPath: tree + "/lib", HostPath: tree + "/lib", Readonly: true},
		{TaskPath: "/run/outside", HostPath: osRelease, Readonly: true},
	}
	for range 2 { // at a restart, the links are there already
		got, err := c.linkHostFilesAndListMounts()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("mounts %v, %v; want %v", got, err, want)
		}
		if link, err := os.Readlink(root + tree + "/lib64"); err != nil || link != "lib" {
			t.Errorf("link to %q, %v; want lib", link, err)
		}
	}
	c.dirsToHide, c.taskPathByHostPath = []string{tree + "/lib/alloc"}, map[string]string{tree + "/lib": "/lib"}
	if _, err := c.linkHostFilesAndListMounts(); err == nil || !strings.Contains(err.Error(), "it contains "+tree+"/lib/alloc, the directories of other tasks") {
		t.Errorf("error %v for a path with the directories of other tasks", err)
	}
}

// A chroot task sees the host files read-only, until it ends.
func TestChrootShowsHostFiles(t *testing.T) {
	requireRoot(t)
	d, tree := newTestDir(t), newHostTree(t)
	options := TaskDirOptions{Isolation: driver.FSIsolationChroot, ChrootEnv: map[string]string{
		tree: "/host/tree", tree + "/etc": "/etc", tree + "/file": "/run/file", tree + "/outside": "/run/outside", tree + "/missing": "/missing",
		tree + "/lib": tree + "/lib", tree + "/lib64": tree + "/lib64",
	}}
	if err := ValidateChrootEnv(options.ChrootEnv); err != nil {
		t.Fatal(err)
	}
	for range 2 { // at a restart, all is there already
		task, err := d.BuildTaskDir("web", options)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"host/tree/etc/app/config", "host/tree/mounted/shown", "etc/app/config", "run/file", "run/outside", tree + "/lib/so", tree + "/lib64/so"} {
			path := filepath.Join(task.Dir, name)
			if _, err := os.ReadFile(path); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(path, nil, 0o644); !errors.Is(err, unix.EROFS) {
				t.Errorf("write %s: %v, want a read-only file system", name, err)
			}
		}
		if target, err := os.Readlink(filepath.Join(task.Dir, tree, "lib64")); target != "lib" {
			t.Errorf("lib64 leads to %q, %v, want the link of the host", target, err)
		}
		if _, err := os.Lstat(filepath.Join(task.Dir, "missing")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a file that the host does not have: %v", err)
		}
	}
	if got := len(mountsBelow(t, d.Path())); got != 2+2+6 { // secrets and private, alloc and its logs, tree with mounted, etc, file, outside, lib
		t.Errorf("%d mounts: %s", got, mountsBelow(t, d.Path()))
	}
	if err := d.DropSecretsAndUnmount("web"); err != nil {
		t.Fatal(err)
	}
	if got := mountsBelow(t, d.Path()); len(got) > 0 {
		t.Errorf("still mounted: %s", got)
	}
	checkHostTree(t, tree)
}

// A driver that mounts the host's files gets them as mounts, and no host file is mounted below the task's directory, from where
// removing a data directory would reach it.
func TestDriverThatMountsHostFilesGetsMounts(t *testing.T) {
	requireRoot(t)
	d, tree := newTestDir(t), newHostTree(t)
	task, err := d.BuildTaskDir("web", TaskDirOptions{Isolation: driver.FSIsolationChroot, DriverMountsHostFiles: true, ChrootEnv: map[string]string{tree: "/host/tree", tree + "/file": "/file"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []driver.Mount{{TaskPath: "/host/tree", HostPath: tree, Readonly: true}, {TaskPath: "/file", HostPath: tree + "/file", Readonly: true}}
	if !slices.Equal(task.MountsForDriver, want) {
		t.Errorf("mounts for the driver %v, want %v", task.MountsForDriver, want)
	}
	var below []string
	for _, point := range mountsBelow(t, d.Path()) {
		below = append(below, strings.TrimPrefix(point, d.Path()))
	}
	slices.Sort(below)
	if want := []string{"/web/alloc", "/web/alloc/logs", "/web/private", "/web/secrets"}; !slices.Equal(below, want) {
		t.Errorf("mounted %q, want %q", below, want)
	}
}

// Whatever is mounted in an allocation's directory, its removal removes nothing on the host.
func TestDestroyKeepsHostFilesOfChroot(t *testing.T) {
	requireRoot(t)
	d, tree := newTestDir(t), newHostTree(t)
	task, err := d.BuildTaskDir("web", TaskDirOptions{Isolation: driver.FSIsolationChroot, ChrootEnv: map[string]string{tree: "/host/tree", tree + "/file": "/file"}})
	if err != nil {
		t.Fatal(err)
	}
	// The driver makes mounts unknown to the agent, writable and on each other.
	for _, target := range []string{"dev", "proc", "proc"} {
		path := filepath.Join(task.Dir, target)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(tree, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Destroy(); err != nil {
		t.Error(err)
	}
	checkHostTree(t, tree)
	if got := mountsBelow(t, d.Path()); len(got) > 0 {
		t.Errorf("still mounted: %s", got)
	}
}

// A task must not see other tasks' directories.
func TestChrootRejectsDirectoriesOfAllocations(t *testing.T) {
	requireRoot(t)
	d := newTestDir(t)
	above := filepath.Dir(filepath.Dir(d.Path()))
	_, err := d.BuildTaskDir("web", TaskDirOptions{Isolation: driver.FSIsolationChroot, ChrootEnv: map[string]string{above: "/data"}})
	if err == nil || !strings.Contains(err.Error(), "the directories of other tasks") {
		t.Errorf("got %v", err)
	}
}

func TestValidateChrootEnv(t *testing.T) {
	for _, c := range []struct{ source, target, want string }{
		{"/usr", "/usr", ""},
		{"/opt/a", "/b/c", ""},
		{"usr", "/usr", `"usr" is no absolute path`},
		{"/", "/host", `"/" is no absolute path below /`},
		{"/usr/../etc", "/etc", "is no absolute path"},
		{"/usr", "usr", `"usr", the path of /usr for tasks, is no absolute path`},
		{"/usr", "/", `"/", the path of /usr for tasks`},
		{"/usr", "/../usr", "is no absolute path"},
		{"/srv", "/alloc/x", "is a directory that each task has already"},
		{"/dev", "/dev", "is a directory that each task has already"},
		{"/usr", "/etc/usr", `"/etc" and "/etc/usr" cannot both`},
	} {
		env := map[string]string{"/etc": "/etc", c.source: c.target}
		err := ValidateChrootEnv(env)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s -> %s: got %v, want %q", c.source, c.target, err, c.want)
		}
	}
	if err := ValidateChrootEnv(DefaultChrootEnv()); err != nil {
		t.Errorf("the default: %v", err)
	}
}

// BenchmarkChroot builds and removes a task's directory with Nomad's default files, beside one without them, when other tasks
// have some hundred mounts.
func BenchmarkChroot(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("mounts need root")
	}
	for _, others := range []int{0, 500} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			root := filepath.Join(b.TempDir(), "alloc")
			newTask := func(id string, isolation driver.FSIsolation) *Dir {
				d, err := New(root, id)
				if err != nil {
					b.Fatal(err)
				}
				if err := d.Build(); err != nil {
					b.Fatal(err)
				}
				if _, err := d.BuildTaskDir("web", TaskDirOptions{Isolation: isolation, ChrootEnv: DefaultChrootEnv()}); err != nil {
					b.Fatal(err)
				}
				return d
			}
			destroy := func(d *Dir) {
				if err := d.Destroy(); err != nil {
					b.Fatal(err)
				}
			}
			for i := range others {
				d := newTask(fmt.Sprint("other-", i), driver.FSIsolationChroot)
				b.Cleanup(func() { destroy(d) })
			}
			b.Run("mount-namespace", func(b *testing.B) { // what other programs on the host pay for the mounts
				for b.Loop() {
					if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
						b.Fatal(err)
					}
				}
			})
			for name, isolation := range map[string]driver.FSIsolation{"none": driver.FSIsolationNone, "chroot": driver.FSIsolationChroot} {
				b.Run(name, func(b *testing.B) {
					for b.Loop() {
						destroy(newTask("measured", isolation))
					}
				})
			}
		})
	}
}
