//go:build linux

package groupexec

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Run runs a program as the leader of a new process group, and waits for its exit. The caller creates cmd with
// [exec.CommandContext]: when the context ends, Run kills the process group. When the calling process dies, the
// kernel kills the program, but not the processes that the program has started. Run waits at most a second for a
// process that the program has left running and that keeps the output open; that is no error.
func Run(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	runtime.LockOSThread() // the kernel sends Pdeathsig when the thread exits that has started the process
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); !errors.Is(err, exec.ErrWaitDelay) {
		return err
	}
	return nil
}
