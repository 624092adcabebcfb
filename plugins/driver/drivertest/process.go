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

// taskCommand describes the process of a task. An executor receives it as JSON.
type taskCommand struct {
	Args                   []string
	RootDir, WorkDir       string // root directory (empty means the host's) and working directory of the process
	UID                    uint32 // user of the process; 0 means the user of the plugin
	Env                    map[string]string
	StdoutPath, StderrPath string // paths of existing files or FIFOs, which are opened for writing
	CgroupDirs             []string
}

func (c *taskCommand) newCmd() *exec.Cmd {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir = c.WorkDir
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Chroot: c.RootDir}
	if c.UID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.UID, Gid: c.UID}
	}
	return cmd
}

// start starts the process of the task. The caller must call Wait of the returned command.
func (c *taskCommand) start() (*exec.Cmd, error) {
	stdout, err := os.OpenFile(c.StdoutPath, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	stderr, err := os.OpenFile(c.StderrPath, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	cmd := c.newCmd()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for _, group := range c.CgroupDirs {
		// The write fails if the cgroup does not exist: then the task stays in the cgroup of the plugin.
		_ = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0)
	}
	return cmd, nil
}

// ProcessResult is the exit status of the process of a task. It is exported because package net/rpc requires that.
type ProcessResult struct {
	ExitCode, Signal int
	Unknown          bool // the status is unknown, because the process was no child of this process
}

func processResultOf(state *os.ProcessState) ProcessResult {
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return ProcessResult{ExitCode: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return ProcessResult{ExitCode: status.ExitStatus()}
}

// runCommandToEnd runs a command until it exits. An error means that the command could not be started.
func runCommandToEnd(cmd *exec.Cmd) (ProcessResult, error) {
	if err := cmd.Run(); cmd.ProcessState == nil {
		return ProcessResult{}, err
	}
	return processResultOf(cmd.ProcessState), nil
}

// taskProcess is the process of a task, for the driver.
type taskProcess interface {
	// wait blocks until the process has exited. It is called once.
	wait() ProcessResult
	signal(syscall.Signal) error
	// releaseExecutor releases the resources of an ended process, such as its executor.
	releaseExecutor()
}

// childProcess is a task that this plugin process has started.
type childProcess struct{ cmd *exec.Cmd }

func startChild(c taskCommand) (p taskProcess, pid int, err error) {
	cmd, err := c.start()
	if err != nil {
		return nil, 0, err
	}
	return childProcess{cmd}, cmd.Process.Pid, nil
}

func (p childProcess) wait() ProcessResult {
	_ = p.cmd.Wait() // ProcessState has the result, also after an error
	return processResultOf(p.cmd.ProcessState)
}

func (p childProcess) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (childProcess) releaseExecutor() {}

// adoptedProcess is the pid of a task that an earlier plugin process has started. The exit code of the task is unknown.
type adoptedProcess int

func adoptProcess(pid int) (taskProcess, error) {
	p := adoptedProcess(pid)
	if !p.isRunning() {
		return nil, fmt.Errorf("process %d does not run", pid)
	}
	return p, nil
}

func (p adoptedProcess) isRunning() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func (p adoptedProcess) wait() ProcessResult {
	for p.isRunning() {
		time.Sleep(20 * time.Millisecond)
	}
	return ProcessResult{Unknown: true}
}

func (p adoptedProcess) signal(s syscall.Signal) error { return syscall.Kill(int(p), s) }

func (adoptedProcess) releaseExecutor() {}

// nonexistentProcess is a task without a process. The driver reports that the task runs.
type nonexistentProcess struct{}

func (nonexistentProcess) wait() ProcessResult { select {} }

func (nonexistentProcess) signal(syscall.Signal) error { return nil }

func (nonexistentProcess) releaseExecutor() {}
