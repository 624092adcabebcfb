package allocdir

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// tmpfsMarkerName is a file that Nomad creates in its memory file systems.
const tmpfsMarkerName = ".nomad-mount"

// rejectsNoswap is set when the kernel has rejected the option noswap, because each rejection is a line in its log. Linux
// before 6.4, and a user namespace, reject it.
var rejectsNoswap atomic.Bool

// mountSecretTmpfs mounts a tmpfs for a task's users on dir, which is called name in h, unless dir is a mounted tmpfs. If a
// container or the kernel permits no tmpfs, it returns onDiskReason, the reason why secrets stay on disk.
func (h *dirHandle) mountSecretTmpfs(dir *dirHandle, name string, sizeMB int, u taskUsers) (onDiskReason, err error) {
	mounted, err := safepath.IsMount(h.fd, dir.fd)
	if err != nil {
		return nil, err
	}
	if mounted {
		if tmpfs, err := dir.isOnTmpfs(); tmpfs || err != nil {
			return nil, err
		}
		if err := h.detachAllMounts(name); err != nil { // removes the mounted file system, which is not a tmpfs
			return nil, err
		}
		if dir, err = h.open(name); err != nil {
			return nil, err
		}
		defer dir.close()
	}

	mode := 0o700
	if u.allowsAllUsers {
		mode = 0o777
	}
	options := fmt.Sprintf("size=%dm,mode=%04o,uid=%d,gid=%d", sizeMB, mode, u.owner.uid, u.owner.gid)
	const mountFlags = unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
	err = unix.EINVAL
	if !rejectsNoswap.Load() {
		opcount.Count(opcount.Mount)
		err = unix.Mount("tmpfs", dir.procPath(), "tmpfs", mountFlags, options+",noswap")
	}
	if errors.Is(err, unix.EINVAL) {
		opcount.Count(opcount.Mount)
		err = unix.Mount("tmpfs", dir.procPath(), "tmpfs", mountFlags, options)
		if err == nil {
			rejectsNoswap.Store(true)
		}
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV) {
		return h.wrapChildError("mount tmpfs on", name, err), nil // the agent is root in a container without the right to mount
	}
	if err != nil {
		return nil, h.wrapChildError("mount tmpfs on", name, err)
	}
	return nil, h.setACLAndMarkTmpfs(name, u)
}

// setACLAndMarkTmpfs sets a newly mounted tmpfs's ACL, and creates the marker file in it.
func (h *dirHandle) setACLAndMarkTmpfs(name string, u taskUsers) error {
	dir, err := h.open(name) // opens the mounted file system
	if err != nil {
		return err
	}
	defer dir.close()
	if len(u.admittedUIDs) > 0 && !u.allowsAllUsers {
		if err := h.restrictDirToTaskUsers(dir, name, true, u, 0o777); err != nil {
			return err
		}
	}
	fd, err := safepath.OpenAt(dir.fd, tmpfsMarkerName, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return dir.wrapChildError("create", tmpfsMarkerName, err)
	}
	unix.Close(fd)
	return nil
}

// isReadOnlyMount is the access through a bind mount.
type isReadOnlyMount bool

const (
	readWrite isReadOnlyMount = false
	readOnly  isReadOnlyMount = true
)

// bindMount bind-mounts the directory source on name, unless something is mounted there. For readOnly
// it makes an earlier mount read-only too, because an agent can die between the two system calls.
func (h *dirHandle) bindMount(name string, source *dirHandle, access isReadOnlyMount) error {
	target, err := h.ensureDir(name, 0o777, taskOwned)
	if err != nil {
		return err
	}
	defer target.close()
	mounted, err := safepath.IsMount(h.fd, target.fd)
	if err != nil {
		return err
	}
	if !mounted {
		opcount.Count(opcount.Mount)
		if err := unix.Mount(source.procPath(), target.procPath(), "", unix.MS_BIND, ""); err != nil {
			return h.wrapChildError("bind mount on", name, err)
		}
	}
	if access == readWrite {
		return nil
	}
	bound, err := h.open(name) // opens the mounted directory
	if err != nil {
		return err
	}
	defer bound.close()
	opcount.Count(opcount.Mount)
	err = unix.Mount("", bound.procPath(), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	return h.wrapChildError("make read-only", name, err)
}

// isOnTmpfs reports whether the directory is in a tmpfs.
func (h *dirHandle) isOnTmpfs() (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(h.fd, &st); err != nil {
		return false, h.wrapDirError("statfs", err)
	}
	return st.Type == unix.TMPFS_MAGIC, nil
}

// detachAllMounts detaches all mounts on name immediately. Open files there stay usable.
func (h *dirHandle) detachAllMounts(name string) error {
	for {
		fd, err := safepath.OpenAt(h.fd, name, unix.O_PATH, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return h.wrapChildError("open", name, err)
		}
		mounted, err := safepath.IsMount(h.fd, fd)
		if mounted {
			opcount.Count(opcount.Mount)
			err = unix.Unmount(safepath.ProcPath(fd), unix.MNT_DETACH)
		}
		unix.Close(fd)
		if err != nil {
			return h.wrapChildError("unmount", name, err)
		}
		if !mounted {
			return nil
		}
	}
}
