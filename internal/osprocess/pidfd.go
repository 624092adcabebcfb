//go:build linux

package osprocess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pidfd refers to one process, and never to a later process with the same pid. The poller of Go's runtime
// watches the descriptor, so that Wait blocks no thread.
type Pidfd struct {
	file *os.File
}

// NewPidfd takes ownership of a pidfd that the kernel has returned.
func NewPidfd(fd int) (*Pidfd, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("prepare pidfd: %w", err)
	}
	return &Pidfd{file: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// OpenPidfd returns a pidfd of the process that has this pid now. The error is
// os.ErrProcessDone if there is none. Close must be called.
func OpenPidfd(pid int) (*Pidfd, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return NewPidfd(fd)
}

// Open returns a pidfd of the process, which may be a zombie. The error is
// os.ErrProcessDone if the process no longer exists. Any other error can mean that the
// kernel has no pidfds, or that a seccomp filter denies them. Close must be called.
func (i ID) Open() (*Pidfd, error) {
	f, err := OpenPidfd(i.PID)
	if errors.Is(err, unix.EINVAL) && errors.Is(i.checkAlive(), os.ErrProcessDone) {
		// Older kernels return EINVAL for a pid whose process has ended while its process
		// group or session still exists.
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, err
	}
	// The pidfd was opened before the start time is read: if the start time matches, the
	// pidfd does not belong to a later process with the same pid.
	if err := i.checkAlive(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkAlive returns os.ErrProcessDone if the process no longer exists.
func (i ID) checkAlive() error {
	now, err := LookupID(i.PID)
	if err == nil && now != i {
		err = os.ErrProcessDone
	}
	return err
}

// Close closes the descriptor. A concurrent Wait returns an error.
func (p *Pidfd) Close() { p.file.Close() }

// Dup returns a duplicate of the pidfd, which the caller closes.
func (p *Pidfd) Dup() (*os.File, error) {
	dup := -1
	err := p.withFD(func(fd int) (err error) {
		dup, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("duplicate pidfd: %w", err)
	}
	return os.NewFile(uintptr(dup), "pidfd"), nil
}

// Signal sends a signal to the process. The error is os.ErrProcessDone if the process no
// longer exists.
func (p *Pidfd) Signal(sig unix.Signal) error { return p.sendSignal(sig, 0) }

// SignalGroup sends a signal to the process group that the process leads, also after the
// end of the process (kernel 6.9). The error is os.ErrProcessDone if the group has no
// processes.
func (p *Pidfd) SignalGroup(sig unix.Signal) error {
	return p.sendSignal(sig, unix.PIDFD_SIGNAL_PROCESS_GROUP)
}

func (p *Pidfd) sendSignal(sig unix.Signal, flags int) error {
	err := p.withFD(func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, flags) })
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// Wait blocks until the process has ended. A zombie has ended. Only one goroutine at a time
// may call Wait or WaitChild.
func (p *Pidfd) Wait(ctx context.Context) error {
	return p.pollUntil(ctx, func(fd int) bool { return pidfdHasExited(fd, 0) })
}

// WaitChild blocks like Wait, for a child of this process, and returns its exit status. The
// child stays a zombie.
func (p *Pidfd) WaitChild(ctx context.Context) (status ExitStatus, err error) {
	var waitErr error
	err = p.pollUntil(ctx, func(fd int) bool {
		var pid int
		pid, status, waitErr = Waitid(unix.P_PIDFD, fd, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG)
		// WNOHANG is set because waitid(2) returns EAGAIN for a non-blocking pidfd while
		// the process runs.
		if waitErr == unix.EAGAIN {
			waitErr = nil
		}
		return pid != 0 || waitErr != nil
	})
	if err == nil {
		err = waitErr
	}
	return status, err
}

// pollUntil calls done immediately, and each time the pidfd becomes readable, until done
// returns true.
func (p *Pidfd) pollUntil(ctx context.Context, done func(fd int) bool) error {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("watch process: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { p.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool { return done(int(fd)) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// pidfdHasExited reports whether the process of the pidfd has ended, or ends within the timeout.
func pidfdHasExited(fd int, timeout time.Duration) bool {
	for end := time.Now().Add(timeout); ; {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(0, time.Until(end).Milliseconds())))
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// exitStatus returns the status of a process that was reaped (kernel 6.15).
func (p *Pidfd) exitStatus() (ExitStatus, bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := p.withFD(func(fd int) error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.PIDFD_GET_INFO, uintptr(unsafe.Pointer(&info)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return ExitStatus{}, false
	}
	return ParseWaitStatus(int(info.Exit_code)), true
}

// withFD calls use with the pidfd's descriptor.
func (p *Pidfd) withFD(use func(fd int) error) error {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var useErr error
	if err := conn.Control(func(fd uintptr) { useErr = use(int(fd)) }); err != nil {
		return err
	}
	return useErr
}
