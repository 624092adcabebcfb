package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// taskStreams has the file descriptors of the standard streams of a task; -1 is not open.
type taskStreams struct {
	stdinFD, stdoutFD, stderrFD int
}

// openTaskStreams opens the output files that the host has prepared for the task. The
// standard input is a duplicate of stdin, or the null device if stdin is nil.
func openTaskStreams(ctx context.Context, start *sdk.StartRequest, stdin *os.File) (*taskStreams, error) {
	o := &taskStreams{stdinFD: -1, stdoutFD: -1, stderrFD: -1}
	var err error
	if o.stdinFD, err = duplicateStdinOrOpenNull(stdin); err != nil {
		return nil, err
	}
	if o.stdoutFD, err = openOutputFIFO(ctx, start.AllocDir, start.StdoutPath); err != nil {
		o.close()
		return nil, fmt.Errorf("open the task's standard output: %w", err)
	}
	if o.stderrFD, err = openOutputFIFO(ctx, start.AllocDir, start.StderrPath); err != nil {
		o.close()
		return nil, fmt.Errorf("open the task's standard error: %w", err)
	}
	return o, nil
}

// OpenOutput opens the output files that the host has prepared for a task, for a driver whose
// tasks are not child processes and that writes their output itself. It blocks until the host
// reads them, or ctx ends. A start should not wait for longer than 30 seconds: a host whose predecessor has died waits
// for the end of the start before it reads. The files are in non-blocking mode: a write can be ended by a
// deadline, and a write of up to 4 KiB to a FIFO is written completely or not at all. The
// caller closes the files.
func OpenOutput(ctx context.Context, start *sdk.StartRequest) (stdout, stderr *os.File, err error) {
	o, err := openTaskStreams(ctx, start, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, fd := range []int{o.stdoutFD, o.stderrFD} {
		if err := unix.SetNonblock(fd, true); err != nil {
			o.close()
			return nil, nil, err
		}
	}
	unix.Close(o.stdinFD)
	return os.NewFile(uintptr(o.stdoutFD), start.StdoutPath), os.NewFile(uintptr(o.stderrFD), start.StderrPath), nil
}

// outputReaderTimeout is how long a start waits for a reader of the task's output. A host opens the output before it calls
// StartTask. If the host and all other readers have died, the next host waits for the end of the start, and the start would
// wait for the next host.
var outputReaderTimeout = 30 * time.Second

func duplicateStdinOrOpenNull(stdin *os.File) (int, error) {
	if stdin == nil {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, sdk.Recoverable(fmt.Errorf("open %s: %w", os.DevNull, err))
		}
		return fd, nil
	}
	fd, err := unix.FcntlInt(stdin.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, sdk.Recoverable(fmt.Errorf("duplicate the standard input %s: %w", stdin.Name(), err))
	}
	return fd, nil
}

func (s *taskStreams) fds() []uintptr {
	return []uintptr{uintptr(s.stdinFD), uintptr(s.stdoutFD), uintptr(s.stderrFD)}
}

func (s *taskStreams) close() {
	for _, fd := range []int{s.stdinFD, s.stdoutFD, s.stderrFD} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// openOutputFIFO opens a FIFO or the null device for writing. A FIFO cannot be
// opened for writing until the host has opened it for reading, so openOutputFIFO
// tries again until ctx ends.
//
// Some hosts keep the FIFO in a directory that belongs to the tasks, and a task
// may have put a link or a file there. So openOutputFIFO does not leave the
// allocation's directory, and opens only a FIFO that root or this process's
// user owns.
func openOutputFIFO(ctx context.Context, allocDir, path string) (int, error) {
	if path == "" || path == os.DevNull {
		return unix.Open(os.DevNull, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	}
	for delay := 200 * time.Microsecond; ; delay = min(2*delay, 20*time.Millisecond) {
		fd, err := tryOpenOutputFIFO(allocDir, path)
		if !errors.Is(err, unix.ENXIO) {
			return fd, err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return -1, sdk.Recoverable(fmt.Errorf("%s: nobody reads it: %w", path, ctx.Err()))
		}
	}
}

func tryOpenOutputFIFO(allocDir, path string) (int, error) {
	const openFlags = unix.O_WRONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC
	rel, err := filepath.Rel(allocDir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return openFIFO(unix.AT_FDCWD, path, openFlags)
	}
	if name := filepath.Base(rel); name == rel { // as nomad-lite has it; the descriptor of the directory takes fewer system calls than a Root
		dir, err := safepath.OpenDir(allocDir)
		if err != nil {
			return -1, err
		}
		defer unix.Close(dir)
		return openFIFO(dir, name, openFlags)
	}
	root, err := os.OpenRoot(allocDir)
	if err != nil {
		return -1, err
	}
	defer root.Close()
	dir, err := root.Open(filepath.Dir(rel))
	if err != nil {
		return -1, err
	}
	defer dir.Close()
	return openFIFO(int(dir.Fd()), filepath.Base(rel), openFlags)
}

func openFIFO(dirFD int, name string, flags int) (int, error) {
	fd, err := unix.Openat(dirFD, name, flags, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return -1, fmt.Errorf("%s is a symbolic link", name)
		}
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return -1, fmt.Errorf("%s is not a FIFO", name)
	}
	if int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		unix.Close(fd)
		return -1, fmt.Errorf("%s is a FIFO of user %d, who would read the output", name, st.Uid)
	}
	// A task expects blocking mode: its writes must wait for a slow reader.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
