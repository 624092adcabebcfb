package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// processHandle refers to a process that need not be a child of this process. It never refers to
// a later process with the same pid.
type processHandle struct {
	osprocess.ID
	pidfd *osprocess.Pidfd // nil if the process had exited before the pidfd could be opened
	done  chan struct{}    // closed by waitAndCloseDone when the process has exited
}

// openProcessHandle opens a process, which may be a zombie. The error is os.ErrProcessDone if the
// process no longer exists.
func openProcessHandle(id osprocess.ID) (*processHandle, error) {
	pidfd, err := id.Open()
	if err != nil {
		return nil, err
	}
	return &processHandle{ID: id, pidfd: pidfd, done: make(chan struct{})}, nil
}

// newEndedProcessHandle returns a handle of a process that ended before it could be opened.
func newEndedProcessHandle(id osprocess.ID) *processHandle {
	return &processHandle{ID: id, done: make(chan struct{})}
}

// waitAndCloseDone blocks until the process has exited, closes done and returns true. It returns false, and does not
// close done, if close is called before the process has exited.
func (h *processHandle) waitAndCloseDone() (exited bool) {
	if h.pidfd != nil && h.pidfd.Wait(context.Background()) != nil {
		return false
	}
	close(h.done)
	return true
}

func (h *processHandle) kill() {
	if h.pidfd != nil {
		_ = h.pidfd.Signal(unix.SIGKILL) // Signal fails only if the process has ended
	}
}

// errPipeHasReader means that another process has the read end of a pipe.
var errPipeHasReader = errors.New("another process reads it")

// reopenOutputPipe opens the read end of the pipe that is the stdout (fd 1) or stderr (2) of the process. It returns an
// error if that is no pipe, and errPipeHasReader if another process has the read end: the process may have redirected its
// output.
func (h *processHandle) reopenOutputPipe(fd int) (*os.File, error) {
	link := fmt.Sprintf("/proc/%d/fd/%d", h.PID, fd)
	target, err := os.Readlink(link)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(target, "pipe:[") {
		return nil, fmt.Errorf("%s is %s and no pipe", link, target)
	}
	writeEnd, err := unix.Open(link, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: link, Err: err}
	}
	poll := []unix.PollFd{{Fd: int32(writeEnd)}}
	_, err = unix.Poll(poll, 0)
	unix.Close(writeEnd)
	if err != nil {
		return nil, os.NewSyscallError("poll", err)
	}
	if poll[0].Revents&unix.POLLERR == 0 { // POLLERR: no process has the read end
		return nil, fmt.Errorf("%s: %w", target, errPipeHasReader)
	}
	f, err := os.OpenFile(link, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// Alive is checked after the open: otherwise the pipe could be that of a later process with the same pid.
	if !h.Alive() {
		f.Close()
		return nil, os.ErrProcessDone
	}
	return f, nil
}

func (h *processHandle) close() {
	if h.pidfd != nil {
		h.pidfd.Close()
	}
}
