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

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// outputDrainTimeout limits how long Exec waits, after a command has exited, for more output: processes that the command
// has started can keep the output open. What they and the command have written until then reaches the caller of Exec,
// however slowly the caller reads.
const outputDrainTimeout = 500 * time.Millisecond

// The exit codes with which a shell reports a command that it cannot run.
const (
	exitCodeNotExecutable = 126
	exitCodeNotFound      = 127
)

// reportCommandNotExecuted returns the result of a command that does not exist or is not executable: as a
// shell does, it writes a line to the standard error of the command and returns an exit code. For any other
// errno it returns errno as the error.
func reportCommandNotExecuted(e driver.Exec, errno error) (driver.ExitResult, error) {
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
// network of the process, but in a session of its own. With a terminal, all output
// goes to Stdout, and TERM is set if the task's environment does not set it. When ctx
// ends, the command and its process group are killed. For a command that does not
// exist, the exit code is 127, for a command that is not executable 126, and Exec writes
// the reason to Stderr.
func (p *Process) Exec(ctx context.Context, e driver.Exec) (driver.ExitResult, error) {
	if p.launcher != nil {
		return p.execByLauncher(ctx, e)
	}
	if p.userLookupErr != nil {
		return driver.ExitResult{}, p.userLookupErr
	}
	path, err := findProgramOfTask(p.startRequest, e.Command[0])
	if err != nil {
		return reportCommandNotExecuted(e, err)
	}
	cmd := &exec.Cmd{
		Path:        path,
		Args:        e.Command,
		Dir:         p.workDir,
		Env:         p.execEnv(e),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: p.credential},
	}
	var streams execStreams
	if e.TTY {
		err = streams.openTerminal(cmd, e, p.credential)
	} else {
		err = streams.openPipes(cmd, e)
	}
	if err != nil {
		streams.closeAll()
		return driver.ExitResult{}, fmt.Errorf("prepare the streams of %q: %w", path, err)
	}
	if err := p.startExec(cmd, &streams, p.execPlacement()); err != nil {
		return driver.ExitResult{}, p.explainExecError(path, err)
	}
	return p.copyStreamsUntilExit(ctx, cmd, e, &streams)
}

// execByLauncher is Exec for a task whose programs are started by a Launcher.
func (p *Process) execByLauncher(ctx context.Context, e driver.Exec) (driver.ExitResult, error) {
	launch, err := p.newExecLaunch(e)
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
		err = streams.connectToTerminal(cmd, e, launch.terminalMaster, launch.terminalSlave)
	} else {
		err = streams.openPipes(cmd, e)
	}
	if err != nil {
		streams.closeAll()
		return driver.ExitResult{}, fmt.Errorf("prepare the streams of %q: %w", e.Command[0], err)
	}
	place := p.execPlacement()
	place.setAttributesOfLaunch(launch.Launch, cmd.SysProcAttr)
	if err := p.startExec(cmd, &streams, place); err != nil {
		return driver.ExitResult{}, fmt.Errorf("start the stage: %w", err)
	}
	if err := waitForExecByStage(ctx, launch.Launch, cmd.Process.Pid); err != nil {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait() // the stage has not executed the command
		streams.closeAll()
		return reportCommandNotExecuted(e, err)
	}
	return p.copyStreamsUntilExit(ctx, cmd, e, &streams)
}

// execEnv returns the environment of a command in the task.
func (p *Process) execEnv(e driver.Exec) []string {
	env := sortedEnvList(p.startRequest.Env)
	if _, ok := p.startRequest.Env["TERM"]; e.TTY && !ok {
		env = append(env, "TERM=xterm") // programs need the type of their terminal
	}
	return env
}

