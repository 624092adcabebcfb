package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// Dir is the directory of the namespaces. `ip netns` lists the namespaces in it.
const Dir = "/run/netns"

// Path returns the path of the namespace with the given name.
func Path(name string) string { return filepath.Join(Dir, name) }

// Create creates a network namespace with an active loopback interface. It returns nil if the namespace exists, for
// example because an earlier agent died after it had created the namespace. The process needs
// CAP_SYS_ADMIN and CAP_NET_ADMIN.
func Create(name string) error {
	path := Path(name)
	if err := prepareDir(); err != nil {
		return fmt.Errorf("create network namespace: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("create network namespace: %w", err)
	}
	file.Close()
	if Exists(path) {
		return nil
	}
	err = inNewNamespace(func() error {
		if err := setLoopbackUp(); err != nil {
			return fmt.Errorf("set the loopback interface up: %w", err)
		}
		opcount.Count(opcount.Mount)
		// The bind mount is the last step: a namespace that exists is complete.
		if err := unix.Mount(threadNamespace, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind the namespace to %s: %w", path, err)
		}
		return nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("create network namespace: %w", err), Remove(name))
	}
	return nil
}

// prepareDir creates Dir and makes it a shared mount point, as `ip netns add` and CNI plugins do. Otherwise the first of
// these programs bind-mounts Dir, with copies of the namespaces, over itself. No process can unmount the covered
// originals, and Remove fails until the next boot.
func prepareDir() error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(Dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	dir, err := os.Open(Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if mounted, err := safepath.IsMount(int(parent.Fd()), int(dir.Fd())); mounted || err != nil {
		return err
	}
	return mountDirOverItself(dir)
}

// mountDirOverItself makes Dir, which dir has opened, a shared mount point, and moves the existing namespaces to the new mount.
func mountDirOverItself(dir *os.File) error {
	// `ip netns add` takes the same lock.
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", Dir, err)
	}
	if err := shareDir(); !errors.Is(err, unix.EINVAL) {
		return err // without EINVAL, another process has made Dir a mount point before this one got the lock
	}
	opcount.Count(opcount.Mount)
	if err := unix.Mount(Dir, Dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", Dir, err)
	}
	// The descriptor still refers to the directory below the mount.
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list network namespaces: %w", err)
	}
	for _, name := range names {
		if err := unbind(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)); err != nil {
			return fmt.Errorf("move network namespace %s: %w", Path(name), err)
		}
	}
	return shareDir()
}

// shareDir makes the mount at Dir shared. The error is EINVAL if Dir is not a mount point.
func shareDir() error {
	opcount.Count(opcount.Mount)
	return os.NewSyscallError("share mount "+Dir, unix.Mount("", Dir, "", unix.MS_SHARED|unix.MS_REC, ""))
}

// threadNamespace is the path of the network namespace of the calling thread.
const threadNamespace = "/proc/thread-self/ns/net"

// Probe calls f in a network namespace that exists only during the call. Sockets and netlink calls of f use that
// namespace. A goroutine that f starts does not run in it.
func Probe(f func() error) error { return inNewNamespace(f) }

// inNewNamespace calls f on a thread that is in a new network namespace.
func inNewNamespace(f func() error) error {
	return osprocess.RunOnNewThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare the network: %w", err)
		}
		return f()
	})
}

// Do calls f on a thread that is in the namespace at the path. The conditions of [Probe] apply.
func Do(path string, f func() error) error {
	return osprocess.RunOnNewThread(func() error {
		ns, err := vnetns.GetFromPath(path)
		if err != nil {
			return fmt.Errorf("open network namespace: %w", err)
		}
		defer ns.Close()
		if err := unix.Setns(int(ns), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return f()
	})
}

func setLoopbackUp() error {
	const loopbackIndex = 1 // the kernel's LOOPBACK_IFINDEX, in each network namespace
	opcount.Count(opcount.Netlink)
	return netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loopbackIndex}})
}

// Exists reports whether the file at the path is a namespace. After a reboot the file is missing.
func Exists(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.NSFS_MAGIC
}

// Remove unbinds a namespace. The kernel removes it, with its interfaces, when no process is in it.
// Remove does nothing if there is no namespace with the name.
func Remove(name string) error {
	path := Path(name)
	if err := unbind(path); err != nil {
		return fmt.Errorf("remove network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

// unbind unmounts all namespaces at the path, one of which can cover another.
func unbind(path string) error {
	for Exists(path) {
		opcount.Count(opcount.Mount)
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return err
		}
	}
	return nil
}
