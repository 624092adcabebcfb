package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/lookpath"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/startmark"
)

func init() {
	if os.Getenv(EnvName) == "" {
		return
	}
	// An init function runs on the main thread. The program gets the attributes that are set for
	// this thread alone, because execve(2) ends the other threads.
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // processes of the task must not trace the stage
	for fd := ConfigFD; fd <= lastFD; fd++ {
		unix.CloseOnExec(fd)
	}
	status := os.NewFile(StatusFD, "status")
	json.NewEncoder(status).Encode(newFailure(runStage(status)))
	os.Exit(126) // as a shell exits whose program cannot be executed: it is the exit code of the task if the driver has just died
}

// jobProgramError is an error about the program that the job names, such as a missing file.
type jobProgramError struct{ error }

func (e jobProgramError) Unwrap() error { return e.error }

func newFailure(err error) Failure {
	f := Failure{Text: err.Error(), IsAboutJobProgram: errors.As(err, new(jobProgramError))}
	if !errors.As(err, &f.Errno) && f.IsAboutJobProgram && errors.Is(err, os.ErrNotExist) {
		f.Errno = unix.ENOENT
	}
	return f
}

// runStage executes the stage with the configuration of ConfigFD. It returns only after an error.
func runStage(status io.Writer) error {
	var c Config
	if err := json.NewDecoder(os.NewFile(ConfigFD, "config")).Decode(&c); err != nil {
		return fmt.Errorf("read the configuration of the stage: %w", err)
	}
	if err := c.setUpOrJoinNamespaces(); err != nil {
		return err
	}
	if c.ProbeOnly {
		status.Write([]byte(".\n"))
		os.Exit(0)
	}
	path, err := lookpath.Find("/", pathVariable(c.Program.Env), c.Program.Path)
	if err != nil {
		return jobProgramError{err}
	}
	if c.WaitForStartMark {
		if err := startmark.WaitForRelease(os.NewFile(ReleaseFD, "release"), os.NewFile(MarkFD, "mark")); err != nil {
			return err
		}
	}
	if err := c.User.dropPrivileges(); err != nil {
		return err
	}
	if err := os.Chdir(c.Program.WorkDir); err != nil {
		return fmt.Errorf("work_dir: %w", err)
	}
	if err := unix.CloseRange(ConfigFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := c.User.installSyscallFilter(); err != nil {
		return err
	}
	// EPIPE is ignored after the start mark was read, because then the next driver process adopts
	// this process if the driver has died.
	if _, err := status.Write([]byte("." + opcount.Read().String() + "\n")); err != nil && !(c.WaitForStartMark && errors.Is(err, unix.EPIPE)) {
		return err
	}
	return jobProgramError{explainExecError(path, syscall.Exec(path, append([]string{path}, c.Program.Args...), c.Program.Env))}
}

// setUpOrJoinNamespaces puts the stage into the namespaces of the task, which it makes or joins.
func (c *Config) setUpOrJoinNamespaces() error {
	switch {
	case c.ProbeOnly:
		return probeMounts()
	case !c.JoinsTask:
		return c.makeAndEnterTaskRoot()
	case c.InUserNamespace && os.Getenv(EnvName) != envJoined:
		return reexecStageInUserNamespace()
	}
	return c.joinTaskNamespaces()
}

func explainExecError(path string, err error) error {
	switch err {
	case unix.ENOENT:
		return fmt.Errorf("execute %s: the interpreter or loader that it names is not in the root directory of the task", path)
	case unix.ENOEXEC:
		return fmt.Errorf("execute %s: not a program for this machine, and no #! line names an interpreter", path)
	}
	return fmt.Errorf("execute %s: %w", path, err)
}

func pathVariable(env []string) string {
	for _, v := range env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			return path
		}
	}
	return ""
}

// joinTaskNamespaces enters the namespaces of a running task, except its PID namespace, in which the stage was
// started.
func (c *Config) joinTaskNamespaces() error {
	flags := unix.CLONE_NEWNS
	if c.PrivateNamespaces.IPC {
		flags |= unix.CLONE_NEWIPC
	}
	if c.PrivateNamespaces.Net {
		flags |= unix.CLONE_NEWNET
	}
	if c.PrivateNamespaces.UTS {
		flags |= unix.CLONE_NEWUTS
	}
	// A thread that shares its root directory with other threads cannot enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the root directory of the driver: %w", err)
	}
	if err := unix.Setns(TaskFD, flags); err != nil {
		return fmt.Errorf("enter the namespaces of the task: %w", err)
	}
	return nil
}
