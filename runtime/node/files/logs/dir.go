package logs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// openLogDirFD opens a log directory. The last two elements of the path are opened without following links, because
// tasks can replace them.
func openLogDirFD(path string) (int, error) {
	alloc, logs, err := openAllocAndLogDirs(path)
	if err == nil {
		unix.Close(alloc)
	}
	return logs, err
}

// openAllocAndLogDirs opens a log directory, and the directory of its allocation, which has the FIFOs and to which tasks
// cannot write.
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

// fifoDir returns the directory of an allocation's FIFOs for its log directory.
func fifoDir(logDir string) string { return filepath.Dir(filepath.Dir(filepath.Clean(logDir))) }

// UncollectedOutputPaths returns the paths that a driver receives if it reads the output of the task by itself, as under
// Nomad. No files exist there; such a driver needs their directory.
func UncollectedOutputPaths(task Task) (stdout, stderr string) {
	path := func(s Stream) string {
		return filepath.Join(task.LogDir, streamKey{task.AllocID, task.Name, s}.fifoName())
	}
	return path(Stdout), path(Stderr)
}

// FIFOPaths returns the paths of the FIFOs of a task whose output is collected. The FIFOs need not exist.
func FIFOPaths(task Task) (stdout, stderr string) {
	return task.fifoPath(Stdout), task.fifoPath(Stderr)
}

func (t Task) fifoPath(s Stream) string {
	return filepath.Join(fifoDir(t.LogDir), streamKey{t.AllocID, t.Name, s}.fifoName())
}

// existsAt reports whether a name exists in the directory dirFD.
func existsAt(dirFD int, name string) bool {
	_, err := safepath.StatAt(dirFD, name)
	return err == nil
}

// openOrMakeFIFOReader opens the read end of a FIFO in the directory dirFD, and makes the FIFO if it does not exist. It
// replaces a file that the agent has not made.
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
				return fd, nil
			}
			unix.Close(fd)
			if !errors.Is(err, errForeignFile) {
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

var errForeignFile = errors.New("not a FIFO of ours")

// checkOwnFIFO returns errForeignFile unless the file is a FIFO of the agent's user that no other user can open.
func checkOwnFIFO(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return errForeignFile
	}
	return nil
}

// enableFIFOHangup opens and closes a write end. Without that, poll does not report a hang-up for a FIFO that never had
// a writer, and the stop of a task that was never started would wait until its timeout.
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

// listFileIndexes lists the numbers of a stream's files, in ascending order. It includes files of any type, because
// rotateFile cannot make a file whose name is in use.
func listFileIndexes(logDirFD int, filePrefix string) ([]int64, error) {
	fd, err := safepath.OpenAt(logDirFD, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("list log directory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "logs")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list log directory: %w", err)
	}
	var all []int64
	for _, name := range names {
		if n, ok := logfile.Index(name, filePrefix); ok {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all, nil
}

// openLogFile opens an existing log file. It returns errForeignFile if a task has replaced the file by a
// link, a device, or a hard link to another file.
func openLogFile(logDirFD int, name string, flags int) (fd int, size int64, err error) {
	// The check precedes the open, because the open of some devices has side effects.
	st, err := safepath.StatAt(logDirFD, name)
	if err != nil {
		return -1, 0, err
	}
	if !isLogFile(&st) {
		return -1, 0, errForeignFile
	}
	fd, err = safepath.OpenAt(logDirFD, name, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, 0, err
	}
	if err := unix.Fstat(fd, &st); err != nil || !isLogFile(&st) {
		unix.Close(fd)
		return -1, 0, errors.Join(err, errForeignFile)
	}
	return fd, st.Size, nil
}

// isLogFile reports whether a file can be a log file: a regular file of the agent's user without a second hard link.
func isLogFile(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && int(st.Uid) == os.Geteuid() && st.Nlink <= 1
}

// createLogFile makes a new log file, and fails with EEXIST if the name exists.
func createLogFile(logDirFD int, name string) (int, error) {
	fd, err := safepath.OpenAt(logDirFD, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o644)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchmod(fd, 0o644); err != nil { // the umask may have cleared bits
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
