package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// outputDrainTimeout limits how long Exec waits, after a command has exited, for output
// that its remaining processes hold open.
const outputDrainTimeout = 500 * time.Millisecond

// The exit codes with which a shell reports a command that it cannot run.
const (
	exitCodeNotExecutable = 126
	exitCodeNotFound      = 127
)

// cannotRunResult returns the result of a command that does not exist or is not
// executable, in the form of a shell: a line on its standard error and an exit
// code.
func cannotRunResult(e driver.Exec, errno error) (driver.ExitResult, error) {
	code := 0
	switch {
	case errors.Is(errno, os.ErrNotExist):
		code = exitCodeNotFound
	case errors.Is(errno, os.ErrPermission):
		code = exitCodeNotExecutable
	default:
		return driver.ExitResult{}, errno
	}
	to, end := e.Stderr, "\n"
	if e.TTY {
		to, end = e.Stdout, "\r\n"
	}
	if to != nil {
		if _, err := io.WriteString(to, errno.Error()+end); err != nil {
			return driver.ExitResult{}, errno
		}
	}
	return driver.ExitResult{ExitCode: code}, nil
}

// Exec runs a command with the user, environment, working directory, cgroup, rlimits and
// network of the process, but in a session of its own. The output of a terminal
// is all Stdout, and TERM is set if the task's environment has none. When ctx
// ends, the command and its process group are killed. A command that does not
// exist exits with code 127, a command that is not executable with 126; its
// Stderr has the reason.
func (p *Process) Exec(ctx context.Context, e driver.Exec) (driver.ExitResult, error) {
	if p.launcher != nil {
		return p.execByLauncher(ctx, e)
	}
	if p.userLookupErr != nil {
		return driver.ExitResult{}, p.userLookupErr
	}
	path, err := lookPath(p.startRequest, e.Command[0])
	if err != nil {
		return cannotRunResult(e, err)
	}
	cmd := &exec.Cmd{
		Path:        path,
		Args:        e.Command,
		Dir:         p.dir,
		Env:         p.execEnv(e),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: p.cred},
	}
	var streams execStreams
	if e.TTY {
		err = streams.openTerminal(cmd, e, p.cred)
	} else {
		err = streams.openPipes(cmd, e)
	}
	if err != nil {
		streams.close()
		return driver.ExitResult{}, fmt.Errorf("prepare the streams of %q: %w", path, err)
	}
	if err := p.startExec(cmd, &streams, p.execPlacement()); err != nil {
		return driver.ExitResult{}, p.execError(path, err)
	}
	return p.finishExec(ctx, cmd, e, &streams)
}

