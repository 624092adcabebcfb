package driverwire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
)

// Order of the messages (frames) of a streaming exec: the client sends the setup first, and then data of stdin, the end
// of stdin, terminal sizes and empty heartbeats; the server sends output, then the end of stdout and stderr, and the exit
// status last.

const (
	// maxFrameSize is the maximum size of the output or input in one frame, in bytes.
	maxFrameSize = 32 * 1024

	// execDrainTimeout is the maximum time between the exit status and the end of the stream.
	execDrainTimeout = time.Second
)

type (
	execClientStream = grpc.BidiStreamingClient[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]
	execServerStream = grpc.BidiStreamingServer[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]
)

func (c *client) ExecTaskStreaming(ctx context.Context, taskID string, exec driver.Exec) (*driver.ExitResult, error) {
	callCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.pb.ExecTaskStreaming(callCtx)
	if err != nil {
		return nil, c.convertErr(ctx, err)
	}
	in := &execInputSender{stream: stream}
	in.trySendFrame(&driverpb.ExecTaskStreamingRequest{
		Setup: &driverpb.ExecTaskStreamingRequest_Setup{TaskId: taskID, Command: exec.Command, Tty: exec.TTY},
	})

	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	// ExecTaskStreaming does not wait for this goroutine, because only the owner of exec.Stdin can end
	// a Read of it.
	go func() {
		if err := in.copyStdin(exec.Stdin); err != nil {
			cancel(fmt.Errorf("exec task: read stdin: %w", err))
		}
	}()
	wg.Go(func() { in.sendTerminalSizes(callCtx, exec.Resize) })

	exitResult, err := receiveExecOutput(stream, exec, cancel)
	if exitResult != nil {
		return exitResult, nil
	}
	if cause := context.Cause(callCtx); cause != nil && ctx.Err() == nil {
		return nil, cause // the cause is the error of exec.Stdin
	}
	var w *outputWriteError
	if errors.As(err, &w) {
		return nil, fmt.Errorf("exec task: %w", err)
	}
	if err == io.EOF {
		return nil, c.pluginDownIfExited(ctx, fmt.Errorf("exec task: %w", errNoExitResult))
	}
	return nil, c.convertErr(ctx, err)
}

// receiveExecOutput writes the command's output until the stream ends. The exit status is
// the last frame; if the stream stays open after it, receiveExecOutput cancels the call.
func receiveExecOutput(stream execClientStream, exec driver.Exec, cancel context.CancelCauseFunc) (*driver.ExitResult, error) {
	var exitResult *driver.ExitResult
	for {
		frame, err := stream.Recv()
		if err != nil {
			return exitResult, err
		}
		if err := writeFrameData("stdout", exec.Stdout, frame.GetStdout()); err != nil {
			return exitResult, err
		}
		if err := writeFrameData("stderr", exec.Stderr, frame.GetStderr()); err != nil {
			return exitResult, err
		}
		if frame.GetExited() && exitResult == nil {
			result := exitResultFromProto(frame.GetResult())
			exitResult = &result
			defer time.AfterFunc(execDrainTimeout, func() { cancel(nil) }).Stop()
		}
	}
}

// outputWriteError is an error of driver.Exec.Stdout or Exec.Stderr, not of the plugin.
type outputWriteError struct {
	streamName string
	err        error
}

func (e *outputWriteError) Error() string { return fmt.Sprintf("write %s: %v", e.streamName, e.err) }

func (e *outputWriteError) Unwrap() error { return e.err }

func writeFrameData(streamName string, w io.Writer, op *driverpb.ExecTaskStreamingIOOperation) error {
	if w == nil || len(op.GetData()) == 0 {
		return nil
	}
	if _, err := w.Write(op.GetData()); err != nil {
		return &outputWriteError{streamName, err}
	}
	return nil
}

// execInputSender sends the client's messages of a streaming exec. Its methods may be called
// concurrently.
type execInputSender struct {
	mu     sync.Mutex
	stream execClientStream
}

// trySendFrame returns false if the stream no longer accepts frames. The receiver of the
// stream gets the error.
func (e *execInputSender) trySendFrame(frame *driverpb.ExecTaskStreamingRequest) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stream.Send(frame) == nil
}

// copyStdin sends all data of r, and then the end of stdin. It returns the error of r.
func (e *execInputSender) copyStdin(r io.Reader) error {
	buf := make([]byte, maxFrameSize)
	for r != nil {
		n, err := r.Read(buf)
		if n > 0 && !e.trySendFrame(stdinFrame(buf[:n], false)) {
			return nil
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	e.trySendFrame(stdinFrame(nil, true))
	return nil
}

func stdinFrame(data []byte, close bool) *driverpb.ExecTaskStreamingRequest {
	return &driverpb.ExecTaskStreamingRequest{Stdin: &driverpb.ExecTaskStreamingIOOperation{Data: data, Close: close}}
}

func (e *execInputSender) sendTerminalSizes(ctx context.Context, sizes <-chan driver.TerminalSize) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			e.trySendFrame(&driverpb.ExecTaskStreamingRequest{
				TtySize: &driverpb.ExecTaskStreamingRequest_TerminalSize{Height: int32(size.Height), Width: int32(size.Width)},
			})
		case <-ctx.Done():
			return
		}
	}
}

