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
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

func init() {
	if os.Getenv(EnvName) == "" {
		return
	}
	// An init function runs on the main thread. The attributes that are set for this thread
	// alone are those of the program, because execve(2) ends the other threads.
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // processes of the task must not trace the stage
	for fd := ConfigFD; fd <= lastFD; fd++ {
		unix.CloseOnExec(fd)
	}
	status := os.NewFile(StatusFD, "status")
	json.NewEncoder(status).Encode(toFailure(run(status)))
	os.Exit(1)
}

// programError is an error of the program that the job names.
type programError struct{ error }

func (e programError) Unwrap() error { return e.error }

func toFailure(err error) Failure {
	f := Failure{Text: err.Error(), IsProgram: errors.As(err, new(programError))}
	if !errors.As(err, &f.Errno) && f.IsProgram && errors.Is(err, os.ErrNotExist) {
		f.Errno = unix.ENOENT
	}
	return f
}

// run returns only after an error.
func run(status io.Writer) error {
	var c Config
	if err := json.NewDecoder(os.NewFile(ConfigFD, "config")).Decode(&c); err != nil {
		return fmt.Errorf("read the configuration of the stage: %w", err)
	}
	if err := c.enter(); err != nil {
		return err
	}
	if c.Probe {
		status.Write([]byte{'.'})
		os.Exit(0)
	}
	path, err := lookpath.Find("/", searchPath(c.Program.Env), c.Program.Path)
	if err != nil {
		return programError{err}
	}
	if c.WaitForMark {
		if err := awaitMark(); err != nil {
			return err
		}
	}
	if err := c.User.become(); err != nil {
		return err
	}
	if err := os.Chdir(c.Program.Dir); err != nil {
		return fmt.Errorf("work_dir: %w", err)
	}
	if err := unix.CloseRange(ConfigFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := c.User.filterSystemCalls(); err != nil {
		return err
	}
	// The driver can have died since the mark names this process: the next driver process adopts it.
	if _, err := status.Write([]byte{'.'}); err != nil && !(c.WaitForMark && errors.Is(err, unix.EPIPE)) {
		return err
	}
	return programError{explainExec(path, syscall.Exec(path, append([]string{path}, c.Program.Args...), c.Program.Env))}
}

// awaitMark returns when the mark of the start names this process. It returns an error if the driver has died before: the
// next driver process reads in the mark that the program is not executed.
func awaitMark() error {
	if _, err := os.NewFile(ReleaseFD, "release").Read(make([]byte, 1)); err != io.EOF {
		return fmt.Errorf("wait for the driver: %v", err)
	}
	mark, err := osprocess.ReadStartMark(os.NewFile(MarkFD, "mark"))
	if err != nil {
		return err
	}
	if !mark.Forked {
		return errors.New("the driver exited before the start of the task was recorded")
	}
	return nil
}

// enter makes the namespaces of the task those of the stage.
func (c *Config) enter() error {
	switch {
	case c.Probe:
		return probe()
	case !c.Join:
		return c.makeRoot()
	case c.UserNamespace && os.Getenv(EnvName) != envJoined:
		return joinUserNamespace()
	}
	return c.join()
}

func explainExec(path string, err error) error {
	switch err {
	case unix.ENOENT:
		return fmt.Errorf("execute %s: the interpreter or loader that it names is not in the root directory of the task", path)
	case unix.ENOEXEC:
		return fmt.Errorf("execute %s: not a program for this machine, and no #! line names an interpreter", path)
	}
	return fmt.Errorf("execute %s: %w", path, err)
}

func searchPath(env []string) string {
	for _, v := range env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			return path
		}
	}
	return ""
}

// join enters the namespaces of a running task, except its PID namespace, in which the stage was
// started.
func (c *Config) join() error {
	flags := unix.CLONE_NEWNS
	if c.Private.IPC {
		flags |= unix.CLONE_NEWIPC
	}
	if c.Private.Net {
		flags |= unix.CLONE_NEWNET
	}
	if c.Private.UTS {
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
