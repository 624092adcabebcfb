package process

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// toExitResult returns the exit status as the host expects it: a process that was killed by a signal also has the
// exit code that a shell reports, 128 plus the signal number.
func toExitResult(status osprocess.ExitStatus, err error) driver.ExitResult {
	if err != nil {
		return driver.ExitResult{Err: err}
	}
	if status.Signal != 0 {
		return driver.ExitResult{ExitCode: 128 + status.Signal, Signal: status.Signal}
	}
	return driver.ExitResult{ExitCode: status.ExitCode}
}

func (p *ProcessWithoutExec) waitChild(ctx context.Context) (status osprocess.ExitStatus, err error) {
	if p.pidfd == nil {
		return p.waitChildWithoutPidfd(ctx)
	}
	status, err = p.pidfd.WaitChild(ctx)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("wait for process %d: %w", p.processID.PID, err)
	}
	return status, err
}

// waitChildWithoutPidfd waits for a child on kernels without pidfds, with a blocked thread
// per call.
func (p *ProcessWithoutExec) waitChildWithoutPidfd(ctx context.Context) (osprocess.ExitStatus, error) {
	type waitResult struct {
		status osprocess.ExitStatus
		err    error
	}
	c := make(chan waitResult, 1)
	go func() { // the goroutine returns when the child has exited; WNOWAIT does not reap the child
		_, status, err := osprocess.Waitid(unix.P_PID, p.processID.PID, unix.WEXITED|unix.WNOWAIT)
		c <- waitResult{status, err}
	}()
	select {
	case a := <-c:
		return a.status, a.err
	case <-ctx.Done():
		return osprocess.ExitStatus{}, ctx.Err()
	}
}

// reapEndedChild reaps a child that has ended, which drops its exit status.
func (p *ProcessWithoutExec) reapEndedChild() error {
	pid, _, err := osprocess.Waitid(unix.P_PID, p.processID.PID, unix.WEXITED|unix.WNOHANG)
	if err == nil && pid == 0 {
		err = errors.New("it has not ended")
	}
	if err != nil {
		return fmt.Errorf("reap process %d: %w", p.processID.PID, err)
	}
	return nil
}
