package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// DefaultChrootEnv returns Nomad's default for client.chroot_env: the host files for a task with isolation chroot, as path on
// the host -> path in the task's root directory.
func DefaultChrootEnv() map[string]string {
	env := map[string]string{}
	for _, path := range []string{"/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/sbin", "/usr", "/run/systemd/resolve"} {
		env[path] = path
	}
	return env
}

// reservedChrootNames are the names for the agent or the driver in a task's root directory.
var reservedChrootNames = []string{sharedDirName, localDirName, secretsDirName, privateDirName, tmpDirName, "dev", "proc"}

// ValidateChrootEnv returns an error for a path map that cannot be built.
func ValidateChrootEnv(env map[string]string) error {
	targets := slices.Sorted(maps.Values(env))
	for source, target := range env {
		name, _, _ := strings.Cut(strings.TrimPrefix(target, "/"), "/")
		switch {
		case !filepath.IsAbs(source) || filepath.Clean(source) != source || source == "/":
			return fmt.Errorf("%q is no absolute path below /", source)
		case !filepath.IsAbs(target) || filepath.Clean(target) != target || target == "/":
			return fmt.Errorf("%q, the path of %s for tasks, is no absolute path below /", target, source)
		case slices.Contains(reservedChrootNames, name):
			return fmt.Errorf("%q, the path of %s for tasks, is a directory that each task has already", target, source)
		}
	}
	for i, target := range targets {
		for _, other := range targets[i+1:] {
			if isBelowOrEqual(other, target) {
				return fmt.Errorf("%q and %q cannot both be paths for tasks: files are read-only, so that nothing can be mounted below them", target, other)
			}
		}
	}
	return nil
}

// isBelowOrEqual reports whether path is dir or a path below it. Both paths are clean.
func isBelowOrEqual(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// chroot is the root directory of a task with isolation chroot.
type chroot struct {
	rootDir            *dirHandle
	taskPathByHostPath map[string]string // path on the host -> path in the root directory
	dirsToHide         []string          // every allocation's allocsRoot and unveilMountsRoot, which no task must see
}

// linkAndMountHostFiles mounts the host files read-only, or copies the links. It skips files that are mounted already or
// missing on the host.
func (c *chroot) linkAndMountHostFiles() error {
	for _, source := range slices.Sorted(maps.Keys(c.taskPathByHostPath)) {
		if err := c.linkOrMountHostFile(source); err != nil {
			return fmt.Errorf("show %s to the task: %w", source, err)
		}
	}
	return nil
}

// linkOrMountHostFile mounts one host file, or copies the link.
func (c *chroot) linkOrMountHostFile(hostPath string) error {
	f, err := c.findHostFile(hostPath)
	if err != nil || f == nil {
		return err
	}
	parent, name, err := c.ensureParentDirs(f.taskPath)
	if err != nil {
		return err
	}
	defer parent.close()
	switch {
	case f.linkTarget != "":
		return parent.ensureSymlink(name, f.linkTarget)
	case f.isDir:
		return mountReadOnly(parent, name, f.hostPath, openOrMakeMountDir)
	}
	return mountReadOnly(parent, name, f.hostPath, openOrMakeMountFile)
}

// linkHostFilesAndListMounts is linkAndMountHostFiles for a driver that makes the mounts in the task's mount namespace: it
// copies the links, and returns the mounts.
func (c *chroot) linkHostFilesAndListMounts() (mounts []driver.Mount, err error) {
	for _, source := range slices.Sorted(maps.Keys(c.taskPathByHostPath)) {
		f, err := c.findHostFile(source)
		if err == nil && f != nil && f.linkTarget == "" {
			mounts = append(mounts, driver.Mount{TaskPath: f.taskPath, HostPath: f.hostPath, Readonly: true})
		} else if err == nil && f != nil {
			err = c.linkOrMountHostFile(source)
		}
		if err != nil {
			return nil, fmt.Errorf("show %s to the task: %w", source, err)
		}
	}
	return mounts, nil
}

// chrootFile is a host file or directory that appears in a task's root directory.
type chrootFile struct {
	hostPath   string
	taskPath   string // path in the task's root directory
	linkTarget string // content of the symbolic link to make; empty: the file is mounted
	isDir      bool
}

// findHostFile returns the file for a path on the host, or nil if the host has no such file, or it is neither a regular
// file nor a directory.
func (c *chroot) findHostFile(hostPath string) (*chrootFile, error) {
	info, err := os.Lstat(hostPath)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	f := &chrootFile{hostPath: hostPath, taskPath: c.taskPathByHostPath[hostPath]}
	if info.Mode()&fs.ModeSymlink != 0 {
		link, err := os.Readlink(hostPath)
		if err != nil {
			return nil, err
		}
		if c.linkLeadsToSameFile(hostPath, link) {
			f.linkTarget = link
			return f, nil
		}
		if f.hostPath, err = filepath.EvalSymlinks(hostPath); err != nil {
			return nil, ignoreMissing(err)
		}
		if info, err = os.Stat(f.hostPath); err != nil {
			return nil, err
		}
	}
	for _, dir := range c.dirsToHide {
		if isBelowOrEqual(dir, f.hostPath) {
			return nil, fmt.Errorf("it contains %s, the directories of other tasks: name its subdirectories in chroot_env instead", dir)
		}
	}
	f.isDir = info.IsDir()
	if !f.isDir && !info.Mode().IsRegular() {
		return nil, nil // sockets, FIFOs and devices are left out, as in Nomad
	}
	return f, nil
}

// linkLeadsToSameFile reports whether a copy of the link at linkPath, with the content linkTarget, leads to the same file in a
// task's root directory as on the host: on Debian, /bin is a link to usr/bin, and /usr is mounted.
func (c *chroot) linkLeadsToSameFile(linkPath, linkTarget string) bool {
	if c.taskPathByHostPath[linkPath] != linkPath {
		return false
	}
	if !filepath.IsAbs(linkTarget) {
		linkTarget = filepath.Join(filepath.Dir(linkPath), linkTarget)
	}
	for from, to := range c.taskPathByHostPath {
		if from == to && from != linkPath && isBelowOrEqual(filepath.Clean(linkTarget), from) {
			return true
		}
	}
	return false
}

// ensureParentDirs creates the missing directories above pathInRoot, a path in the task's root directory. It returns the last
// directory, which the caller must close, and pathInRoot's last element.
func (c *chroot) ensureParentDirs(pathInRoot string) (parent *dirHandle, name string, err error) {
	names := strings.Split(strings.TrimPrefix(pathInRoot, "/"), "/")
	last := len(names) - 1
	if parent, err = openTrustedDir(c.rootDir.procPath()); err != nil {
		return nil, "", err
	}
	parent.pathForErrors = c.rootDir.pathForErrors
	for _, name := range names[:last] {
		child, err := parent.ensureDir(name, chrootDirMode, agentOwned)
		parent.close()
		if err != nil {
			return nil, "", err
		}
		parent = child
	}
	return parent, names[last], nil
}

// ensureSymlink creates a symbolic link, unless the same link exists.
func (h *dirHandle) ensureSymlink(name, target string) error {
	err := unix.Symlinkat(target, h.fd, name)
	if !errors.Is(err, unix.EEXIST) {
		return h.wrapChildError("symlink", name, err)
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(h.fd, name, buf)
	if err != nil || string(buf[:n]) != target {
		return h.wrapChildError("symlink", name, unix.EEXIST)
	}
	return nil
}

// mountReadOnly mounts a host file, or a directory with everything mounted below it, on a name in the directory parent, unless
// something is mounted there. openOrMakeTarget opens the name, and creates it if necessary.
func mountReadOnly(parent *dirHandle, name, source string, openOrMakeTarget func(parentFD int, name string) (fd int, err error)) error {
	target, err := openOrMakeTarget(parent.fd, name)
	if err != nil {
		return parent.wrapChildError("create", name, err)
	}
	defer unix.Close(target)
	mounted, err := safepath.IsMount(parent.fd, target)
	if mounted || err != nil {
		return err
	}
	opcount.Count(opcount.Mount)
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return explainMountDenied(err)
	}
	defer unix.Close(tree)
	// MS_PRIVATE: if the operator later mounts a file system below the source, it does not appear in the root directory, where
	// tasks could write to it or keep it busy.
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}
	opcount.Count(opcount.Mount)
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return explainMountDenied(err)
	}
	opcount.Count(opcount.Mount)
	err = unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	return parent.wrapChildError("mount on", name, explainMountDenied(err))
}

