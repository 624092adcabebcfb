package sdktest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// chrootSources are the paths of the machine that a task with file system isolation "chroot" sees.
var chrootSources = []string{"/bin", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr"}

// buildChroot makes the root directory of a task as a host does for a driver with file system isolation "chroot":
// it mounts chrootSources read-only, and sets environment variables such as NOMAD_TASK_DIR to the paths
// that the task sees. If the suite does not run as root, it adds the mounts to the config of the task, so that the
// driver makes them.
func buildChroot(t tb, c *driver.TaskConfig) {
	root := filepath.Join(c.AllocDir, c.Name)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	for _, source := range chrootSources {
		info, err := os.Lstat(source)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		target := root + source
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			err = copySymlink(source, target)
		} else if err == nil && os.Geteuid() != 0 {
			c.Mounts = append(c.Mounts, driver.Mount{TaskPath: source, HostPath: source, Readonly: true, PropagationMode: "private"})
		} else if err == nil {
			err = bindMountUntilCaseEnds(t, source, target, unix.MOUNT_ATTR_RDONLY)
		}
		if err != nil {
			t.Fatalf("make the root directory of a task: %s: %v", source, err)
		}
	}
	shared := filepath.Join(c.AllocDir, "alloc")
	if os.Geteuid() != 0 {
		c.Mounts = append(c.Mounts, driver.Mount{TaskPath: "/alloc", HostPath: shared, PropagationMode: "private"})
	} else if err := bindMountUntilCaseEnds(t, shared, filepath.Join(root, "alloc"), 0); err != nil {
		t.Fatalf("make the root directory of a task: %v", err)
	}
	c.Env["NOMAD_ALLOC_DIR"], c.Env["NOMAD_TASK_DIR"], c.Env["NOMAD_SECRETS_DIR"] = "/alloc", "/local", "/secrets"
}

func copySymlink(source, target string) error {
	to, err := os.Readlink(source)
	if err != nil {
		return err
	}
	return os.Symlink(to, target)
}

// bindMountUntilCaseEnds mounts source at target until the end of the case. The attributes are set before the mount has
// a path: a removal of the target must not delete the files of source.
func bindMountUntilCaseEnds(t tb, source, target string, attributes uint64) error {
	if err := os.Mkdir(target, 0o755); err != nil {
		return err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer unix.Close(tree)
	attr := &unix.MountAttr{Attr_set: attributes, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return os.NewSyscallError("mount_setattr", err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return os.NewSyscallError("move_mount", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", target, err)
		}
	})
	return nil
}
