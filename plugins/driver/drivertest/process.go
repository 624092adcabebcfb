package drivertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// taskCommand is how a task is started. An executor receives it as JSON.
type taskCommand struct {
	Args           []string
	Root, Dir      string // Root is empty without a root directory of the task's own
	UID            uint32 // 0 means the user of the plugin
	Env            map[string]string
	Stdout, Stderr string // opened for writing; neither is created
	Cgroups        []string
}

func (c *taskCommand) command() *exec.Cmd {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir = c.Dir
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Chroot: c.Root}
	if c.UID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.UID, Gid: c.UID}
	}
	return cmd
}

// start starts the task. The caller waits for the command.
func (c *taskCommand) start() (*exec.Cmd, error) {
	stdout, err := os.OpenFile(c.Stdout, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	stderr, err := os.OpenFile(c.Stderr, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	cmd := c.command()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for _, group := range c.Cgroups {
		// Without the file, the task stays in the cgroup of the plugin.
		_ = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0)
	}
	return cmd, nil
}

// ProcessResult is how the process of a task has ended. Its name is exported for package rpc.
type ProcessResult struct {
	ExitCode, Signal int
	Unknown          bool // the process was no child of this process
}

func resultOf(state *os.ProcessState) ProcessResult {
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return ProcessResult{ExitCode: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return ProcessResult{ExitCode: status.ExitStatus()}
}

// runToEnd runs a command. An error means that it could not be started.
func runToEnd(cmd *exec.Cmd) (ProcessResult, error) {
	if err := cmd.Run(); cmd.ProcessState == nil {
		return ProcessResult{}, err
	}
	return resultOf(cmd.ProcessState), nil
}

// taskProcess is a running task, as its driver sees it.
type taskProcess interface {
	// wait blocks until the process has exited. It is called once.
	wait() ProcessResult
	signal(syscall.Signal) error
	// close removes what remains of an ended process.
	close()
}

// childProcess is a task that this plugin process has started.
type childProcess struct{ cmd *exec.Cmd }

func startChild(c taskCommand) (taskProcess, int, error) {
	cmd, err := c.start()
	if err != nil {
		return nil, 0, err
	}
	return childProcess{cmd}, cmd.Process.Pid, nil
}

func (p childProcess) wait() ProcessResult {
	_ = p.cmd.Wait() // the state has the result
	return resultOf(p.cmd.ProcessState)
}

func (p childProcess) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (childProcess) close() {}

// adoptedProcess is a task that an earlier plugin process has started. Its exit code is lost.
type adoptedProcess int

func adoptProcess(pid int) (taskProcess, error) {
	p := adoptedProcess(pid)
	if !p.runs() {
		return nil, fmt.Errorf("process %d does not run", pid)
	}
	return p, nil
}

func (p adoptedProcess) runs() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func (p adoptedProcess) wait() ProcessResult {
	for p.runs() {
		time.Sleep(20 * time.Millisecond)
	}
	return ProcessResult{Unknown: true}
}

func (p adoptedProcess) signal(s syscall.Signal) error { return syscall.Kill(int(p), s) }

func (adoptedProcess) close() {}

// endlessProcess is a task that runs only in the answers of its driver.
type endlessProcess struct{}

func (endlessProcess) wait() ProcessResult { select {} }

func (endlessProcess) signal(syscall.Signal) error { return nil }

func (endlessProcess) close() {}
