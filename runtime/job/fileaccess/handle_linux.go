package fileaccess

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// fileID identifies a file or directory.
type fileID struct{ device, inode uint64 }

// dirHandle is an open directory (O_PATH). All its methods look up one name, and follow no link.
type dirHandle struct{ fd int }

func (d dirHandle) close() { unix.Close(d.fd) }

func openTop(path string) (dirHandle, fileInfo, error) {
	return openDirAt(unix.AT_FDCWD, path)
}

func (d dirHandle) openDir(name string) (dirHandle, fileInfo, error) { return openDirAt(d.fd, name) }

func openDirAt(at int, name string) (dirHandle, fileInfo, error) {
	fd, err := safepath.OpenAt(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return dirHandle{}, fileInfo{}, err
	}
	info, err := statDescriptor(fd)
	if err != nil {
		unix.Close(fd)
		return dirHandle{}, fileInfo{}, err
	}
	return dirHandle{fd}, info, nil
}

func statDescriptor(fd int) (fileInfo, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return newFileInfo(&st), err
}

func newFileInfo(st *unix.Stat_t) fileInfo {
	mode := fs.FileMode(st.Mode & 0o777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	}
	return fileInfo{id: fileID{device: st.Dev, inode: st.Ino}, mode: mode, uid: st.Uid, size: st.Size}
}

func idOfPath(path string) (fileID, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return newFileInfo(&st).id, err
}

func (d dirHandle) lstat(name string) (fileInfo, error) {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return newFileInfo(&st), err
}

func (d dirHandle) readlink(name string) (string, error) {
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(d.fd, name, buffer)
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}

// openFile opens a file for reading. It blocks neither on a FIFO nor on a device.
func (d dirHandle) openFile(name string) (*os.File, fileInfo, fileSystemKind, error) {
	fd, err := safepath.OpenAt(d.fd, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fileInfo{}, 0, err
	}
	info, err := statDescriptor(fd)
	if err != nil {
		unix.Close(fd)
		return nil, fileInfo{}, 0, err
	}
	return os.NewFile(uintptr(fd), name), info, dirHandle{fd}.fileSystem(), nil
}

// list returns the names in the directory. It calls count with the number of names in each part it reads.
func (d dirHandle) list(count func(int) error) ([]string, error) {
	fd, err := safepath.OpenAt(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	var names []string
	for {
		part, err := f.Readdirnames(1_000)
		if err := count(len(part)); err != nil {
			return nil, err
		}
		names = append(names, part...)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (d dirHandle) fileSystem() fileSystemKind {
	var st unix.Statfs_t
	if err := unix.Fstatfs(d.fd, &st); err != nil {
		return processFileSystem // an error must not make a file system more permissive
	}
	switch st.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC:
		return processFileSystem
	case unix.FUSE_SUPER_MAGIC:
		return userFileSystem
	}
	return ordinaryFileSystem
}
