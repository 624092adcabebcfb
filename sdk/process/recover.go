package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// ErrExitStatusUnknown means that a process has ended and neither the host nor the kernel can report its
// exit status. The errors of Recover, Adopt and Wait wrap it. Under Nomad it is the usual result of a
// Recover for a process that ended while no plugin process ran; under a nomad-lite agent the exit status is known. A driver
// whose tasks store their exit status tests for it with errors.Is, and can then return a task whose Wait returns
// the stored status.
var ErrExitStatusUnknown = errors.New("exit status unknown")

// Recover finds a process that another plugin process has started, by its State.
// A process that has ended in the meantime is recovered if its exit status is
// known; otherwise Recover kills the processes that it has left running, and
// returns an error that wraps [ErrExitStatusUnknown]. After an error that is marked by [sdk.Recoverable], the
// process and its children may still be running.
func Recover(ctx context.Context, start *sdk.StartRequest, s State) (*Process, error) {
	return RecoverWithLauncher(ctx, start, s, nil)
}

// RecoverWithLauncher is [Recover] for a task that was started with a Command.Launcher. The
// launcher starts the commands that run in the task later.
func RecoverWithLauncher(ctx context.Context, start *sdk.StartRequest, s State, l Launcher) (*Process, error) {
	p, err := RecoverWithoutExec(ctx, start, s)
	if err != nil {
		return nil, err
	}
	p.launcher = l
	return &Process{p}, nil
}

// RecoverWithoutExec is [Recover] for a task that runs no other commands.
func RecoverWithoutExec(ctx context.Context, start *sdk.StartRequest, s State) (*ProcessWithoutExec, error) {
	p, err := findProcessAndBecomeOwner(ctx, start, s)
	if p != nil && errors.Is(err, ErrExitStatusUnknown) {
		if destroyErr := p.Destroy(context.WithoutCancel(ctx)); destroyErr != nil {
			return nil, sdk.Recoverable(errors.Join(err, destroyErr))
		}
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// findProcessAndBecomeOwner returns the process with the given state, and makes it the owner of its task. With
// ErrExitStatusUnknown it also returns the process, which has ended, because processes that it has started may still be
// running; after a reboot of the machine it returns nil.
func findProcessAndBecomeOwner(ctx context.Context, start *sdk.StartRequest, s State) (*ProcessWithoutExec, error) {
	if s.PID <= 1 {
		return nil, fmt.Errorf("recover task %q: its state names no process", start.Name)
	}
	p := &ProcessWithoutExec{
		processID:     osprocess.ID{PID: s.PID, StartTime: s.StartTime},
		startRequest:  start,
		workDir:       s.Dir,
		rlimits:       s.Rlimits,
		logger:        start.Logger().With("pid", s.PID),
		waitSemaphore: make(chan struct{}, 1),
	}
	boot, err := osprocess.BootID()
	if err != nil {
		return nil, sdk.Recoverable(fmt.Errorf("recover process %d: %w", s.PID, err))
	}
	if s.BootID != boot {
		return nil, fmt.Errorf("process %d: %w: the machine was started again since", s.PID, ErrExitStatusUnknown)
	}
	p.credential, p.userLookupErr = credentialIfDifferent(start.User) // only commands of Exec need the credential
	if s.Cgroup != "" {
		if p.cgroup = openRecoveredCgroup(p, s.Cgroup); p.cgroup != nil {
			p.cgroup.initialOOMKills = s.OOMKills
		}
	}
	earlier, _ := p.acquireTaskOwnership() // an error means that another process is running as the owner of the task
	if p.pidfd, err = openPidfd(p.processID); err == nil {
		p.isChild = isChild(p.processID.PID)
		return p, nil
	}
	if !errors.Is(err, os.ErrProcessDone) {
		p.releaseTaskOwnership(earlier) // a repeated Recover must be able to become the owner
		return nil, sdk.Recoverable(fmt.Errorf("recover process %d: %w", s.PID, err))
	}
	status, err := askKeeperForExitStatus(ctx, p.processID)
	if err != nil && ctx.Err() != nil {
		return nil, sdk.Recoverable(fmt.Errorf("recover process %d: %w", s.PID, context.Cause(ctx))) // the next host calls again
	}
	if osprocess.IsResourceExhausted(err) {
		return nil, sdk.Recoverable(fmt.Errorf("recover process %d, which has ended: ask the keeper for its exit status: %w", s.PID, err))
	}
	if err != nil {
		return p, fmt.Errorf("process %d: %w: it ended while no plugin process waited for it", s.PID, ErrExitStatusUnknown)
	}
	p.recordExit(status, nil)
	return p, nil
}

// openPidfd opens a pidfd of a process. It returns os.ErrProcessDone if the process has ended and was reaped, and nil if
// the kernel has no pidfds.
func openPidfd(id osprocess.ID) (*osprocess.Pidfd, error) {
	fd, err := id.Open()
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		if !id.Alive() {
			return nil, os.ErrProcessDone
		}
		return nil, nil
	}
	return fd, err
}

func isChild(pid int) bool {
	_, _, err := osprocess.Waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG)
	return err == nil
}

