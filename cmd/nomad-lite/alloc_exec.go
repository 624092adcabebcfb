package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

const allocExecHelp = `Run a command inside of a task that runs: in its directory, with its environment,
and where its driver puts it.

Flags come before ALLOC; all that follows is the command, with its own flags. A
terminal is used if you have one; leave it out with -t=false.

On a terminal, what you type goes to the command, Ctrl-C too. At the begin of a
line, ~. ends the session.

Exit codes: that of the command; 127 when there is no such command, 126 when it
is not executable; 1 when it could not be run; 130 when you interrupted it
without a terminal.`

const allocExecExamples = `  nomad-lite alloc exec 8ba85cef sh              a shell in its only task
  nomad-lite alloc exec -task server 8ba85cef ls -la local
  nomad-lite alloc exec -job web cat /etc/hosts  in an allocation of a job
  echo hello | nomad-lite alloc exec -t=false 8ba85cef cat`

type allocExecOptions struct {
	client  clientFlags
	alloc   allocFlags
	task    string
	session sessionFlags
}

// sessionFlags select what a command that runs in a task reads and writes here. They are
// Nomad's flags.
type sessionFlags struct {
	stdin  bool
	tty    bool
	both   bool
	escape string
}

func (f *sessionFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", true, "pass standard input to the command")
	cmd.Flags().BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal; the default if you have one")
	cmd.Flags().BoolVar(&f.both, "it", false, "the same as -i -t")
	cmd.Flags().StringVarP(&f.escape, "escape", "e", "~", "`character` that begins an escape at the begin of a line, or none")
}

// settle sets the flags that the user has not given.
func (f *sessionFlags) settle(cmd *cobra.Command, s *streams) error {
	if f.both {
		f.stdin, f.tty = true, true
	} else if !cmd.Flags().Changed("tty") {
		f.tty = f.stdin && isTerminal(s.in) && isTerminal(s.out)
	}
	switch {
	case f.tty && !f.stdin:
		return usageError(cmd, errors.New("-t needs -i: a terminal is for typing"))
	case f.escape != "none" && len(f.escape) > 1:
		return usageError(cmd, errors.New("-e takes one character, or none"))
	}
	return nil
}

func newAllocExecCommand(s *streams) *cobra.Command {
	var o allocExecOptions
	cmd := &cobra.Command{
		Use:     "exec [flags] ALLOC COMMAND [ARGUMENT...]",
		Short:   "Run a command inside of a task",
		Long:    allocExecHelp,
		Example: allocExecExamples,
		Args:    argCount(2, -1, "an allocation and a command, such as sh"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.session.settle(cmd, s); err != nil {
				return err
			}
			return allocExec(cmd.Context(), o, args[0], args[1:], s)
		},
		ValidArgsFunction: firstArg(allocKind.complete(&o.client)),
	}
	o.client.register(cmd)
	o.alloc.register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "`task` to run it in; not needed if there is only one")
	o.session.register(cmd)
	return runProgram(cmd)
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func allocExec(ctx context.Context, o allocExecOptions, name string, command []string, s *streams) error {
	c, alloc, err := o.alloc.find(ctx, &o.client, name)
	if err != nil {
		return err
	}
	task, err := chooseTask(alloc, o.task)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("run %q in task %q of allocation %q", command[0], task, short(alloc.ID))
	return o.session.run(ctx, s, what, func(ctx context.Context, e execSession) (int, error) {
		return c.Allocations().Exec(ctx, alloc, task, o.session.tty, command, e.stdin, e.stdout, e.stderr, e.sizes, query(ctx, alloc.Namespace))
	})
}