// startExec starts a command of Exec. It closes the streams if it fails.
func (p *Process) startExec(cmd *exec.Cmd, streams *execStreams, place forkPlacement) error {
	err := place.forkIntoPlacement(cmd.SysProcAttr, func() (pid int, err error) {
		opcount.Count(opcount.Fork)
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	streams.closeChildFiles()
	if err != nil {
		if cmd.Process != nil {
			_ = cmd.Wait() // forkIntoPlacement has killed the child
		}
		streams.closeAll()
		var errno syscall.Errno
		if errors.As(err, &errno) {
			err = errno // only the errno, without the text that os/exec adds
		}
		return err
	}
	return nil
}

// copyStreamsUntilExit copies the streams of a command that was started by startExec, until the command has exited, and
// returns the exit status of the command.
func (p *Process) copyStreamsUntilExit(ctx context.Context, cmd *exec.Cmd, e driver.Exec, streams *execStreams) (driver.ExitResult, error) {
	p.resetOOMScore(cmd.Process.Pid)
	stop := context.AfterFunc(ctx, func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	resized := make(chan struct{})
	streams.startStreamCopies(e, resized)
	err := waitIgnoringExitCode(cmd)
	// After the wait, the id of the process group may be reused, so the end of ctx must not
	// kill it. Processes that the command has left running are killed with the task.
	stop()
	close(resized)
	streams.waitOutputAndCloseAll()
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
	case hostCgroupHierarchy().cgroupVersion == 2:
		pl.cgroupDir = p.cgroup.path
	default:
		pl.v1TasksFiles = p.v1TasksFiles()
		if dir := p.hostMadeCgroupDir(); dir != "" {
			pl.v1TasksFiles = append(pl.v1TasksFiles, v1TasksFileIn(dir, false))
		}
	}
	return pl
}

// execStreams connects the standard streams of a command with the readers and writers of the caller of Exec.
type execStreams struct {
	childFiles     []*os.File // descriptors for the command; this process closes its copies after the fork
	stdinWriter    *os.File
	outputCopies   []outputCopyJob
	terminalMaster *os.File

	outputCopyGoroutines sync.WaitGroup
	resizeGoroutine      sync.WaitGroup
}

// outputCopyJob is an output of a command that is copied to a writer of the caller of Exec.
type outputCopyJob struct {
	source *os.File
	dest   io.Writer
}

func (s *execStreams) openPipes(cmd *exec.Cmd, e driver.Exec) error {
	if e.Stdin != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.childFiles, s.stdinWriter = append(s.childFiles, r), w
		cmd.Stdin = r
	}
	for _, out := range []struct {
		to  io.Writer
		set *io.Writer
	}{{e.Stdout, &cmd.Stdout}, {e.Stderr, &cmd.Stderr}} {
		if out.to == nil {
			continue
		}
		// If the caller passes one writer for both outputs, a single pipe keeps the order of the
		// writes.
		if out.set == &cmd.Stderr && cmd.Stdout != nil && sameWriter(e.Stdout, e.Stderr) {
			cmd.Stderr = cmd.Stdout
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.childFiles = append(s.childFiles, w)
		s.outputCopies = append(s.outputCopies, outputCopyJob{r, out.to})
		*out.set = w
	}
	return nil
}

// sameWriter reports a == b. Without the check of the types, == would panic for two writers of a type that is
// not comparable.
func sameWriter(a, b io.Writer) bool {
	t := reflect.TypeOf(a)
	return t == reflect.TypeOf(b) && t.Comparable() && a == b
}

func (s *execStreams) openTerminal(cmd *exec.Cmd, e driver.Exec, cred *syscall.Credential) error {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open /dev/ptmx", err)
	}
	slave, err := OpenTerminalSlave(fd)
	if err != nil {
		unix.Close(fd)
		return err
	}
	if cred != nil {
		err = slave.Chown(int(cred.Uid), -1)
	}
	return errors.Join(err, s.connectToTerminal(cmd, e, os.NewFile(uintptr(fd), "ptmx"), slave))
}

// OpenTerminalSlave unlocks the terminal whose master is masterFD, and opens its slave end. It uses no path, so nobody
// can replace a part of it, and the mounts of this process do not matter.
func OpenTerminalSlave(masterFD int) (*os.File, error) {
	if err := unix.IoctlSetPointerInt(masterFD, unix.TIOCSPTLCK, 0); err != nil {
		return nil, os.NewSyscallError("TIOCSPTLCK", err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(masterFD), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, os.NewSyscallError("TIOCGPTPEER", errno)
	}
	return os.NewFile(fd, "pts"), nil
}

// connectToTerminal connects a command with a terminal. closeAll and closeChildFiles close master and slave.
func (s *execStreams) connectToTerminal(cmd *exec.Cmd, e driver.Exec, master, slave *os.File) error {
	s.terminalMaster, s.childFiles = master, append(s.childFiles, slave)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setctty = true // descriptor 0 becomes the controlling terminal of the command
	to := e.Stdout
	if to == nil {
		to = io.Discard
	}
	s.stdinWriter, s.outputCopies = master, []outputCopyJob{{master, to}}
	return nil
}

// setTerminalSize sets the size of the terminal whose master is master, without master.Fd, which would make reads of the
// terminal ignore their deadline.
func setTerminalSize(master *os.File, size driver.TerminalSize) error {
	conn, err := master.SyscallConn()
	if err != nil {
		return err
	}
	setErr := conn.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.Height), Col: uint16(size.Width)})
	})
	return errors.Join(setErr, err)
}

