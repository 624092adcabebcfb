package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Exec runs a command in the container.
func (t *task) Exec(ctx context.Context, e driver.Exec) (driver.ExitResult, error) {
	fail := func(err error) (driver.ExitResult, error) {
		return driver.ExitResult{}, markRecoverableUnlessRefused(fmt.Errorf("run a command in the container %s: %w", t.state.ContainerName, err))
	}
	created, err := t.engine.client().ExecCreate(ctx, t.state.ContainerID, client.ExecCreateOptions{
		Cmd: e.Command, TTY: e.TTY, AttachStdin: e.Stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return fail(err)
	}
	attached, err := t.engine.client().ExecAttach(ctx, created.ID, client.ExecAttachOptions{TTY: e.TTY})
	if err != nil {
		return fail(err)
	}
	defer attached.Close()
	stop := context.AfterFunc(ctx, func() {
		t.killLocalExec(created.ID)
		attached.Close()
	})
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if e.Stdin != nil {
		go t.copyAndCloseExecInput(attached.HijackedResponse, e)
	}
	if e.TTY && e.Resize != nil {
		go t.resizeExecUntilDone(ctx, created.ID, e.Resize)
	}
	stdout, stderr := e.Stdout, e.Stderr
	if stdout == nil {
		stdout = io.Discard
	}
	if stderr == nil {
		stderr = io.Discard
	}
	if e.TTY {
		_, err = io.Copy(stdout, attached.Reader)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, attached.Reader)
	}
	if ctx.Err() != nil {
		return driver.ExitResult{}, ctx.Err()
	}
	if err != nil {
		t.killLocalExec(created.ID)
		return fail(err)
	}
	code, err := t.waitForExecExitCode(ctx, created.ID)
	if err != nil {
		return fail(err)
	}
	return driver.ExitResult{ExitCode: code}, nil
}

// copyAndCloseExecInput copies the input to a command, and then closes the command's input.
func (t *task) copyAndCloseExecInput(attached client.HijackedResponse, e driver.Exec) {
	_, copyErr := io.Copy(attached.Conn, e.Stdin) // Copy fails when the command no longer reads
	var endErr error
	if e.TTY {
		_, endErr = attached.Conn.Write([]byte{4}) // EOT ends the input; if the connection were closed instead, the engine would drop output
	} else {
		endErr = attached.CloseWrite()
	}
	if err := errors.Join(copyErr, endErr); err != nil && !errors.Is(err, net.ErrClosed) {
		t.start.Logger().Debug("the input of a command was not sent to its end", "container", t.state.ContainerName, "error", err)
	}
}

// waitForExecExitCode returns the exit code of a command whose output has ended. The engine can
// record the exit somewhat later than the end of the output.
func (t *task) waitForExecExitCode(ctx context.Context, execID string) (int, error) {
	for delay := time.Millisecond; ; delay = min(2*delay, 100*time.Millisecond) {
		inspected, err := t.engine.client().ExecInspect(ctx, execID, client.ExecInspectOptions{})
		if err != nil {
			return 0, err
		}
		if !inspected.Running {
			return inspected.ExitCode, nil
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// resizeExecUntilDone sets the size of the terminal until ctx ends. The terminal exists some time
// after the command was attached, so the first size is sent again until it is accepted.
func (t *task) resizeExecUntilDone(ctx context.Context, execID string, sizes <-chan driver.TerminalSize) {
	var size driver.TerminalSize
	retry := make(<-chan time.Time)
	for {
		select {
		case next, ok := <-sizes:
			if !ok {
				sizes = nil
				continue
			}
			size = next
		case <-retry:
		case <-ctx.Done():
			return
		}
		retry = nil
		if _, err := t.engine.client().ExecResize(ctx, execID, client.ExecResizeOptions{Height: uint(size.Height), Width: uint(size.Width)}); err != nil {
			retry = time.After(20 * time.Millisecond)
		}
	}
}

// killLocalExec kills a command. The engine has no call for that, so the process is killed by its pid,
// which requires an engine on this machine and a plugin process with the privilege to kill the
// process.
func (t *task) killLocalExec(execID string) {
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	inspected, err := t.engine.client().ExecInspect(ctx, execID, client.ExecInspectOptions{})
	for err == nil && inspected.PID == 0 { // the engine can report no pid for some time after the start of the command
		time.Sleep(20 * time.Millisecond)
		inspected, err = t.engine.client().ExecInspect(ctx, execID, client.ExecInspectOptions{})
	}
	if err != nil || !inspected.Running || inspected.PID <= 1 {
		return
	}
	fd, err := unix.PidfdOpen(inspected.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	// The process is killed only if it is in the container: an engine on another machine reports a
	// pid of that machine.
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", inspected.PID))
	if err != nil || !strings.Contains(string(cgroups), t.state.ContainerID) {
		return
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		t.start.Logger().Warn("a cancelled command continues in the container", "container", t.state.ContainerName, "error", err)
	}
}