// run connects the streams to a command that runs elsewhere, and returns its exit code.
func (f *sessionFlags) run(ctx context.Context, s *streams, what string, exec func(context.Context, execSession) (int, error)) error {
	session := execSession{stdin: s.in, stdout: s.out, stderr: s.err}
	if !f.stdin {
		session.stdin = noInput{}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if f.tty {
		restore, err := session.terminal(ctx, s, f.escape, cancel)
		if err != nil {
			return err
		}
		defer restore()
	}
	// On a terminal Ctrl-C is an ordinary byte; these signals come from other processes.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, ends()...)
	defer signal.Stop(signals)
	go func() { // this goroutine ends with cancel
		select {
		case sig := <-signals:
			cancel(interrupted{sig.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	code, err := exec(ctx, session)
	var stopped interrupted
	switch {
	case errors.As(context.Cause(ctx), &stopped):
		return &exitError{code: 128 + int(stopped.signal)}
	case errors.Is(context.Cause(ctx), errLeft):
		return &exitError{code: 1, err: errLeft}
	case err != nil:
		return failed(what, broken(err))
	case code != 0:
		return &exitError{code: code}
	}
	return nil
}

// interrupted is the cause of a session that a signal ended before the command.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return i.signal.String() }

// errLeft is the cause of a session that the user has left with the escape.
var errLeft = errors.New("session left; the command has been ended")

// noInput is a standard input at its end.
type noInput struct{}

func (noInput) Read([]byte) (int, error) { return 0, io.EOF }

// execSession is the input, the output and the terminal size of a command that runs
// elsewhere.
type execSession struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	sizes  <-chan api.TerminalSize
}

// terminal puts the terminal into raw mode and passes all keys to the command. It sends the
// terminal's size to the command until ctx ends. The returned function restores the
// terminal.
func (e *execSession) terminal(ctx context.Context, s *streams, escape string, leave context.CancelCauseFunc) (func(), error) {
	in, ok := s.in.(*os.File)
	restore := func() {}
	if ok && term.IsTerminal(int(in.Fd())) {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return nil, fmt.Errorf("prepare the terminal: %w", err)
		}
		restore = func() { _ = term.Restore(int(in.Fd()), before) } // the terminal can be closed by now
		if escape != "none" && escape != "" {
			e.stdin = &escapeReader{r: s.in, char: escape[0], atStart: true, leave: func() { leave(errLeft) }}
		}
	}
	out, ok := s.out.(*os.File)
	if !ok || !term.IsTerminal(int(out.Fd())) {
		return restore, nil
	}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	sizes := make(chan api.TerminalSize)
	e.sizes = sizes
	go func() { // this goroutine ends with ctx
		defer signal.Stop(changes)
		for {
			if width, height, err := term.GetSize(int(out.Fd())); err == nil {
				select {
				case sizes <- api.TerminalSize{Width: width, Height: height}:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changes:
			case <-ctx.Done():
				return
			}
		}
	}()
	return restore, nil
}

// escapeReader looks in the input for an escape at the start of a line: the character and a
// dot leave the session, the character twice sends one of it.
type escapeReader struct {
	r       io.Reader
	char    byte
	leave   func()
	atStart bool   // the next byte starts a line
	escaped bool   // the last byte was the escape character
	ready   []byte // bytes read and not yet returned
}

func (e *escapeReader) Read(p []byte) (int, error) {
	for len(e.ready) == 0 {
		typed := make([]byte, len(p))
		n, err := e.r.Read(typed)
		for _, c := range typed[:n] {
			if !e.add(c) {
				e.leave()
				return 0, io.EOF
			}
		}
		if err != nil && len(e.ready) == 0 {
			return 0, err
		}
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// add processes c, and reports whether the session continues.
func (e *escapeReader) add(c byte) bool {
	switch {
	case e.escaped && c == '.':
		return false
	case e.escaped:
		e.escaped = false
		e.ready = append(e.ready, e.char)
		if c == e.char {
			e.atStart = false
			return true
		}
	case e.atStart && c == e.char:
		e.escaped = true
		return true
	}
	e.atStart = c == '\r' || c == '\n'
	e.ready = append(e.ready, c)
	return true
}