// startStreamCopies starts goroutines that copy the streams, and resize the terminal until stopResize is closed. The
// goroutine that copies the input returns only when the caller's reader returns EOF or an error.
func (s *execStreams) startStreamCopies(e driver.Exec, stopResize <-chan struct{}) {
	if s.stdinWriter != nil && e.Stdin != nil {
		go func() {
			io.Copy(s.stdinWriter, e.Stdin)
			if s.terminalMaster == nil {
				s.stdinWriter.Close()
			} else {
				s.stdinWriter.Write([]byte{4}) // EOT: the end of input on a terminal
			}
		}()
	}
	for _, out := range s.outputCopies {
		s.outputCopyGoroutines.Go(out.copy)
	}
	if s.terminalMaster != nil && e.Resize != nil {
		s.resizeGoroutine.Go(func() {
			for {
				select {
				case size, ok := <-e.Resize:
					if !ok {
						return
					}
					_ = setTerminalSize(s.terminalMaster, size) // fails when the terminal was hung up
				case <-stopResize:
					return
				}
			}
		})
	}
}

// copy copies the output until its end, or until the read deadline that waitOutputAndCloseAll sets.
func (o outputCopyJob) copy() {
	// io.Copy fails with EIO when no process has the terminal open, or with an error of the writer. After an error of
	// the writer, further output is discarded, so that the command does not block.
	switch _, err := io.Copy(o.dest, o.source); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		o.copyBuffered()
	case err != nil:
		io.Copy(io.Discard, o.source)
	}
}

// maxBufferedOutput is more than a pipe or a terminal holds, unless root has enlarged the pipe.
const maxBufferedOutput = 1 << 20

// copyBuffered copies the output that the kernel has buffered, and does not wait for more. It blocks only while the
// writer does. It copies at most maxBufferedOutput bytes, because a process can write all the time.
func (o outputCopyJob) copyBuffered() {
	conn, err := o.source.SyscallConn()
	if err != nil {
		return // the file is closed
	}
	o.source.SetReadDeadline(time.Time{})
	buffer := make([]byte, 32<<10)
	for copied := 0; copied < maxBufferedOutput; {
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buffer) // EIO is the end of a terminal
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		if _, err := o.dest.Write(buffer[:n]); err != nil {
			return
		}
		copied += n
	}
}

// waitOutputAndCloseAll waits until the output is copied, at most outputDrainTimeout for processes that write it, and
// closes all files.
func (s *execStreams) waitOutputAndCloseAll() {
	s.resizeGoroutine.Wait() // the goroutine uses the descriptor of the terminal, which closeAll closes
	for _, out := range s.outputCopies {
		out.source.SetReadDeadline(time.Now().Add(outputDrainTimeout))
	}
	s.outputCopyGoroutines.Wait()
	s.closeAll()
}

func (s *execStreams) closeChildFiles() {
	for _, f := range s.childFiles {
		f.Close()
	}
}

func (s *execStreams) closeAll() {
	s.closeChildFiles()
	if s.stdinWriter != nil {
		s.stdinWriter.Close()
	}
	for _, out := range s.outputCopies {
		out.source.Close()
	}
	if s.terminalMaster != nil {
		s.terminalMaster.Close()
	}
}
