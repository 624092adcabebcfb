package collectorwire

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// ErrForeignFile means that a task has replaced a FIFO or a log file by another file.
var ErrForeignFile = errors.New("not a FIFO of ours")

// ListFileIndexes lists a stream's file numbers, in ascending order. It includes all file types, because the log
// collector cannot make a file with a name in use.
func ListFileIndexes(logDirFD int, filePrefix string) ([]int64, error) {
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

// OpenLogFile opens an existing log file. It returns ErrForeignFile if a task has replaced the file by a
// link, a device, or a hard link to another file.
func OpenLogFile(logDirFD int, name string, flags int) (fd int, size int64, err error) {
	// The check precedes the open, because opening some devices has side effects.
	st, err := safepath.StatAt(logDirFD, name)
	if err != nil {
		return -1, 0, err
	}
	if !IsLogFile(&st) {
		return -1, 0, ErrForeignFile
	}
	fd, err = safepath.OpenAt(logDirFD, name, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, 0, err
	}
	if err := unix.Fstat(fd, &st); err != nil || !IsLogFile(&st) {
		unix.Close(fd)
		return -1, 0, errors.Join(err, ErrForeignFile)
	}
	return fd, st.Size, nil
}

// IsLogFile reports whether a file can be a log file: a regular file of the agent's user without a second hard
// link.
func IsLogFile(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && int(st.Uid) == os.Geteuid() && st.Nlink <= 1
}
