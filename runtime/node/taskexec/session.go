package taskexec

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"strconv"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// ErrClientGone is the reason for a session's end if the client has disconnected.
var ErrClientGone = errors.New("the client has gone")

// maxOutputBytes is the maximum output size in one message.
const maxOutputBytes = 64 << 10

// Input is a message from the client. An empty message is a heartbeat.
type Input struct {
	Stdin      []byte
	CloseStdin bool                // the command's input ends after Stdin
	TTYSize    driver.TerminalSize // new terminal size; a size without height or width is ignored
}

// Conn connects a session with its client. Receive is called concurrently with the other methods, Send not concurrently with
// itself or Close. Close is called once.
type Conn interface {
	// Receive blocks until the client's next message. After an error, which ends the session, it is not called again.
	Receive() (Input, error)
	// Send sends a JSON object to the client. It blocks while the client does not read. It must not keep text.
	Send(text []byte) error
	// Close ends the session. A nil err means that the exit code was sent. Close makes Receive return an error.
	Close(err error)
}

// Run runs a command with conn's client as its terminal, sends the exit code and closes conn. It blocks until the command
// has ended. The command is killed when Receive returns an error, and when ctx ends; Receive's error or ctx's cause is then
// the reason for the session's end.
func Run(ctx context.Context, conn Conn, command Command) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stdin, typed := io.Pipe()
	sizes := make(chan driver.TerminalSize, 1)
	var receiving sync.WaitGroup
	defer receiving.Wait()
	receiving.Go(func() {
		err := receiveInput(conn, typed, sizes)
		cancel(err)
		typed.CloseWithError(err)
	})

	var out sync.Mutex
	command.Stdin, command.Resize = stdin, sizes
	command.Stdout, command.Stderr = &outputWriter{&out, conn, "stdout", nil}, &outputWriter{&out, conn, "stderr", nil}
	exit, err := command.RunInTask(ctx, command.Exec)
	_ = stdin.Close() // the command has ended and no longer reads stdin
	cause := context.Cause(ctx)
	switch {
	case err == nil && exit.Err == nil:
		err = sendExitCode(conn, exit.ExitCode, command.TTY)
	case cause != nil:
		err = cause
	case err == nil:
		err = exit.Err
	}
	conn.Close(err)
}

// receiveInput passes the client's messages to the command, until Receive fails, and returns Receive's error.
func receiveInput(conn Conn, stdin *io.PipeWriter, sizes chan driver.TerminalSize) error {
	for {
		in, err := conn.Receive()
		if err != nil {
			return err
		}
		applyInput(in, stdin, sizes)
	}
}

// applyInput passes one message to the command. It blocks until the command has read the input, or has ended.
func applyInput(in Input, stdin *io.PipeWriter, sizes chan driver.TerminalSize) {
	if in.TTYSize.Height > 0 && in.TTYSize.Width > 0 {
		select {
		case <-sizes: // discards a previous size not yet applied
		default:
		}
		sizes <- in.TTYSize
	}
	if len(in.Stdin) > 0 {
		_, _ = stdin.Write(in.Stdin) // the write fails if the command has closed its input
	}
	if in.CloseStdin {
		_ = stdin.Close()
	}
}

// sendExitCode sends the command's exit code. A client waits for a result, which has no exit code field if the exit code is
// 0.
func sendExitCode(conn Conn, code int, tty bool) error {
	if err := conn.Send([]byte(`{"stdout":{"close":true}}`)); err != nil {
		return err
	}
	if !tty {
		if err := conn.Send([]byte(`{"stderr":{"close":true}}`)); err != nil {
			return err
		}
	}
	result := "{}"
	if code != 0 {
		result = `{"exit_code":` + strconv.Itoa(code) + `}`
	}
	return conn.Send([]byte(`{"exited":true,"result":` + result + `}`))
}

// outputWriter sends stdout or stderr to the client. Both may be written concurrently.
type outputWriter struct {
	sending    *sync.Mutex
	conn       Conn
	streamName string
	message    []byte // the last message's buffer
}

func (w *outputWriter) Write(p []byte) (int, error) {
	w.sending.Lock()
	defer w.sending.Unlock()
	written := 0
	for len(p) > 0 {
		n := min(len(p), maxOutputBytes)
		w.message = AppendOutput(w.message[:0], w.streamName, p[:n])
		if err := w.conn.Send(w.message); err != nil {
			return written, err
		}
		written, p = written+n, p[n:]
	}
	return written, nil
}

// AppendOutput appends the message with output from a stream, "stdout" or "stderr", to b.
func AppendOutput(b []byte, streamName string, output []byte) []byte {
	b = append(append(append(b, `{"`...), streamName...), `":{"data":"`...)
	b = base64.StdEncoding.AppendEncode(b, output)
	return append(b, `"}}`...)
}
