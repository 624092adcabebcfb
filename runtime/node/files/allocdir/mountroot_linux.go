package allocdir

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// errMountsBelow: tasks have mounts in the directory. BindAllocsRootNosuidNodev's mount would cover them, and the agent
// could not unmount them. The tasks were started by an earlier version, or by an agent without this mount.
var errMountsBelow = errors.New("tasks that were started without this mount have mounts in it: stop them, or reboot, and restart the agent")

// allocsRootDir is the directory for all allocations. It is large because it has the methods of any directory, too.
type allocsRootDir struct{ *dirHandle }

func openAllocsRoot(path string) (allocsRootDir, error) {
	h, err := openTrustedDir(path)
	return allocsRootDir{h}, err
}

// BindAllocsRootNosuidNodev mounts the directory for all allocations on itself, with everything mounted below it, with
// the options nosuid and nodev. Then set-user-id programs, set-group-id programs, file capabilities and device files in
// it have no effect. It does nothing if the directory has these options already, from an earlier call or from the
// operator.
//
// BindAllocsRootNosuidNodev must be called before anything below the directory is opened: a handle from before
// the call is on another mount, without the options, and no file can be renamed between the two.
func BindAllocsRootNosuidNodev(path string) error {
	if err := bindAllocsRootNosuidNodev(path); err != nil {
		return fmt.Errorf("mount %s on itself with nosuid and nodev: %w", path, err)
	}
	return nil
}

func bindAllocsRootNosuidNodev(path string) error {
	root, err := openAllocsRoot(path)
	if err != nil {
		return err
	}
	defer root.close()
	if restricted, err := root.isNosuidNodev(); restricted || err != nil {
		return err
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	below, shared, err := root.checkMountsBelow()
	if err != nil {
		return err
	}
	if below {
		if !shared {
			return errMountsBelow
		}
		// The new mount covers the mounts that tasks use, so no path leads to them. Because the copies stay in the covered
		// mounts' peer groups, the kernel unmounts both when a copy is unmounted.
		attr.Propagation = 0
	}
	opcount.Count(opcount.Mount)
	// The copy has its options before it is attached, so that a crash leaves no mount without them.
	tree, err := unix.OpenTree(root.fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return explainRootMountDenied(err)
	}
	defer unix.Close(tree)
	opcount.Count(opcount.Mount)
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return explainRootMountDenied(err)
	}
	opcount.Count(opcount.Mount)
	return explainRootMountDenied(unix.MoveMount(tree, "", root.fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// explainRootMountDenied adds the remedy to an error from a machine on which the agent cannot mount.
func explainRootMountDenied(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: the agent needs the capability CAP_SYS_ADMIN", err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: it needs Linux 5.12 or later", err)
	}
	return err
}

// isNosuidNodev reports whether set-user-id bits and device files have no effect in the directory.
func (d allocsRootDir) isNosuidNodev() (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(d.fd, &st); err != nil {
		return false, d.wrapDirError("statfs", err)
	}
	const want = unix.ST_NOSUID | unix.ST_NODEV
	return st.Flags&want == want, nil
}

// findOwnMount returns the directory's mount.
func (d allocsRootDir) findOwnMount(mountByID map[string]mountEntry) (mountEntry, error) {
	id, err := safepath.MountID(d.fd)
	if err != nil {
		return mountEntry{}, err
	}
	m, found := mountByID[strconv.FormatUint(id, 10)]
	if !found {
		return m, d.wrapDirError("find the mount of", errors.New("it is not in the mount table"))
	}
	return m, nil
}

// checkMountsBelow reports whether a file system is mounted below the directory, and whether the directory's own mount
// is in a peer group.
func (d allocsRootDir) checkMountsBelow() (hasBelow, ownMountIsShared bool, err error) {
	mounts, err := readMountByID()
	if err != nil {
		return false, false, err
	}
	on, err := d.findOwnMount(mounts)
	if err != nil {
		return false, false, err
	}
	own, err := realPath(d.dirHandle)
	if err != nil {
		return false, false, err
	}
	for _, m := range mounts {
		hasBelow = hasBelow || strings.HasPrefix(m.mountPoint, own+"/")
	}
	return hasBelow, on.isShared, nil
}

// RestrictAndUnmountAllocsRoot removes the mount that BindAllocsRootNosuidNodev made, with everything mounted below it.
// No task may be running. Because set-user-id programs have an effect again, RestrictAndUnmountAllocsRoot first closes
// the allocation directories to all accounts but root; BuildTaskDir admits its task's users again. It does nothing if
// BindAllocsRootNosuidNodev has made no mount.
func RestrictAndUnmountAllocsRoot(path string) error {
	if err := restrictAndUnmountAllocsRoot(path); err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

func restrictAndUnmountAllocsRoot(path string) error {
	root, err := openAllocsRoot(path)
	if err != nil {
		return ignoreMissing(err)
	}
	defer root.close()
	ours, err := root.isMountedOnItself()
	if !ours || err != nil {
		return err
	}
	if err := root.restrictAllocDirsToRoot(); err != nil {
		return err
	}
	opcount.Count(opcount.Mount)
	return root.wrapDirError("unmount", unix.Unmount(root.procPath(), unix.MNT_DETACH))
}

// isMountedOnItself reports whether the directory is mounted on itself with BindAllocsRootNosuidNodev's options. If the
// operator has mounted a disk there, it covers another directory.
func (d allocsRootDir) isMountedOnItself() (bool, error) {
	if restricted, err := d.isNosuidNodev(); !restricted || err != nil {
		return false, err
	}
	mounts, err := readMountByID()
	if err != nil {
		return false, err
	}
	m, err := d.findOwnMount(mounts)
	if err != nil {
		return false, err
	}
	own, err := realPath(d.dirHandle)
	if err != nil {
		return false, err
	}
	covered, found := mounts[m.parentID]
	return found && m.mountPoint == own && m.device == covered.device && m.root == path.Join(covered.root, strings.TrimPrefix(m.mountPoint, covered.mountPoint)), nil
}

// restrictAllocDirsToRoot closes all allocation directories to all accounts but root.
func (d allocsRootDir) restrictAllocDirsToRoot() error {
	entries, err := os.ReadDir(d.procPath())
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, d.restrictAllocDirToRoot(e.Name()))
	}
	return errors.Join(errs...)
}

func (d allocsRootDir) restrictAllocDirToRoot(name string) error {
	dir, err := d.open(name)
	if errors.Is(err, errNotDir) {
		return nil
	}
	if err != nil {
		return ignoreMissing(err)
	}
	defer dir.close()
	st, err := dir.stat()
	if err != nil || st.Mode&0o077 == 0 {
		return err
	}
	if _, err := dir.dropACL(); err != nil {
		return err
	}
	return dir.chmod(0o700)
}