// explainMountDenied adds the remedy to an error from a machine on which the agent cannot mount.
func explainMountDenied(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: drivers with isolation chroot need an agent with the capability CAP_SYS_ADMIN", err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: drivers with isolation chroot need Linux 5.12 or later", err)
	}
	return err
}

// openOrMakeMountDir creates the directory called name if the name does not exist, and opens it, or the file system mounted on
// it.
func openOrMakeMountDir(parentFD int, name string) (fd int, err error) {
	if err := unix.Mkdirat(parentFD, name, chrootDirMode); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return safepath.OpenAt(parentFD, name, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// openOrMakeMountFile creates an empty file called name if the name does not exist, and opens it, or the file mounted on it.
func openOrMakeMountFile(parentFD int, name string) (fd int, err error) {
	fd, err = safepath.OpenAt(parentFD, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
	if err == nil {
		unix.Close(fd)
	} else if !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return safepath.OpenAt(parentFD, name, unix.O_PATH, 0)
}

// chrootDirMode is the mode of a task's root directory, and of the agent's directories in it. The agent gives this mode to no
// other task directory, so dropSecretsAndUnmount recognizes a root directory by it.
const chrootDirMode = 0o755

// maxUnmountDepth is how deep below a task's root directory unmountChroot searches for mounts.
const maxUnmountDepth = 16

// unmountChroot unmounts all file systems mounted by the agent and the driver below h, a task's root directory or, at a depth
// above 0, a directory in it.
func unmountChroot(h *dirHandle, depth int) error {
	dir, err := os.Open(h.procPath())
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	errs := []error{err}
	for _, name := range names {
		if err := h.detachAllMounts(name); err != nil {
			errs = append(errs, err)
			continue
		}
		if depth == 0 && slices.Contains(reservedChrootNames, name) || depth == maxUnmountDepth {
			continue
		}
		child, err := h.open(name)
		if err != nil {
			continue // the name is a file or a link
		}
		if st, err := child.stat(); err == nil && st.Uid == 0 {
			errs = append(errs, unmountChroot(child, depth+1))
		}
		child.close()
	}
	return errors.Join(errs...)
}
