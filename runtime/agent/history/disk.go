package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// A task's files are measured up to a maximum file and directory count, and to a directory depth. The second limits the agent's
// open files.
const (
	maxMeasuredFiles = 20000
	maxMeasuredDepth = 50
)

var errTooManyFiles = fmt.Errorf("more than %d files, or than %d directories in one another", maxMeasuredFiles, maxMeasuredDepth)

// diskUsage is the files' space on the disk, in bytes.
type diskUsage struct {
	task   uint64 // files in the task's directory, and its output
	shared uint64 // files shared by the allocation's tasks, without their output
}

// measureAllocDir measures a task's files. It does not follow links, nor does it enter mounts, such as volumes and an isolated
// task's host directories. The error is errTooManyFiles if it gave up.
func measureAllocDir(dir *allocdir.Dir, task string) (diskUsage, error) {
	paths := dir.TaskPaths(task)
	m := &diskMeter{left: maxMeasuredFiles}
	var usage diskUsage
	var err error
	if usage.task, err = m.measure(paths.Dir, nil); err != nil {
		return usage, err
	}
	isOutput := func(name string) bool {
		return strings.HasPrefix(name, task+".stdout.") || strings.HasPrefix(name, task+".stderr.")
	}
	output, err := m.measure(paths.LogDir, isOutput)
	if err != nil {
		return usage, err
	}
	usage.task += output
	m.skipped = filepath.Base(paths.LogDir)
	usage.shared, err = m.measure(paths.SharedAllocDir, nil)
	return usage, err
}

// diskMeter adds up the files' space.
type diskMeter struct {
	left    int    // files and directories left until it gives up
	skipped string // name of the unmeasured directory in the first one
}

// measure returns the space used by the files below a directory, which may not exist. If accepts is not nil, only files in the
// directory itself with an accepted name count.
func (m *diskMeter) measure(path string, accepts func(name string) bool) (uint64, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return m.measureOpenDir(fd, st.Dev, 1, accepts)
}

// measureOpenDir closes fd. All names are resolved relative to fd, so a task that exchanges a directory for a link leads it
// nowhere. It reads the directory in parts, because a directory can have millions of files, and without an os.File, which costs
// more than most tasks' directory.
func (m *diskMeter) measureOpenDir(fd int, device uint64, depth int, accepts func(string) bool) (total uint64, err error) {
	defer unix.Close(fd)
	var buf [4096]byte
	var names []string
	for {
		n, err := unix.Getdents(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return total, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if m.left--; m.left < 0 {
				return total, errTooManyFiles
			}
			var st unix.Stat_t
			if accepts != nil && !accepts(name) || unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != device {
				continue // another task's output, removed in the meantime, or on another device
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				total += uint64(st.Blocks) * 512
				continue
			}
			if accepts != nil || depth == 1 && name == m.skipped {
				continue
			}
			if depth == maxMeasuredDepth {
				return total, errTooManyFiles
			}
			// A bind mount has the device of the file system that it shows.
			child, err := unix.Openat2(fd, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV})
			if err != nil {
				continue
			}
			size, err := m.measureOpenDir(child, device, depth+1, nil)
			if total += size; err != nil {
				return total, err
			}
		}
	}
}