// execByLauncher is Exec for a task with a launcher.
func (p *Process) execByLauncher(ctx context.Context, e driver.Exec) (driver.ExitResult, error) {
	launch, err := p.launchInTask(e)
	if err != nil {
		return driver.ExitResult{}, err
	}
	defer launch.Close()
	cmd := &exec.Cmd{
		Path:        launch.Path,
		Args:        launch.Args,
		Dir:         "/",
		Env:         launch.Env,
		ExtraFiles:  launch.Files,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	var streams execStreams
	if e.TTY {
		err = streams.useTerminal(cmd, e, launch.master, launch.slave)
	} else {
		err = streams.openPipes(cmd, e)
	}
	if err != nil {
		streams.close()
		return driver.ExitResult{}, fmt.Errorf("prepare the streams of %q: %w", e.Command[0], err)
	}
	place := p.execPlacement()
	place.launchFromThread(launch.Launch, cmd.SysProcAttr)
	if err := p.startExec(cmd, &streams, place); err != nil {
		return driver.ExitResult{}, fmt.Errorf("start the stage: %w", err)
	}
	if err := waitLaunch(ctx, launch.Launch, cmd.Process.Pid); err != nil {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait() // the stage has not executed the command
		streams.close()
		return cannotRunResult(e, err)
	}
	return p.finishExec(ctx, cmd, e, &streams)
}

// execEnv returns the environment of a command in the task.
func (p *Process) execEnv(e driver.Exec) []string {
	env := envList(p.startRequest.Env)
	if _, ok := p.startRequest.Env["TERM"]; e.TTY && !ok {
		env = append(env, "TERM=xterm") // TERM: programs need the type of their terminal
	}
	return env
}

// startExec starts a command. After an error, the streams are closed.
func (p *Process) startExec(cmd *exec.Cmd, streams *execStreams, place forkPlacement) error {
	err := place.run(cmd.SysProcAttr, func() (pid int, err error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	streams.closeChildFiles()
	if err != nil {
		if cmd.Process != nil {
			_ = cmd.Wait() // run has killed the child
		}
		streams.close()
		var errno syscall.Errno
		if errors.As(err, &errno) {
			err = errno // only the errno, without the text that os/exec adds
		}
		return err
	}
	return nil
}

// finishExec connects a command that was started with its streams, and waits for it.
func (p *Process) finishExec(ctx context.Context, cmd *exec.Cmd, e driver.Exec, streams *execStreams) (driver.ExitResult, error) {
	p.resetOOMScore(cmd.Process.Pid)
	stop := context.AfterFunc(ctx, func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	resized := make(chan struct{})
	streams.startCopies(e, resized)
	err := waitIgnoringExitCode(cmd)
	// After the wait, the number of the process group may be reused, so the group
	// is no longer killed. Processes that the command has left running are killed
	// with the task.
	stop()
	close(resized)
	streams.waitOutput()
	if err != nil {
		return driver.ExitResult{}, fmt.Errorf("wait for %q: %w", e.Command[0], err)
	}
	return toExitResult(osprocess.ParseWaitStatus(int(cmd.ProcessState.Sys().(syscall.WaitStatus))), nil), nil
}

func waitIgnoringExitCode(cmd *exec.Cmd) error {
	err := cmd.Wait()
	var exitErr *exec.ExitError
	if errors.As(err, &exitErr) {
		return nil
	}
	return err
}

// execPlacement returns the placement of a command in the task: the cgroups, the rlimits
// and the network of the task's process.
func (p *Process) execPlacement() forkPlacement {
	pl := forkPlacement{netnsPath: netnsPath(p.startRequest), rlimits: p.rlimits}
	switch {
	case p.cgroup == nil:
	case hostCgroupHierarchy().version == 2:
		pl.cgroupDir = p.cgroup.path
	default:
		pl.v1TasksFiles = p.tasksFiles()
		if dir := p.cpusetDir(); dir != "" {
			pl.v1TasksFiles = append(pl.v1TasksFiles, newTasksFile(dir, false))
		}
	}
	return pl
}

// execStreams connects a command with the streams of its caller.
type execStreams struct {
	childFiles []*os.File // descriptors for the command; this process closes its copies after the fork
	in         *os.File
	out        []outputCopyJob
	tty        *os.File

	outputReaders   sync.WaitGroup
	resizeGoroutine sync.WaitGroup
}

type outputCopyJob struct {
	source *os.File
	to     io.Writer
}

func (s *execStreams) openPipes(cmd *exec.Cmd, e driver.Exec) error {
	if e.Stdin != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.childFiles, s.in = append(s.childFiles, r), w
		cmd.Stdin = r
	}
	for _, out := range []struct {
		to  io.Writer
		set *io.Writer
	}{{e.Stdout, &cmd.Stdout}, {e.Stderr, &cmd.Stderr}} {
		if out.to == nil {
			continue
		}
		// If the caller passes one writer for both streams, a single pipe keeps the order of the
		// output.
		if out.set == &cmd.Stderr && cmd.Stdout != nil && sameWriter(e.Stdout, e.Stderr) {
			cmd.Stderr = cmd.Stdout
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.childFiles = append(s.childFiles, w)
		s.out = append(s.out, outputCopyJob{r, out.to})
		*out.set = w
	}
	return nil
}

// sameWriter is a == b for writers of any type: == panics for types that are not
// comparable.
func sameWriter(a, b io.Writer) bool {
	t := reflect.TypeOf(a)
	return t == reflect.TypeOf(b) && t.Comparable() && a == b
}

func (s *execStreams) openTerminal(cmd *exec.Cmd, e driver.Exec, cred *syscall.Credential) error {
	master, slave, err := pty.Open()
	if err != nil {
		return err
	}
	if cred != nil {
		err = slave.Chown(int(cred.Uid), -1)
	}
	return errors.Join(err, s.useTerminal(cmd, e, master, slave))
}

// useTerminal connects a command with a terminal, and takes ownership of the files.
func (s *execStreams) useTerminal(cmd *exec.Cmd, e driver.Exec, master, slave *os.File) error {
	s.tty, s.childFiles = master, append(s.childFiles, slave)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setctty = true // Setctty: descriptor 0 becomes the controlling terminal
	to := e.Stdout
	if to == nil {
		to = io.Discard
	}
	s.in, s.out = master, []outputCopyJob{{master, to}}
	return nil
}

// startCopies starts goroutines that copy the streams. The copy of the input ends only when
// the caller's reader returns EOF or an error.
func (s *execStreams) startCopies(e driver.Exec, end <-chan struct{}) {
	if s.in != nil && e.Stdin != nil {
		go func() {
			io.Copy(s.in, e.Stdin)
			if s.tty == nil {
				s.in.Close()
			} else {
				s.in.Write([]byte{4}) // EOT: the end of input on a terminal
			}
		}()
	}
	for _, out := range s.out {
		// io.Copy fails with EIO when no process has the terminal open, or with an error of the
		// writer. In the latter case the rest is discarded, so that the command does not block.
		s.outputReaders.Go(func() {
			if _, err := io.Copy(out.to, out.source); err != nil {
				io.Copy(io.Discard, out.source)
			}
		})
	}
	if s.tty != nil && e.Resize != nil {
		s.resizeGoroutine.Go(func() {
			for {
				select {
				case size, ok := <-e.Resize:
					if !ok {
						return
					}
					pty.Setsize(s.tty, &pty.Winsize{Rows: uint16(size.Height), Cols: uint16(size.Width)})
				case <-end:
					return
				}
			}
		})
	}
}

// waitOutput waits for the remaining output.
func (s *execStreams) waitOutput() {
	s.resizeGoroutine.Wait() // it uses the descriptor of the terminal, which must not be closed meanwhile
	timer := time.AfterFunc(outputDrainTimeout, s.close)
	s.outputReaders.Wait()
	timer.Stop()
	s.close()
}

func (s *execStreams) closeChildFiles() {
	for _, f := range s.childFiles {
		f.Close()
	}
}

func (s *execStreams) close() {
	s.closeChildFiles()
	if s.in != nil {
		s.in.Close()
	}
	for _, out := range s.out {
		out.source.Close()
	}
	if s.tty != nil {
		s.tty.Close()
	}
}
