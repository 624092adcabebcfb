package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/startmark"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Launcher starts programs through a stage: a program that prepares its own process, for example
// its namespaces, and then executes the task's program by execve(2), so that no process of the stage remains.
// Its methods must be safe for concurrent use.
type Launcher interface {
	// PrepareLaunch returns the stage for a program: for the task's program, and for each command that
	// runs in the task.
	PrepareLaunch(Program) (*Launch, error)

	// OpenTerminal opens a terminal for a command in the task that the pidfd refers to. The
	// caller closes both files.
	OpenTerminal(taskPidfd *os.File) (master, slave *os.File, err error)
}

// Program is what a stage executes.
type Program struct {
	Path string   // as in Command.Path; the stage looks it up
	Args []string // arguments, without the name of the program
	Dir  string   // working directory as the task sees it; empty means the default of the Launcher
	Env  []string // KEY=VALUE
	User string   // as in the job; empty means the default of the Launcher

	// TaskPidfd is a pidfd of the task that the program joins, and nil for the task's own program.
	// It is valid until Launch.Close.
	TaskPidfd *os.File

	// StartMarkFile has the record by which the next process of the plugin finds out whether the program was executed. It is
	// nil if the host requests no Adopt, and for commands. A stage whose preparations change nothing outside of its process
	// passes StartMarkFile and a pipe to the stage, whose other end Launch.ReleaseStage closes, and calls WaitForRelease before it
	// executes the program: then a start counts as not executed until the stage was released. Otherwise the start counts as
	// executed as soon as the stage was forked. StartMarkFile is valid until Launch.Close.
	StartMarkFile *os.File
}

// Launch is a stage that can be started once.
type Launch struct {
	Path       string
	Args       []string // arguments, with the name of the program
	Env        []string
	Files      []*os.File // entry i becomes file descriptor 3+i of the stage
	CloneFlags uintptr    // namespaces that are made for the stage

	// UserNamespaceCaps are the capabilities of the stage in a user namespace that is made for the stage, and
	// that owns the other namespaces. The user namespace has one user and one group, those of the plugin. If
	// UserNamespaceCaps is empty, no user namespace is made.
	UserNamespaceCaps []uintptr

	// BeforeFork is called on the thread that forks the stage. It can change the attributes of
	// this thread, which exits after the fork. It can be nil.
	BeforeFork func() error

	// ReleaseStage is called after the fork, when the record in Program.StartMarkFile was updated. It is nil if the stage does
	// not call WaitForRelease.
	ReleaseStage func()

	// WaitForExec is called after the fork. It blocks until the stage has executed the program, or
	// returns the reason why the stage did not; then the stage exits, or has exited. An error that
	// is os.ErrNotExist means that the program does not exist, and os.ErrPermission that it is not
	// executable.
	WaitForExec func() error

	Close func() // Close releases the resources of the launch; it is called once
}

// SetAttributes adds to sys what the stage is forked with: CloneFlags, and for UserNamespaceCaps a user
// namespace with these capabilities. For hosts only.
func (l *Launch) SetAttributes(sys *syscall.SysProcAttr) {
	sys.Cloneflags |= l.CloneFlags
	if len(l.UserNamespaceCaps) == 0 {
		return
	}
	sys.Cloneflags |= unix.CLONE_NEWUSER
	uid, gid := os.Geteuid(), os.Getegid()
	sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
	sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	sys.AmbientCaps = l.UserNamespaceCaps
}

// WaitForRelease is for stages: it blocks until Launch.ReleaseStage has closed the other end of the pipe release, or the plugin
// process has died. startMark is Program.StartMarkFile. After an error the stage must exit without executing the program,
// because the plugin has died and its next process starts the task again.
func WaitForRelease(release, startMark *os.File) error {
	return startmark.WaitForRelease(release, startMark)
}

// newProgram returns a Program with the user and the environment of a task.
func newProgram(s *sdk.StartRequest, dir, path string, args []string) Program {
	return Program{Path: path, Args: args, Dir: dir, Env: sortedEnvList(s.Env), User: s.User}
}

// waitForExecByStage waits until the stage has executed the program. If ctx ends first, it kills the process group of
// the stage, and returns an error.
func waitForExecByStage(ctx context.Context, l *Launch, pid int) error {
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		unix.Kill(-pid, unix.SIGKILL)
		close(killed)
	})
	err := l.WaitForExec()
	if stop() {
		return err
	}
	<-killed // the kill must come before the caller reaps the process, whose pid can then belong to another process
	return sdk.Recoverable(errors.Join(context.Cause(ctx), err))
}

// setAttributesOfLaunch prepares a fork of the stage of l: it sets the attributes in sys, and makes forkIntoPlacement call BeforeFork.
func (f *forkPlacement) setAttributesOfLaunch(l *Launch, sys *syscall.SysProcAttr) {
	l.SetAttributes(sys)
	f.beforeFork = l.BeforeFork
}

// execLaunch is a Launch of a command of Exec, with the files that the command needs.
type execLaunch struct {
	*Launch
	taskPidfd                     *os.File // pidfd of the task
	terminalMaster, terminalSlave *os.File // terminal of the command; nil without a terminal
}

// Close closes the Launch and the pidfd, but not the terminal.
func (l *execLaunch) Close() {
	if l.Launch != nil {
		l.Launch.Close()
	}
	l.taskPidfd.Close()
}

// newExecLaunch returns the stage for a command that runs in the task. The caller closes the execLaunch and the
// terminal.
func (p *Process) newExecLaunch(e driver.Exec) (*execLaunch, error) {
	fd, err := openPidfd(p.processID)
	if err == nil && fd == nil {
		err = errors.New("this kernel has no pidfds, which commands in the task need")
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", p.processID.PID, err)
	}
	defer fd.Close()
	l := &execLaunch{}
	if l.taskPidfd, err = fd.Dup(); err != nil {
		return nil, err
	}
	if e.TTY {
		l.terminalMaster, l.terminalSlave, err = p.launcher.OpenTerminal(l.taskPidfd)
	}
	if err == nil {
		program := newProgram(p.startRequest, p.workDir, e.Command[0], e.Command[1:])
		program.Env, program.TaskPidfd = p.execEnv(e), l.taskPidfd
		l.Launch, err = p.launcher.PrepareLaunch(program)
	}
	if err != nil {
		l.Close()
		for _, f := range []*os.File{l.terminalMaster, l.terminalSlave} {
			if f != nil {
				f.Close()
			}
		}
		return nil, err
	}
	return l, nil
}
