package launch

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// process is a hold on a process that is not our child. A pidfd never means
// another process, whatever becomes of the pid.
type process struct {
	keeper.Process
	pidfd *os.File
	done  chan struct{} // closed by watch
}

var errProcessGone = errors.New("the process has gone")

// openProcess takes hold of a process, if it is still there; a zombie counts.
func openProcess(kp keeper.Process) (*process, error) {
	fd, err := unix.PidfdOpen(kp.PID, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL) && !kp.Alive():
		// EINVAL is what older kernels say for the number of a process that has gone
		// and has left its group or session.
		return nil, errProcessGone
	case err != nil:
		return nil, fmt.Errorf("pidfd_open %d: %w", kp.PID, err)
	}
	// so that the runtime's poller waits for it, and no thread does
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("pidfd of %d: %w", kp.PID, err)
	}
	p := &process{Process: kp, pidfd: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{})}
	// asked after the pidfd is open: the answer is about the process behind it
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

// goneProcess stands for a process that has ended before it could be opened.
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
	// the only error is that there is nothing left to kill
	_ = rc.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

// killSession kills the process and what it has started in its session. It is
// for a launch that failed: there is no task yet that could be hit.
func (p *process) killSession() {
	p.kill()
	all, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	// The number of a session is not given away while the session has a member,
	// so those who have it are the plugin's, although their leader may be gone.
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == p.PID || !inSession(pid, p.PID) {
			continue
		}
		member, err := keeper.ProcessOf(pid)
		if err == nil && member.StartTime >= p.StartTime && inSession(pid, p.PID) {
			_ = member.Signal(unix.SIGKILL) // or it is gone
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