func (s *server) ExecTaskStreaming(stream execServerStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	setup := first.GetSetup()
	if setup == nil {
		return errors.New("first message should always be setup")
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)

	stdin, input := io.Pipe()
	defer stdin.Close()
	resize := make(chan driver.TerminalSize, 1)
	// Recv blocks until the client sends a frame or this function has returned, so this
	// function does not wait for the goroutine.
	go func() {
		defer close(resize)
		input.CloseWithError(receiveExecInput(stream, input, resize, cancel))
	}()

	out := &execOutputSender{stream: stream}
	exec := driver.Exec{
		Command: setup.GetCommand(),
		TTY:     setup.GetTty(),
		Stdin:   stdin,
		Stdout:  execOutputWriter{out, stdoutFrame},
		Stderr:  execOutputWriter{out, stderrFrame},
		Resize:  resize,
	}
	exitResult, err := s.impl.ExecTaskStreaming(ctx, setup.GetTaskId(), exec)
	if err == nil && exitResult != nil {
		err = exitResult.Err // Err is returned as the error of the call: the exit frame has no field for it
	}
	switch cause := context.Cause(ctx); {
	case stream.Context().Err() == nil && cause != nil:
		return out.sendFinalFrames(cause)
	case err != nil:
		return out.sendFinalFrames(err)
	}
	return out.sendFinalFrames(nil,
		stdoutFrame(nil, true),
		stderrFrame(nil, true),
		&driverpb.ExecTaskStreamingResponse{Exited: true, Result: exitResultProto(exitResult)})
}

// receiveExecInput passes the client's frames to the command until the stream ends, and returns
// the error that the next read of stdin gets. An unexpected frame cancels the command.
func receiveExecInput(stream execServerStream, stdin *io.PipeWriter, resize chan driver.TerminalSize, cancel context.CancelCauseFunc) error {
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err // io.EOF means that the client has closed its half of the stream
		}
		switch {
		case frame.GetSetup() != nil:
			err := fmt.Errorf("unexpected message type: %T", frame.GetSetup())
			cancel(err)
			return err
		case frame.GetTtySize() != nil:
			size := driver.TerminalSize{Height: int(frame.GetTtySize().GetHeight()), Width: int(frame.GetTtySize().GetWidth())}
			select {
			case <-resize: // drops a terminal size that the command has not read
			default:
			}
			resize <- size
		}
		// Write fails after the command has exited, which is not an error.
		if data := frame.GetStdin().GetData(); len(data) > 0 {
			_, _ = stdin.Write(data)
		}
		if frame.GetStdin().GetClose() {
			_ = stdin.Close()
		}
	}
}

func stdoutFrame(data []byte, close bool) *driverpb.ExecTaskStreamingResponse {
	return &driverpb.ExecTaskStreamingResponse{Stdout: &driverpb.ExecTaskStreamingIOOperation{Data: data, Close: close}}
}

func stderrFrame(data []byte, close bool) *driverpb.ExecTaskStreamingResponse {
	return &driverpb.ExecTaskStreamingResponse{Stderr: &driverpb.ExecTaskStreamingIOOperation{Data: data, Close: close}}
}

// execOutputSender sends the server's messages of a streaming exec. Its methods may be called
// concurrently.
type execOutputSender struct {
	mu       sync.Mutex
	stream   execServerStream
	isClosed bool
}

// sendFinalFrames sends the last frames of the stream. It returns the error of a failed send, and callErr otherwise.
// Each later Write to the command's stdout or stderr fails.
func (o *execOutputSender) sendFinalFrames(callErr error, frames ...*driverpb.ExecTaskStreamingResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isClosed = true
	for _, frame := range frames {
		if sendErr := o.stream.Send(frame); sendErr != nil {
			return sendErr
		}
	}
	return callErr
}

// execOutputWriter is the command's stdout or stderr: Write sends data as frames.
type execOutputWriter struct {
	out      *execOutputSender
	newFrame func(data []byte, close bool) *driverpb.ExecTaskStreamingResponse
}

func (w execOutputWriter) Write(p []byte) (int, error) {
	w.out.mu.Lock()
	defer w.out.mu.Unlock()
	written := 0
	for written < len(p) {
		if w.out.isClosed {
			return written, io.ErrClosedPipe
		}
		chunk := p[written:min(len(p), written+maxFrameSize)]
		if err := w.out.stream.Send(w.newFrame(chunk, false)); err != nil {
			return written, err
		}
		written += len(chunk)
	}
	return written, nil
}
