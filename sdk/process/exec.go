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

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/process"
)

// outputGrace limits how long Exec waits, after a command has exited, for output
// that its remaining processes hold open.
const outputGrace = 500 * time.Millisecond

// The exit codes with which a shell reports a command that it cannot run.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// refused returns the result of a command that does not exist or is not
// executable, in the form of a shell: a line on its standard error and an exit
// code.
func refused(e driver.Exec, cause error) (driver.ExitResult, error) {
	code := 0
	switch {
	case errors.Is(cause, os.ErrNotExist):
		code = exitNotFound
	case errors.Is(cause, os.ErrPermission):
		code = exitNotExecutable
	default:
		return driver.ExitResult{}, cause
	}
	to, end := e.Stderr, "\n"
	if e.TTY {
		to, end = e.Stdout, "\r\n"
	}
	if to != nil {
		if _, err := io.WriteString(to, cause.Error()+end); err != nil {
			return driver.ExitResult{}, cause
		}
	}
	return driver.ExitResult{ExitCode: code}, nil
}

// Exec runs a command with the user, environment, working directory, cgroup and
// network of the process, but in a session of its own. The output of a terminal
// is all Stdout, and TERM is set if the task's environment has none. When ctx
// ends, the command and its process group are killed. A command that does not
// exist exits with code 127, a command that is not executable with 126; its
// Stderr has the reason.
func (p *Process) Exec(ctx context.Context, e driver.Exec) (driver.ExitResult, error) {
	if p.userErr != nil {
		return driver.ExitResult{}, p.userErr
	}
	path, err := lookPath(p.start, e.Command[0])
	if err != nil {
		return refused(e, err)
	}
	cmd := &exec.Cmd{
		Path:        path,
		Args:        e.Command,
		Dir:         p.dir,
		Env:         environ(p.start.Env),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: p.cred},
	}
	var streams execStreams
	if e.TTY {
		if _, ok := p.start.Env["TERM"]; !ok {
			cmd.Env = append(cmd.Env, "TERM=xterm") // programs on a terminal need its type
		}
		err = streams.terminal(cmd, e, p.cred)
	} else {
		err = streams.pipes(cmd, e)
	}
	if err != nil {
		streams.close()
		return driver.ExitResult{}, fmt.Errorf("prepare the streams of %q: %w", path, err)
	}
	err = p.execPlacement().run(cmd.SysProcAttr, cmd.Start)
	streams.closeChild()
	if err != nil {
		streams.close()
		var cause syscall.Errno
		if errors.As(err, &cause) {
			err = cause // without the wrapping of os/exec
		}
		return driver.ExitResult{}, p.execError(path, err)
	}
	p.resetOOMScore(cmd.Process.Pid)
	stop := context.AfterFunc(ctx, func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	resized := make(chan struct{})
	streams.start(e, resized)
	err = awaitExit(cmd)
	// The process group number may have been reused from here on. Processes that
	// the command has left running are killed with the task.
	stop()
	close(resized)
	streams.finish()
	if err != nil {
		return driver.ExitResult{}, fmt.Errorf("wait for %q: %w", path, err)
	}
	return resultOf(process.ExitStatusOf(int(cmd.ProcessState.Sys().(syscall.WaitStatus))), nil), nil
}

func awaitExit(cmd *exec.Cmd) error {
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// execPlacement returns the placement of a command: that of the task's process.
func (p *Process) execPlacement() placement {
	pl := placement{netns: p.netns()}
	switch {
	case p.cgroup == nil:
	case cgroups().version == 2:
		pl.dir = p.cgroup.path
	default:
		pl.tasks = p.entries()
		if dir := p.cpuset(); dir != "" {
			pl.tasks = append(pl.tasks, enter(dir, false))
		}
	}
	return pl
}

// execStreams connects a command with the streams of its caller.
type execStreams struct {
	child []*os.File // descriptors of the command, closed here after the fork
	in    *os.File
	out   []stream
	tty   *os.File

	reading sync.WaitGroup
	resizes sync.WaitGroup
}

type stream struct {
	from *os.File
	to   io.Writer
}

func (s *execStreams) pipes(cmd *exec.Cmd, e driver.Exec) error {
	if e.Stdin != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.child, s.in = append(s.child, r), w
		cmd.Stdin = r
	}
	for _, out := range []struct {
		to  io.Writer
		set *io.Writer
	}{{e.Stdout, &cmd.Stdout}, {e.Stderr, &cmd.Stderr}} {
		if out.to == nil {
			continue
		}
		// A single pipe for both streams keeps their order, if the caller passes
		// one writer.
		if out.set == &cmd.Stderr && cmd.Stdout != nil && same(e.Stdout, e.Stderr) {
			cmd.Stderr = cmd.Stdout
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.child = append(s.child, w)
		s.out = append(s.out, stream{r, out.to})
		*out.set = w
	}
	return nil
}

// same is a == b for writers of any type: == panics for types that are not
// comparable.
func same(a, b io.Writer) bool {
	t := reflect.TypeOf(a)
	return t == reflect.TypeOf(b) && t.Comparable() && a == b
}

func (s *execStreams) terminal(cmd *exec.Cmd, e driver.Exec, cred *syscall.Credential) error {
	master, slave, err := pty.Open()
	if err != nil {
		return err
	}
	s.tty, s.child = master, append(s.child, slave)
	if cred != nil {
		if err := slave.Chown(int(cred.Uid), -1); err != nil {
			return err
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setctty = true // the terminal is descriptor 0
	to := e.Stdout
	if to == nil {
		to = io.Discard
	}
	s.in, s.out = master, []stream{{master, to}}
	return nil
}

// start copies the streams. The copy of the input ends only when the caller's
// reader ends.
func (s *execStreams) start(e driver.Exec, end <-chan struct{}) {
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
		// A terminal without a user returns EIO, a pipe EOF. A writer that fails
		// must not leave the command blocked.
		s.reading.Go(func() {
			if _, err := io.Copy(out.to, out.from); err != nil {
				io.Copy(io.Discard, out.from)
			}
		})
	}
	if s.tty != nil && e.Resize != nil {
		s.resizes.Go(func() {
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

// finish waits for the remaining output.
func (s *execStreams) finish() {
	timer := time.AfterFunc(outputGrace, s.close)
	s.reading.Wait()
	timer.Stop()
	s.close()
	s.resizes.Wait()
}

func (s *execStreams) closeChild() {
	for _, f := range s.child {
		f.Close()
	}
}

func (s *execStreams) close() {
	s.closeChild()
	if s.in != nil {
		s.in.Close()
	}
	for _, out := range s.out {
		out.from.Close()
	}
	if s.tty != nil {
		s.tty.Close()
	}
}
