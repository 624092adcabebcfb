package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// resultOf returns the exit status in the host's form: a signal also shows as
// the exit code that a shell reports for it.
func resultOf(status keeper.Status, err error) sdk.ExitResult {
	if err != nil {
		return sdk.ExitResult{Err: err}
	}
	if status.Signal != 0 {
		return sdk.ExitResult{ExitCode: 128 + status.Signal, Signal: status.Signal}
	}
	return sdk.ExitResult{ExitCode: status.ExitCode}
}

// pidfd refers to one process, and never to a later process with its number. It
// is registered with the runtime's poller, so that waiting needs no thread.
type pidfd struct {
	file *os.File
}

// newPidfd takes ownership of fd. -1 means that the kernel has no pidfds; the
// result is nil then.
func newPidfd(fd int) (*pidfd, error) {
	if fd < 0 {
		return nil, nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("prepare pidfd: %w", err)
	}
	return &pidfd{file: os.NewFile(uintptr(fd), "pidfd")}, nil
}

func (f *pidfd) close() { f.file.Close() }

// control calls use with the descriptor.
func (f *pidfd) control(use func(fd int) error) error {
	conn, err := f.file.SyscallConn()
	if err != nil {
		return err
	}
	var useErr error
	if err := conn.Control(func(fd uintptr) { useErr = use(int(fd)) }); err != nil {
		return err
	}
	return useErr
}

func (f *pidfd) signal(sig unix.Signal, flags int) error {
	err := f.control(func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, flags) })
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// poll calls ended at once, and after each change, until ended returns true.
func (f *pidfd) poll(ctx context.Context, ended func(fd int) bool) error {
	conn, err := f.file.SyscallConn()
	if err != nil {
		return err
	}
	if err := f.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("watch process: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { f.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool { return ended(int(fd)) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// readable reports whether the process of the pidfd has ended.
func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// siginfo holds the fields of siginfo_t that waitid sets.
type siginfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0))/4 - 1]int32
	pid                int32
	uid                uint32
	status             int32
	_                  [128]byte
}

const cldExited = 1

// waitid asks for the exit of a child, and leaves it a zombie: the status stays
// in the kernel, where the keeper finds it if this process dies.
func waitid(idType, id, options int) (status keeper.Status, ended bool, err error) {
	var info siginfo
	for {
		err = unix.Waitid(idType, id, (*unix.Siginfo)(unsafe.Pointer(&info)), options, nil)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil || info.pid == 0 {
		return keeper.Status{}, false, err
	}
	if info.code == cldExited {
		return keeper.Status{ExitCode: int(info.status)}, true, nil
	}
	return keeper.Status{Signal: int(info.status)}, true, nil
}

func (p *Process) waitChild(ctx context.Context) (status keeper.Status, err error) {
	if p.fd == nil {
		return p.waitChildBlocking(ctx)
	}
	var waitErr error
	err = p.fd.poll(ctx, func(fd int) bool {
		var ended bool
		status, ended, waitErr = waitid(unix.P_PIDFD, fd, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG)
		// Without WNOHANG, waitid on this non-blocking pidfd returns EAGAIN
		// while the process runs.
		if waitErr == unix.EAGAIN {
			waitErr = nil
		}
		return ended || waitErr != nil
	})
	if err == nil {
		err = waitErr
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("wait for process %d: %w", p.id.PID, err)
	}
	return status, err
}

// waitChildBlocking waits for a child on kernels without pidfds, with one thread
// per call.
func (p *Process) waitChildBlocking(ctx context.Context) (keeper.Status, error) {
	type answer struct {
		status keeper.Status
		err    error
	}
	c := make(chan answer, 1)
	go func() { // the goroutine ends with the child, which is not reaped before
		status, _, err := waitid(unix.P_PID, p.id.PID, unix.WEXITED|unix.WNOWAIT)
		c <- answer{status, err}
	}()
	select {
	case a := <-c:
		return a.status, a.err
	case <-ctx.Done():
		return keeper.Status{}, ctx.Err()
	}
}

// reap reaps a child that has ended, which drops its exit status.
func (p *Process) reap() error {
	_, ended, err := waitid(unix.P_PID, p.id.PID, unix.WEXITED|unix.WNOHANG)
	if err == nil && !ended {
		err = errors.New("it has not ended")
	}
	if err != nil {
		return fmt.Errorf("reap process %d: %w", p.id.PID, err)
	}
	return nil
}
