package execsession

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/muesli/cancelreader"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// Flags are Nomad's flags that select the input, the terminal and the escape character of a command that runs in a
// task.
type Flags struct {
	stdin       bool
	TTY         bool
	stdinAndTTY bool
	escapeChar  string
}

// FlagsForUserTerminal returns the flags of a session that has the user's terminal, with the default escape character.
func FlagsForUserTerminal() Flags { return Flags{stdin: true, TTY: true, escapeChar: "~"} }

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", true, "pass standard input to the command")
	cmd.Flags().BoolVarP(&f.TTY, "tty", "t", false, "give the command a terminal; the default if you have one")
	cmd.Flags().BoolVar(&f.stdinAndTTY, "it", false, "the same as -i -t")
	cmd.Flags().StringVarP(&f.escapeChar, "escape", "e", "~", "`character` that begins an escape at the begin of a line, or none")
}

// Run calls exec with the user's streams; exec runs a command in a task and returns its exit code. The error of Run
// holds the exit code, or is an error of exec with operation in its text.
func (f *Flags) Run(ctx context.Context, s *cli.Streams, operation string, exec func(context.Context, Session) (int, error)) error {
	session := Session{Stdin: s.In, Stdout: s.Out, Stderr: s.Err}
	if !f.stdin {
		session.Stdin = emptyReader{}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if f.TTY {
		// The command has a terminal, so its output contains escape sequences that the user's terminal must interpret.
		session.Stdout, session.Stderr = terminal.UnsanitizedStream(s.Out), terminal.UnsanitizedStream(s.Err)
		restore, err := session.attachTerminal(ctx, s, f.escapeChar, cancel)
		if err != nil {
			return err
		}
		defer restore()
	}
	// In raw mode Ctrl-C is an ordinary byte of the input, so these signals come from other
	// processes.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, cli.TerminationSignals()...)
	defer signal.Stop(signals)
	go func() { // the deferred cancel ends this goroutine
		select {
		case sig := <-signals:
			cancel(endedBySignalError{sig.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	code, err := exec(ctx, session)
	var interrupted endedBySignalError
	switch {
	case errors.As(context.Cause(ctx), &interrupted):
		return &cli.ExitError{Code: cli.SessionTerminated.Number + int(interrupted.signal)}
	case errors.Is(context.Cause(ctx), errDetached):
		return &cli.ExitError{Code: 1, Err: errDetached}
	case err != nil:
		return apiclient.WrapErrorWithAdvice(operation, streaming.RewriteBrokenStreamError(err))
	case code != 0:
		return &cli.ExitError{Code: cli.CommandExited.Number + code}
	}
	return nil
}

// endedBySignalError is the cancellation cause of a session that a signal ended before the
// command exited.
type endedBySignalError struct{ signal syscall.Signal }

func (i endedBySignalError) Error() string { return i.signal.String() }

// errDetached is the cancellation cause of a session that the user has ended with the
// escape sequence.
var errDetached = errors.New("session left; the command has been ended")

// emptyReader is a standard input without data.
type emptyReader struct{}

func (emptyReader) Read([]byte) (int, error) { return 0, io.EOF }

// Session is the input, the output and the terminal size of a command that runs in a task.
type Session struct {
	Stdin         io.Reader
	Stdout        io.Writer
	Stderr        io.Writer
	TerminalSizes <-chan api.TerminalSize
}

// SetDefaultsAndValidate sets the flags that the user has not given, and returns an error for flags that contradict
// each other.
func (f *Flags) SetDefaultsAndValidate(cmd *cobra.Command, s *cli.Streams) error {
	if f.stdinAndTTY {
		f.stdin, f.TTY = true, true
	} else if !cmd.Flags().Changed("tty") {
		f.TTY = f.stdin && terminal.IsTerminal(s.In) && terminal.IsTerminal(s.Out)
	}
	switch {
	case f.TTY && !f.stdin:
		return cli.UsageError(cmd, errors.New("-t needs -i: a terminal is for typing"))
	case f.escapeChar != "none" && len(f.escapeChar) > 1:
		return cli.UsageError(cmd, errors.New("-e takes one character, or none"))
	}
	return nil
}

// interruptibleInput is a reader of a terminal whose Close ends a blocked Read.
type interruptibleInput struct {
	cancelreader.CancelReader
	mu sync.Mutex // held by Read
}

func (i *interruptibleInput) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.CancelReader.Read(p)
}

// Close waits for the end of the blocked Read, which would otherwise miss its cancellation and take the next key.
func (i *interruptibleInput) Close() error {
	if i.Cancel() {
		i.mu.Lock()
		defer i.mu.Unlock()
	}
	return i.CancelReader.Close()
}

// attachTerminal puts the user's terminal into raw mode, so that all keys reach the command, and sends the size of the
// terminal to the command until ctx ends. restoreTerminal also ends a blocked read of the terminal, so that the next
// key is not lost to the command.
func (se *Session) attachTerminal(ctx context.Context, s *cli.Streams, escapeChar string, endSession context.CancelCauseFunc) (restoreTerminal func(), err error) {
	in, ok := s.In.(*os.File)
	restoreTerminal = func() {}
	if ok && term.IsTerminal(int(in.Fd())) {
		reader, err := cancelreader.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("prepare the terminal: %w", err)
		}
		input := &interruptibleInput{CancelReader: reader}
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("prepare the terminal: %w", err), input.Close())
		}
		restoreTerminal = func() {
			_ = input.Close()                      // closing a pipe does not fail
			_ = term.Restore(int(in.Fd()), before) // an error means that the terminal was closed
		}
		se.Stdin = input
		if escapeChar != "none" && escapeChar != "" {
			se.Stdin = &escapeReader{input: input, escapeChar: escapeChar[0], atLineStart: true, onDetach: func() { endSession(errDetached) }}
		}
	}
	out, ok := terminal.FileOfStream(s.Out)
	if !ok || !term.IsTerminal(int(out.Fd())) {
		return restoreTerminal, nil
	}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, terminal.Resized)
	sizes := make(chan api.TerminalSize)
	se.TerminalSizes = sizes
	go func() { // the end of ctx ends this goroutine
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
	return restoreTerminal, nil
}