// waitNonChild waits for a process that an earlier plugin process has started, and returns its exit status. Its parent
// is now the keeper, or init.
func (p *ProcessWithoutExec) waitNonChild(ctx context.Context) (osprocess.ExitStatus, error) {
	if err := p.waitNonChildExit(ctx); err != nil {
		return osprocess.ExitStatus{}, fmt.Errorf("wait for process %d: %w", p.processID.PID, err)
	}
	if status, err := askKeeperForExitStatus(ctx, p.processID); err == nil {
		return status, nil
	}
	// Without a keeper, the kernel can report the exit status: of a zombie to a privileged process, and of a
	// reaped process through a pidfd (Linux 6.15). An unprivileged process waits until the parent has reaped the
	// zombie.
	deadline := time.Now().Add(2 * time.Second)
	for {
		if status, ok := p.processID.ExitStatus(p.pidfd); ok {
			return status, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return osprocess.ExitStatus{}, ctx.Err()
		}
		if _, err := osprocess.LookupID(p.processID.PID); errors.Is(err, os.ErrProcessDone) || time.Now().After(deadline) {
			if status, ok := p.processID.ExitStatus(p.pidfd); ok {
				return status, nil
			}
			return osprocess.ExitStatus{}, fmt.Errorf("process %d: %w: it ended while no plugin process waited for it", p.processID.PID, ErrExitStatusUnknown)
		}
	}
}

// waitNonChildExit blocks until a process that is not a child of this process has ended.
func (p *ProcessWithoutExec) waitNonChildExit(ctx context.Context) error {
	if p.pidfd != nil {
		return p.pidfd.Wait(ctx)
	}
	for p.processID.Alive() { // polling, on kernels without pidfds
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// keeperClient is this process's connection to the keeper, made on first use.
// Under Nomad there is no keeper.
var keeperClient struct {
	mu     sync.Mutex
	client *keeper.Client
}

func askKeeperForExitStatus(ctx context.Context, id osprocess.ID) (osprocess.ExitStatus, error) {
	return askKeeper(ctx, func(ctx context.Context, c *keeper.Client) (osprocess.ExitStatus, error) { return c.Wait(ctx, id) })
}

func askKeeperForEndedSessionLeaders(ctx context.Context, oldestStartTime uint64) (ended []keeper.EndedProcess, completeForChildrenOf int, err error) {
	ended, err = askKeeper(ctx, func(ctx context.Context, c *keeper.Client) (ended []keeper.EndedProcess, err error) {
		ended, completeForChildrenOf, err = c.EndedSessionLeaders(ctx, oldestStartTime)
		return ended, err
	})
	return ended, completeForChildrenOf, err
}

// askKeeper calls request with the client. It returns keeper.ErrExitStatusUnknown if there is no keeper.
func askKeeper[T any](ctx context.Context, request func(context.Context, *keeper.Client) (T, error)) (T, error) {
	var none T
	socket := os.Getenv(keeper.EnvSocket)
	if socket == "" {
		return none, keeper.ErrExitStatusUnknown
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	keeperClient.mu.Lock()
	if keeperClient.client == nil {
		client, err := keeper.ConnectFromPlugin(ctx, socket)
		if err != nil {
			keeperClient.mu.Unlock()
			return none, err
		}
		keeperClient.client = client
	}
	client := keeperClient.client
	keeperClient.mu.Unlock()
	return request(ctx, client)
}
