package launch

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// process is a handle of a process that is not a child of this one. The pidfd never refers to
// another process, even if the kernel reuses the pid.
type process struct {
	keeper.Process
	pidfd *os.File
	done  chan struct{} // closed by watch
}

var errProcessGone = errors.New("the process has gone")

// openProcess opens a process, if it still exists; a zombie counts.
func openProcess(kp keeper.Process) (*process, error) {
	fd, err := unix.PidfdOpen(kp.PID, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL) && !kp.Alive():
		// Older kernels return EINVAL for a pid whose process has ended while its process
		// group or session still exists.
		return nil, errProcessGone
	case err != nil:
		return nil, fmt.Errorf("pidfd_open %d: %w", kp.PID, err)
	}
	// With O_NONBLOCK the runtime's poller waits for the pidfd, and no thread blocks.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("pidfd of %d: %w", kp.PID, err)
	}
	p := &process{Process: kp, pidfd: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}
	// Read after the pidfd is open, so that the start time belongs to the process behind the
	// pidfd.
	now, err := keeper.ProcessOf(kp.PID)
	if err == nil && now != kp || errors.Is(err, os.ErrProcessDone) {
		err = errProcessGone
	}
	if err != nil {
		p.pidfd.Close()
		return nil, err
	}
	return p, nil
}

// goneProcess represents a process that ended before it could be opened.
func goneProcess(kp keeper.Process) *process {
	return &process{Process: kp, done: make(chan struct{})}
}

// watch blocks until the process has ended, closes done and returns true, or
// returns false after close.
func (p *process) watch() bool {
	if p.pidfd == nil {
		close(p.done)
		return true
	}
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	err = rc.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0
	})
	if err != nil {
		return false
	}
	close(p.done)
	return true
}

func (p *process) kill() {
	if p.pidfd == nil {
		return
	}
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return
	}
	// The only error is that the process has ended.
	_ = rc.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

// killSession kills the process and the processes in its session. It is only for a failed
// launch, when no task can be running.
func (p *process) killSession() {
	p.kill()
	all, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	// The kernel does not reuse a session id while the session has a member, so all members
	// belong to the plugin, even if the session leader has ended.
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == p.PID || !inSession(pid, p.PID) {
			continue
		}
		member, err := keeper.ProcessOf(pid)
		if err == nil && member.StartTime >= p.StartTime && inSession(pid, p.PID) {
			_ = member.Signal(unix.SIGKILL) // an error means that the process has ended
		}
	}
}

func inSession(pid, session int) bool {
	sid, err := unix.Getsid(pid)
	return err == nil && sid == session
}

func (p *process) close() {
	if p.pidfd != nil {
		p.pidfd.Close()
	}
}
