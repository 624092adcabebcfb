package safepath

import (
	"errors"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenDir opens a handle (O_PATH) of a directory. It follows symbolic links, so other users
// must not be able to write to any directory on the path. The caller closes the handle.
func OpenDir(path string) (int, error) {
	fd, err := ignoreEINTR(func() (int, error) {
		return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// OpenAt opens one name in an open directory that other users may write to. It never
// follows a symbolic link: with O_PATH it opens the link itself, otherwise the error is
// ELOOP, or ENOTDIR with O_DIRECTORY. Without O_NONBLOCK it blocks if the name is a FIFO.
// mode is the mode of a file that O_CREAT creates. The caller must close the descriptor,
// which has close-on-exec set.
func OpenAt(dir int, name string, flags int, mode uint32) (int, error) {
	return ignoreEINTR(func() (int, error) {
		return unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	})
}

// OpenBeneath opens a handle (O_PATH) of the file or directory at a relative path below an open directory, in which other
// users may write. It follows no symbolic link on the way, and does not leave the directory: the error is then ELOOP or EXDEV.
// The caller must close the descriptor.
func OpenBeneath(dir int, name string) (int, error) {
	return openResolved(dir, name, unix.O_PATH, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_BENEATH)
}

func openResolved(dir int, name string, flags, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve}
	return ignoreEINTR(func() (int, error) { return unix.Openat2(dir, name, &how) })
}

// StatAt calls fstatat(2) for one name in an open directory, and does not follow a symbolic
// link.
func StatAt(dir int, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// ProcPath returns a path that leads to an open file or directory, even after its own path has
// been moved or replaced. The path is valid in this process until the descriptor is closed.
func ProcPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// ProcPathAt returns the path of a name in an open directory, like ProcPath. It is short,
// whatever the length of the directory's path.
func ProcPathAt(dir int, name string) string { return ProcPath(dir) + "/" + name }

func ignoreEINTR(open func() (int, error)) (int, error) {
	for {
		fd, err := open()
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
