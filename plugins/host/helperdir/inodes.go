package helperdir

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

const (
	// reservedInodesDirName is the directory of the empty files that reserve inodes in a data directory.
	reservedInodesDirName = "reserve.inodes"
	// reservedInodes is the number of these files on a file system with many free inodes.
	reservedInodes = 64
	// minFreeInodes is the number of free inodes below which EnsureFreeInodes frees reserved ones.
	minFreeInodes = 8
	// freedInodes is the number of reserved inodes that EnsureFreeInodes frees at once. The helper processes and the plugins that start
	// together create fewer files.
	freedInodes = 16
)

// ReserveInodes creates empty files, so that helper processes and plugins can create their sockets when the file system has no free
// inode: see EnsureFreeInodes. It reserves at most a quarter of the inodes that are free, and none on a file system without a limit.
func (d *Dir) ReserveInodes() error {
	free := d.freeInodes()
	if free == math.MaxInt {
		return nil
	}
	if err := unix.Mkdirat(int(d.handle.Fd()), reservedInodesDirName, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return &fs.PathError{Op: "mkdir", Path: path.Join(d.path, reservedInodesDirName), Err: err}
	}
	dir, names, err := d.openReservedInodes()
	if err != nil {
		return err
	}
	defer dir.Close()
	reserved := make(map[string]bool, len(names))
	for _, name := range names {
		reserved[name] = true
	}
	wanted := min(reservedInodes, (free+len(names))/4)
	for i := 0; len(reserved) < wanted; i++ {
		name := fmt.Sprint(i)
		if reserved[name] {
			continue
		}
		fd, err := safepath.OpenAt(int(dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
		if err != nil {
			return &fs.PathError{Op: "create", Path: path.Join(dir.Name(), name), Err: err}
		}
		unix.Close(fd)
		reserved[name] = true
	}
	return nil
}

// EnsureFreeInodes removes a part of the files of ReserveInodes if the file system has almost no free inode. The other files are for later
// calls, because running tasks can use the freed inodes before the caller does. It returns whether it has removed any.
func (d *Dir) EnsureFreeInodes() (freed bool) {
	if d.freeInodes() >= minFreeInodes {
		return false
	}
	dir, names, err := d.openReservedInodes()
	if err != nil {
		return false
	}
	defer dir.Close()
	for _, name := range names[:min(len(names), freedInodes)] {
		freed = unix.Unlinkat(int(dir.Fd()), name, 0) == nil || freed
	}
	return freed
}

// openReservedInodes opens the directory of the files of ReserveInodes, and returns their names.
func (d *Dir) openReservedInodes() (dir *os.File, names []string, err error) {
	dirPath := path.Join(d.path, reservedInodesDirName)
	fd, err := safepath.OpenAt(int(d.handle.Fd()), reservedInodesDirName, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, nil, &fs.PathError{Op: "open", Path: dirPath, Err: err}
	}
	dir = os.NewFile(uintptr(fd), dirPath)
	if names, err = dir.Readdirnames(-1); err != nil {
		dir.Close()
		return nil, nil, err
	}
	return dir, names, nil
}

// freeInodes returns the number of free inodes of the file system; math.MaxInt if it has no limit or the number is unknown.
func (d *Dir) freeInodes() int {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.handle.Fd()), &st); err != nil || st.Files == 0 {
		return math.MaxInt
	}
	return int(min(st.Ffree, math.MaxInt))
}
