package logs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// OpenLogDir opens a log directory. It opens the path's last two elements without following links, because tasks can replace
// them.
func OpenLogDir(path string) (int, error) {
	alloc, logs, err := openAllocAndLogDirs(path)
	if err == nil {
		unix.Close(alloc)
	}
	return logs, err
}

// openAllocAndLogDirs opens a log directory, and its allocation's directory, which has the FIFOs and to which tasks cannot
// write.
func openAllocAndLogDirs(logDirPath string) (allocDirFD, logDirFD int, err error) {
	logDirPath = filepath.Clean(logDirPath)
	shared := filepath.Dir(logDirPath)
	allocDirFD, err = safepath.OpenDir(filepath.Dir(shared))
	if err != nil {
		return -1, -1, err
	}
	logDirFD = allocDirFD
	for _, step := range [...]struct {
		path  string
		flags int
	}{{shared, unix.O_PATH}, {logDirPath, unix.O_RDONLY}} {
		next, err := safepath.OpenAt(logDirFD, filepath.Base(step.path), step.flags|unix.O_DIRECTORY, 0)
		if logDirFD != allocDirFD {
			unix.Close(logDirFD)
		}
		if err != nil {
			unix.Close(allocDirFD)
			return -1, -1, &os.PathError{Op: "open", Path: step.path, Err: err}
		}
		logDirFD = next
	}
	return allocDirFD, logDirFD, nil
}

// fifoDir returns the directory for an allocation's FIFOs, given its log directory.
func fifoDir(logDir string) string { return filepath.Dir(filepath.Dir(filepath.Clean(logDir))) }

// UncollectedOutputPaths returns the paths for a driver that reads the task output by itself, as under Nomad. No files exist
// there; such a driver needs their directory.
func UncollectedOutputPaths(task Task) (stdout, stderr string) {
	path := func(s Stream) string {
		return filepath.Join(task.LogDir, task.streamKey(s).FIFOName())
	}
	return path(Stdout), path(Stderr)
}

func (t Task) fifoPath(s Stream) string {
	return filepath.Join(fifoDir(t.LogDir), t.streamKey(s).FIFOName())
}

// existsAt reports whether a name exists in the directory dirFD.
func existsAt(dirFD int, name string) bool {
	_, err := safepath.StatAt(dirFD, name)
	return err == nil
}

// openOrMakeFIFOReader opens a FIFO's read end in the directory dirFD, and makes the FIFO if it does not exist. It replaces a
// file if the agent has not made it. The descriptor is blocking, so that Go's poller ignores it: the poller would wake this process
// for each line. The collector process splices with SPLICE_F_NONBLOCK instead.
func openOrMakeFIFOReader(dirFD int, name string) (int, error) {
	for range 10 {
		err := unix.Mkfifoat(dirFD, name, 0o600)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, fmt.Errorf("make FIFO %s: %w", name, err)
		}
		// O_NONBLOCK: the FIFO has no writer yet, and the file may be a device.
		fd, err := safepath.OpenAt(dirFD, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			if err = checkOwnFIFO(fd); err == nil {
				err = enableFIFOHangup(fd)
			}
			if err == nil {
				err = unix.SetNonblock(fd, false)
			}
			if err == nil {
				return fd, nil
			}
			unix.Close(fd)
			if !errors.Is(err, collectorwire.ErrForeignFile) {
				return -1, fmt.Errorf("open FIFO %s: %w", name, err)
			}
		} else if !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENXIO) {
			return -1, fmt.Errorf("open FIFO %s: %w", name, err)
		}
		if err := removeAllAt(dirFD, name); err != nil && !errors.Is(err, unix.ENOENT) {
			return -1, fmt.Errorf("remove what stands in the place of FIFO %s: %w", name, err)
		}
	}
	return -1, fmt.Errorf("make FIFO %s: another process replaces it repeatedly", name)
}

// checkOwnFIFO returns collectorwire.ErrForeignFile unless the file is the agent user's FIFO and closed to all other users.
func checkOwnFIFO(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return collectorwire.ErrForeignFile
	}
	return nil
}

// enableFIFOHangup opens and closes a write end. Otherwise poll reports no hang-up for a FIFO that never had a writer, and
// stopping a task that was never started would take until the timeout.
func enableFIFOHangup(fd int) error {
	w, err := unix.Open(safepath.ProcPath(fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(w)
}

// removeAllAt removes a file, or a directory with its content.
func removeAllAt(dirFD int, name string) error {
	err := unix.Unlinkat(dirFD, name, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	root, err := os.OpenRoot(safepath.ProcPath(dirFD))
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(name)
}

// isNameOfOpenFile reports whether a name in the directory dirFD is the open file. It does not follow links.
func isNameOfOpenFile(dirFD int, name string, fd int) bool {
	named, err := safepath.StatAt(dirFD, name)
	var openStat unix.Stat_t
	return err == nil && unix.Fstat(fd, &openStat) == nil && named.Dev == openStat.Dev && named.Ino == openStat.Ino
}
