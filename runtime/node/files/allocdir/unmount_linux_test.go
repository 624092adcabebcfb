package allocdir

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// bindForTest bind-mounts a host directory with everything below it.
func bindForTest(t *testing.T, source, target string) {
	t.Helper()
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
}

// Whatever is mounted below an allocation's directory is unmounted, however deep and in whatever order it was mounted, and
// removing the directory then removes nothing on the host.
func TestUnmountAllocDirs(t *testing.T) {
	requireRoot(t)
	d, tree := newTestDir(t), newHostTree(t)
	kept, err := New(filepath.Dir(d.Path()), "kept-id")
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.Build(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kept.Destroy() })
	for _, dir := range []*Dir{d, kept} {
		for name, isolation := range map[string]driver.FSIsolation{"chrooted": driver.FSIsolationChroot, "unveiled": driver.FSIsolationUnveil} {
			if _, err := dir.BuildTaskDir(name, TaskDirOptions{Isolation: isolation, ChrootEnv: map[string]string{tree: "/host"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	local := filepath.Join(d.Path(), "unveiled", "local")
	deep := filepath.Join(local, strings.Repeat("d/", maxUnmountDepth+2), "with space\\040\n")
	bindForTest(t, tree, deep)
	bindForTest(t, tree, deep) // covers the first
	bindForTest(t, tree, filepath.Join(deep, "lib"))
	bindForTest(t, tree, local) // covers them all
	if err := os.Symlink(tree, filepath.Join(d.Path(), "link")); err != nil {
		t.Fatal(err)
	}
	keptMounts := mountsBelow(t, kept.Path())
	keptMounts = append(keptMounts, mountsBelow(t, kept.unveilMountsRoot()+"/kept-id-unveiled")...)

	if err := UnmountAllocDirs(d.allocsRoot, func(id string) bool { return id == "kept-id" }); err != nil {
		t.Error(err)
	}
	if got := append(mountsBelow(t, d.Path()), mountsBelow(t, d.unveilMountsRoot()+"/"+d.allocID+"-unveiled")...); len(got) > 0 {
		t.Errorf("still mounted: %q", got)
	}
	if got := append(mountsBelow(t, kept.Path()), mountsBelow(t, kept.unveilMountsRoot()+"/kept-id-unveiled")...); !slices.Equal(got, keptMounts) || len(got) == 0 {
		t.Errorf("mounts of the other allocation %q, want %q", got, keptMounts)
	}
	checkHostTree(t, tree)
	if err := os.RemoveAll(d.Path()); err != nil {
		t.Error(err)
	}
	checkHostTree(t, tree)
	if err := UnmountAllocDirs(filepath.Join(t.TempDir(), "missing"), func(string) bool { return false }); err != nil {
		t.Errorf("missing directory: %v", err)
	}
}

// A path that leads elsewhere since the mount table was read is not unmounted.
func TestUnmountFollowsNoLink(t *testing.T) {
	requireRoot(t)
	d, tree := newTestDir(t), newHostTree(t)
	fd, err := safepath.OpenDir(filepath.Join(tree, "mounted"))
	if err != nil {
		t.Fatal(err)
	}
	id, err := safepath.MountID(fd)
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(tree, filepath.Join(d.Path(), "link")); err != nil {
		t.Fatal(err)
	}
	alloc, err := d.openHandle()
	if err != nil {
		t.Fatal(err)
	}
	defer alloc.close()
	if detached, err := detachMountInTable(alloc, "link/mounted", []string{strconv.FormatUint(id, 10)}); detached || !errors.Is(err, unix.ELOOP) {
		t.Errorf("unmounted %v, error %v, want ELOOP", detached, err)
	}
	bindForTest(t, tree, filepath.Join(d.Path(), "new"))
	if detached, err := detachMountInTable(alloc, "new", []string{"1"}); detached || err == nil {
		t.Error("a mount was unmounted that was not in the mount table")
	}
	checkHostTree(t, tree)
}

// Nothing is mounted, and no secret is left, in an allocation's directory when an operator is told to remove it.
func TestDropAllSecretsAndUnmount(t *testing.T) {
	requireRoot(t)
	d, tree := newTestDir(t), newHostTree(t)
	for name, isolation := range map[string]driver.FSIsolation{"chrooted": driver.FSIsolationChroot, "plain": driver.FSIsolationNone, "unveiled": driver.FSIsolationUnveil} {
		task, err := d.BuildTaskDir(name, TaskDirOptions{Isolation: isolation, ChrootEnv: map[string]string{tree: "/host"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(task.SecretsDir, "token"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // it may be called again
		if err := d.DropAllSecretsAndUnmount(); err != nil {
			t.Fatal(err)
		}
	}
	if got := append(mountsBelow(t, d.Path()), mountsBelow(t, d.unveilMountsRoot())...); len(got) > 0 {
		t.Errorf("still mounted: %q", got)
	}
	if secrets, _ := filepath.Glob(d.Path() + "/*/secrets/token"); len(secrets) > 0 {
		t.Errorf("left: %q", secrets)
	}
	checkHostTree(t, tree)
}

// An allocation is mounted elsewhere as long as a process has its directory at another path in its own mount namespace.
func TestFindAllocsMountedElsewhere(t *testing.T) {
	requireRoot(t)
	d := newTestDir(t)
	want := func(found bool) {
		t.Helper()
		got, err := FindAllocsMountedElsewhere([]string{d.allocID, "other"})
		if err != nil || got[d.allocID] != found || got["other"] {
			t.Errorf("found %v, %v; want %v for %s", got, err, found, d.allocID)
		}
	}
	run := func(script string) (stop func()) {
		t.Helper()
		c := exec.Command("unshare", "-m", "sh", "-c", script+"; echo ready; exec cat", "sh", d.Path(), t.TempDir())
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Skip(err)
		}
		if text := make([]byte, len("ready")); true {
			if _, err := out.Read(text); err != nil {
				t.Skipf("no mount namespace: %v", err)
			}
		}
		return func() { in.Close(); c.Wait() }
	}
	bindForTest(t, filepath.Join(d.Path(), "alloc"), filepath.Join(d.Path(), "bound"))
	want(false)
	stop := run("true") // a copy of the machine's mounts, as a service has it
	want(false)
	stop()
	stop = run(`mount --bind "$1/alloc" "$2"`)
	want(true)
	stop()
	want(false)
}
