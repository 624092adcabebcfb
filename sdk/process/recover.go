package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// errUnknown means that a process has ended and no living process or kernel
// interface can report its exit status.
var errUnknown = errors.New("exit status unknown: the process ended while nobody watched it")

// Recover finds a process that another plugin process has started, by its State.
// A process that has ended in the meantime is recovered if its exit status is
// known; otherwise Recover returns an error, and kills the processes that it
// left running. An error that is marked by [sdk.Recoverable] does not mean that
// the process has ended; processes may still be running.
func Recover(ctx context.Context, start *sdk.StartRequest, s State) (*Process, error) {
	if s.PID <= 1 {
		return nil, fmt.Errorf("recover task %q: its state names no process", start.Name)
	}
	p := &Process{
		id:     keeper.Process{PID: s.PID, StartTime: s.StartTime},
		start:  start,
		dir:    s.Dir,
		logger: start.Logger().With("pid", s.PID),
	}
	boot, err := keeper.BootID()
	if err != nil {
		return nil, sdk.Recoverable(fmt.Errorf("recover process %d: %w", s.PID, err))
	}
	if s.BootID != boot {
		return nil, fmt.Errorf("process %d has ended: the machine was started again since", s.PID)
	}
	p.cred, p.userErr = credentialIfNeeded(start.User) // needed for commands only
	if s.Cgroup != "" {
		if p.cgroup = adoptCgroup(p, s.Cgroup); p.cgroup != nil {
			p.cgroup.oomBefore = s.OOMKills
		}
	}
	earlier, _ := p.acquire() // fails if this plugin process has a later start of the task, which then keeps the cgroup
	if p.fd, err = openPidfd(p.id); err == nil {
		p.child = isChild(p.id.PID)
		return p, nil
	}
	if !errors.Is(err, os.ErrProcessDone) {
		p.releaseOwner(earlier) // the next Recover becomes the owner
		return nil, sdk.Recoverable(fmt.Errorf("recover process %d: %w", s.PID, err))
	}
	status, err := statusFromKeeper(ctx, p.id)
	if err != nil && ctx.Err() != nil {
		return nil, sdk.Recoverable(fmt.Errorf("recover process %d: %w", s.PID, context.Cause(ctx))) // the next host calls again
	}
	if keeper.Exhausted(err) {
		return nil, sdk.Recoverable(fmt.Errorf("recover process %d, which has ended: ask the keeper for its exit status: %w", s.PID, err))
	}
	if err != nil {
		err = fmt.Errorf("process %d: %w", s.PID, errUnknown)
		if left := p.Destroy(context.WithoutCancel(ctx)); left != nil {
			return nil, sdk.Recoverable(errors.Join(err, left))
		}
		return nil, err
	}
	p.end(status, nil)
	return p, nil
}

// openPidfd opens a pidfd of a process that is not a child, or returns
// os.ErrProcessDone.
func openPidfd(id keeper.Process) (*pidfd, error) {
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, os.ErrProcessDone
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL):
		// An older kernel returns EINVAL, too: for the number of a process that
		// has exited and has left its group or session, or for the flag.
		if !id.Alive() {
			return nil, os.ErrProcessDone
		}
		return nil, nil
	case err != nil:
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	// The pidfd holds the process that has this number now, which may be another
	// process.
	now, err := keeper.ProcessOf(id.PID)
	if err == nil && now != id {
		err = os.ErrProcessDone
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return newPidfd(fd)
}

func isChild(pid int) bool {
	_, _, err := waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG)
	return err == nil
}

// waitOrphan waits for a process whose parent was another plugin process. Its
// parent is now the keeper, or init.
func (p *Process) waitOrphan(ctx context.Context) (keeper.Status, error) {
	if err := p.awaitOrphan(ctx); err != nil {
		return keeper.Status{}, fmt.Errorf("wait for process %d: %w", p.id.PID, err)
	}
	if status, err := statusFromKeeper(ctx, p.id); err == nil {
		return status, nil
	}
	// The kernel shows the status of a zombie only to permitted readers, and the
	// status of a process that was reaped only through a pidfd (6.15). In
	// between, waitOrphan must wait until the parent reaps it.
	deadline := time.Now().Add(2 * time.Second)
	for {
		if status, ok := p.statusFromKernel(); ok {
			return status, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return keeper.Status{}, ctx.Err()
		}
		if _, err := keeper.ProcessOf(p.id.PID); errors.Is(err, os.ErrProcessDone) || time.Now().After(deadline) {
			if status, ok := p.statusFromKernel(); ok {
				return status, nil
			}
			return keeper.Status{}, fmt.Errorf("process %d: %w", p.id.PID, errUnknown)
		}
	}
}

// awaitOrphan returns when the process has ended.
func (p *Process) awaitOrphan(ctx context.Context) error {
	if p.fd != nil {
		return p.fd.poll(ctx, readable)
	}
	for p.id.Alive() { // without pidfds, polling is the only way
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// statusFromKernel reads the exit status of a process that has ended.
func (p *Process) statusFromKernel() (keeper.Status, bool) {
	if p.fd != nil {
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		err := p.fd.control(func(fd int) error {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.PIDFD_GET_INFO, uintptr(unsafe.Pointer(&info)))
			if errno != 0 {
				return errno
			}
			return nil
		})
		if err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
			return decode(int(info.Exit_code)), true
		}
	}
	if st, err := readStat(p.id.PID); err == nil && st.start == p.id.StartTime && st.state == 'Z' && canReadStat(p.id.PID) {
		return decode(st.exit), true
	}
	return keeper.Status{}, false
}

// canReadStat reports whether the kernel shows the plugin the exit code of a
// zombie: to other users it shows 0, which would read as success.
func canReadStat(pid int) bool {
	if os.Geteuid() == 0 {
		return true
	}
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &st)
	return err == nil && int(st.Uid) == os.Geteuid()
}

func decode(word int) keeper.Status {
	w := unix.WaitStatus(word)
	if w.Signaled() {
		return keeper.Status{Signal: int(w.Signal())}
	}
	return keeper.Status{ExitCode: w.ExitStatus()}
}

// keeperClient is this process's connection to the keeper, made on first use.
// Under Nomad there is no keeper.
var keeperClient struct {
	mu     sync.Mutex
	client *keeper.Client
}

func statusFromKeeper(ctx context.Context, id keeper.Process) (keeper.Status, error) {
	socket := os.Getenv(keeper.EnvSocket)
	if socket == "" {
		return keeper.Status{}, keeper.ErrUnknown
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	keeperClient.mu.Lock()
	if keeperClient.client == nil {
		client, err := keeper.Attach(ctx, socket)
		if err != nil {
			keeperClient.mu.Unlock()
			return keeper.Status{}, err
		}
		keeperClient.client = client
	}
	client := keeperClient.client
	keeperClient.mu.Unlock()
	return client.Wait(ctx, id)
}
