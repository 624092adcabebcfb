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

	"github.com/nomad-lite/nomad-lite/sdk"
)

// outputGrace is how long the output of a command that has ended may still be
// held open by what it has left running.
const outputGrace = 500 * time.Millisecond

// The exit codes with which a shell reports a command that it cannot run.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// refused answers for a command that is not there, or not executable, as a shell does:
// with a line on its standard error and an exit code.
func refused(e sdk.Exec, cause error) (sdk.ExitResult, error) {
	code := 0
	switch {
	case errors.Is(cause, os.ErrNotExist):
		code = exitNotFound
	case errors.Is(cause, os.ErrPermission):
		code = exitNotExecutable
	default:
		return sdk.ExitResult{}, cause
	}
	to, end := e.Stderr, "\n"
	if e.TTY {
		to, end = e.Stdout, "\r\n"
	}
	if to != nil {
		if _, err := io.WriteString(to, cause.Error()+end); err != nil {
			return sdk.ExitResult{}, cause
		}
	}
	return sdk.ExitResult{ExitCode: code}, nil
}

// Exec runs a command where the process runs: its user, environment, working
// directory, cgroup and network, but a session of its own. A terminal's output is
// all Stdout, and TERM is set if the task's environment has none. When ctx ends, the command and its process group are killed.
// A command that is not there ends with exit code 127, one that is not executable with
// 126; its Stderr says why.
func (p *Process) Exec(ctx context.Context, e sdk.Exec) (sdk.ExitResult, error) {
	if p.userErr != nil {
		return sdk.ExitResult{}, p.userErr
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
			cmd.Env = append(cmd.Env, "TERM=xterm") // what asks for a terminal asks for its kind
		}
		err = streams.terminal(cmd, e, p.cred)
	} else {
		err = streams.pipes(cmd, e)
	}
	if err != nil {
		streams.close()
		return sdk.ExitResult{}, fmt.Errorf("prepare the streams of %q: %w", path, err)
	}
	err = p.execPlacement().run(cmd.SysProcAttr, cmd.Start)
	streams.closeChild()
	if err != nil {
		streams.close()
		var cause syscall.Errno
		if errors.As(err, &cause) {
			err = cause // without what os/exec puts around it
		}
		return sdk.ExitResult{}, p.execError(path, err)
	}
	p.resetOOMScore(cmd.Process.Pid)
	stop := context.AfterFunc(ctx, func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	resized := make(chan struct{})
	streams.start(e, resized)
	err = awaitExit(cmd)
	// Past this point the number of the group may be somebody else's; what the
	// command has left running dies with the task.
	stop()
	close(resized)
	streams.finish()
	if err != nil {
		return sdk.ExitResult{}, fmt.Errorf("wait for %q: %w", path, err)
	}
	return resultOf(decode(int(cmd.ProcessState.Sys().(syscall.WaitStatus))), nil), nil
}

func awaitExit(cmd *exec.Cmd) error {
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// execPlacement is where a command of a task goes: where its process is.
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

// execStreams connects a command with its caller.
type execStreams struct {
	child []*os.File // closed here once the command has them
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

func (s *execStreams) pipes(cmd *exec.Cmd, e sdk.Exec) error {
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
		// One pipe for both keeps them in order, if the caller wants them in one.
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

// same is a == b for writers of any type: comparing two of some types panics.
func same(a, b io.Writer) bool {
	t := reflect.TypeOf(a)
	return t == reflect.TypeOf(b) && t.Comparable() && a == b
}

func (s *execStreams) terminal(cmd *exec.Cmd, e sdk.Exec, cred *syscall.Credential) error {
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
	cmd.SysProcAttr.Setctty = true // descriptor 0
	to := e.Stdout
	if to == nil {
		to = io.Discard
	}
	s.in, s.out = master, []stream{{master, to}}
	return nil
}

// start moves the bytes. The copy of the input ends when the caller's reader
// does, which nobody else can end.
func (s *execStreams) start(e sdk.Exec, end <-chan struct{}) {
	if s.in != nil && e.Stdin != nil {
		go func() {
			io.Copy(s.in, e.Stdin)
			if s.tty == nil {
				s.in.Close()
			} else {
				s.in.Write([]byte{4}) // how a terminal is told the end of input
			}
		}()
	}
	for _, out := range s.out {
		// A terminal whose last user has gone answers EIO, a pipe EOF. A writer
		// that fails must not leave the command blocked.
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

// finish waits for the rest of the output.
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
