package driverwire

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
)

func TestExecStreaming(t *testing.T) {
	t.Run("input, output and exit", func(t *testing.T) {
		f := &fakeDriver{execFunc: func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
			in, err := io.ReadAll(e.Stdin)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(e.Stdout, "out:%s", in)
			fmt.Fprint(e.Stderr, "err")
			return &driver.ExitResult{ExitCode: 3, Signal: 9, OOMKilled: true}, nil
		}}
		d, _ := newClientOf(t, f)
		var stdout, stderr bytes.Buffer
		exitResult, err := d.ExecTaskStreaming(t.Context(), "id", driver.Exec{
			Command: []string{"cat", "-"}, TTY: true, Stdin: strings.NewReader("in"), Stdout: &stdout, Stderr: &stderr,
		})
		expectEqual(t, "exit", []any{exitResult, err}, []any{&driver.ExitResult{ExitCode: 3, Signal: 9, OOMKilled: true}, nil})
		expectEqual(t, "call", f.lastCall(), []any{"ExecTaskStreaming", "id", []string{"cat", "-"}, true})
		expectEqual(t, "output", []string{stdout.String(), stderr.String()}, []string{"out:in", "err"})
	})

	t.Run("nobody gives and nobody takes", func(t *testing.T) {
		d, _ := newClientOf(t, &fakeDriver{execFunc: func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
			in, err := io.ReadAll(e.Stdin)
			if len(in) > 0 || err != nil {
				return nil, fmt.Errorf("got input %q, %v", in, err)
			}
			fmt.Fprint(e.Stdout, "into the void")
			return nil, nil
		}})
		exitResult, err := d.ExecTaskStreaming(t.Context(), "id", driver.Exec{})
		expectEqual(t, "exit", []any{exitResult, err}, []any{&driver.ExitResult{}, nil})
	})

	t.Run("every byte arrives in order", func(t *testing.T) {
		d, _ := newClientOf(t, &fakeDriver{execFunc: func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
			_, err := io.Copy(e.Stdout, e.Stdin)
			return &driver.ExitResult{}, err
		}})
		data := make([]byte, 3<<20)
		r := rand.NewChaCha8([32]byte{})
		_, _ = r.Read(data)
		var stdout bytes.Buffer
		if _, err := d.ExecTaskStreaming(t.Context(), "id", driver.Exec{Stdin: bytes.NewReader(data), Stdout: &stdout}); err != nil {
			t.Fatal(err)
		}
		if sha256.Sum256(data) != sha256.Sum256(stdout.Bytes()) {
			t.Error("they are not the same")
		}
	})

	t.Run("sizes of the terminal", func(t *testing.T) {
		sizes := make(chan driver.TerminalSize, 1)
		d, _ := newClientOf(t, &fakeDriver{execFunc: func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
			size := <-e.Resize
			fmt.Fprintf(e.Stdout, "%dx%d", size.Height, size.Width)
			return &driver.ExitResult{}, nil
		}})
		sizes <- driver.TerminalSize{Height: 24, Width: 80}
		close(sizes)
		var stdout bytes.Buffer
		if _, err := d.ExecTaskStreaming(t.Context(), "id", driver.Exec{TTY: true, Stdout: &stdout, Resize: sizes}); err != nil {
			t.Fatal(err)
		}
		expectEqual(t, "size", stdout.String(), "24x80")
	})

	t.Run("the command ends before its input", func(t *testing.T) {
		d, _ := newClientOf(t, &fakeDriver{execFunc: func(context.Context, driver.Exec) (*driver.ExitResult, error) { return &driver.ExitResult{}, nil }})
		stdin, input := io.Pipe()
		defer input.Close()
		if _, err := d.ExecTaskStreaming(t.Context(), "id", driver.Exec{Stdin: stdin}); err != nil {
			t.Error(err)
		}
	})

	t.Run("the driver's own problem", func(t *testing.T) {
		for name, exec := range map[string]func(context.Context, driver.Exec) (*driver.ExitResult, error){
			"as an error": func(context.Context, driver.Exec) (*driver.ExitResult, error) { return nil, errors.New("no such file") },
			"in the result": func(context.Context, driver.Exec) (*driver.ExitResult, error) {
				return &driver.ExitResult{Err: errors.New("no such file")}, nil
			},
			"after the exit": func(context.Context, driver.Exec) (*driver.ExitResult, error) {
				return &driver.ExitResult{}, errors.New("no such file")
			},
		} {
			d, _ := newClientOf(t, &fakeDriver{execFunc: exec})
			_, err := d.ExecTaskStreaming(t.Context(), "id", driver.Exec{})
			if err == nil || err.Error() != "no such file" {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})

	// killed is a fake command that runs until it is killed.
	killed := func() (*fakeDriver, chan error) {
		causes := make(chan error, 1)
		return &fakeDriver{execFunc: func(ctx context.Context, e driver.Exec) (*driver.ExitResult, error) {
			fmt.Fprint(e.Stdout, "up")
			<-ctx.Done()
			causes <- ctx.Err()
			return nil, ctx.Err()
		}}, causes
	}

	t.Run("the end of the caller kills the command", func(t *testing.T) {
		f, causes := killed()
		d, _ := newClientOf(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := d.ExecTaskStreaming(ctx, "id", driver.Exec{Stdout: writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })})
		if err != context.Canceled {
			t.Errorf("got %v", err)
		}
		<-causes
	})

	t.Run("a reader that fails kills the command", func(t *testing.T) {
		f, causes := killed()
		d, _ := newClientOf(t, f)
		_, err := d.ExecTaskStreaming(t.Context(), "id", driver.Exec{Stdin: iotest.ErrReader(errors.New("websocket gone"))})
		if err == nil || err.Error() != "exec task: read stdin: websocket gone" {
			t.Errorf("got %v", err)
		}
		if f.wasCalled("ExecTaskStreaming") {
			<-causes
		}
	})

	t.Run("a writer that fails kills the command", func(t *testing.T) {
		f, causes := killed()
		d, _ := newClientOf(t, f)
		gone := errors.New("websocket gone")
		_, err := d.ExecTaskStreaming(t.Context(), "id", driver.Exec{Stdout: writerFunc(func([]byte) (int, error) { return 0, gone })})
		if !errors.Is(err, gone) || err.Error() != "exec task: write stdout: websocket gone" {
			t.Errorf("got %v", err)
		}
		<-causes
	})

	t.Run("a driver that leaves a writer behind", func(t *testing.T) {
		late := make(chan error)
		returned := make(chan struct{})
		d, _ := newClientOf(t, &fakeDriver{execFunc: func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
			go func() {
				<-returned
				_, err := fmt.Fprint(e.Stdout, "late")
				late <- err
			}()
			return &driver.ExitResult{}, nil
		}})
		if _, err := d.ExecTaskStreaming(t.Context(), "id", driver.Exec{}); err != nil {
			t.Fatal(err)
		}
		close(returned)
		if err := <-late; err == nil {
			t.Error("it could write")
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// receiveAllFrames returns all frames that the server sends.
func receiveAllFrames(t *testing.T, stream execClientStream) ([]*driverpb.ExecTaskStreamingResponse, error) {
	t.Helper()
	var all []*driverpb.ExecTaskStreamingResponse
	for {
		frame, err := stream.Recv()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, frame)
	}
}

// TestExecFrames checks the order and content of the frames of a streaming exec, which
// other hosts send and read.
func TestExecFrames(t *testing.T) {
	setup := &driverpb.ExecTaskStreamingRequest{Setup: &driverpb.ExecTaskStreamingRequest_Setup{TaskId: "id", Command: []string{"x"}}}
	start := func(t *testing.T, exec func(context.Context, driver.Exec) (*driver.ExitResult, error), first *driverpb.ExecTaskStreamingRequest) execClientStream {
		t.Helper()
		p := serveOnSocket(t, func(s grpc.ServiceRegistrar) { RegisterServer(s, &fakeDriver{execFunc: exec}) })
		stream, err := driverpb.NewDriverClient(p.conn).ExecTaskStreaming(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(first); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	cat := func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
		_, err := io.Copy(e.Stdout, e.Stdin)
		return &driver.ExitResult{ExitCode: 4}, err
	}
	op := func(data string, close bool) *driverpb.ExecTaskStreamingIOOperation {
		return &driverpb.ExecTaskStreamingIOOperation{Data: []byte(data), Close: close}
	}

	t.Run("a whole session", func(t *testing.T) {
		stream := start(t, cat, setup)
		for _, frame := range []*driverpb.ExecTaskStreamingRequest{
			{}, // heartbeat
			{Stdin: op("hello", false)},
			{TtySize: &driverpb.ExecTaskStreamingRequest_TerminalSize{Height: 1, Width: 2}},
			{TtySize: &driverpb.ExecTaskStreamingRequest_TerminalSize{Height: 3, Width: 4}},
			{Stdin: op("", false)},
			{Stdin: op("", true)},
		} {
			if err := stream.Send(frame); err != nil {
				t.Fatal(err)
			}
		}
		got, err := receiveAllFrames(t, stream)
		if err != nil {
			t.Fatal(err)
		}
		want := []*driverpb.ExecTaskStreamingResponse{
			{Stdout: op("hello", false)},
			{Stdout: op("", true)},
			{Stderr: op("", true)},
			{Exited: true, Result: &driverpb.ExitResult{ExitCode: 4}},
		}
		if len(got) != len(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		for i := range want {
			if !proto.Equal(got[i], want[i]) {
				t.Errorf("frame %d: got %v, want %v", i, got[i], want[i])
			}
		}
	})
	t.Run("a half-close ends the input too", func(t *testing.T) {
		stream := start(t, cat, setup)
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if got, err := receiveAllFrames(t, stream); err != nil || len(got) != 3 {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("no setup first", func(t *testing.T) {
		stream := start(t, cat, &driverpb.ExecTaskStreamingRequest{Stdin: op("x", false)})
		_, err := receiveAllFrames(t, stream)
		if err == nil || !strings.Contains(err.Error(), "first message should always be setup") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a second setup", func(t *testing.T) {
		stream := start(t, func(ctx context.Context, _ driver.Exec) (*driver.ExitResult, error) {
			<-ctx.Done()
			return &driver.ExitResult{Signal: 9}, nil
		}, setup)
		if err := stream.Send(setup); err != nil {
			t.Fatal(err)
		}
		_, err := receiveAllFrames(t, stream)
		if err == nil || !strings.Contains(err.Error(), "unexpected message type: ") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("input that nobody reads", func(t *testing.T) {
		stream := start(t, func(context.Context, driver.Exec) (*driver.ExitResult, error) { return &driver.ExitResult{}, nil }, setup)
		for range 100 {
			if stream.Send(&driverpb.ExecTaskStreamingRequest{Stdin: op(strings.Repeat("x", 1<<16), false)}) != nil {
				break
			}
		}
		if got, err := receiveAllFrames(t, stream); err != nil || !got[len(got)-1].GetExited() {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

// TestExecOfMalformedServers runs the client against servers that send unexpected frames.
func TestExecOfMalformedServers(t *testing.T) {
	exited := &driverpb.ExecTaskStreamingResponse{Exited: true, Result: &driverpb.ExitResult{ExitCode: 1}}
	out := &driverpb.ExecTaskStreamingResponse{Stdout: &driverpb.ExecTaskStreamingIOOperation{Data: []byte("x")}}
	tests := []struct {
		name   string
		exec   func(execServerStream) error
		exit   *driver.ExitResult // nil means an error
		stdout string
	}{
		{"output after the exit", func(s execServerStream) error {
			return errors.Join(s.Send(exited), s.Send(out))
		}, &driver.ExitResult{ExitCode: 1}, "x"},
		{"an error after the exit", func(s execServerStream) error {
			return errors.Join(s.Send(exited), errors.New("too late"))
		}, &driver.ExitResult{ExitCode: 1}, ""},
		{"no end after the exit", func(s execServerStream) error {
			err := s.Send(exited)
			<-s.Context().Done()
			return err
		}, &driver.ExitResult{ExitCode: 1}, ""},
		{"an exit without a status", func(s execServerStream) error {
			return s.Send(&driverpb.ExecTaskStreamingResponse{Exited: true})
		}, &driver.ExitResult{Err: errNoExitResult}, ""},
		{"empty frames", func(s execServerStream) error {
			return errors.Join(s.Send(&driverpb.ExecTaskStreamingResponse{}), s.Send(exited))
		}, &driver.ExitResult{ExitCode: 1}, ""},
		{"an end without an exit", func(execServerStream) error { return nil }, nil, ""},
	}
	for _, tt := range tests {
		runWithMalformedServer(t, tt.name, &malformedServer{execHandler: tt.exec}, func(t *testing.T, d driver.Driver, _ *fakePluginProcess) {
			var stdout bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			exitResult, err := d.ExecTaskStreaming(ctx, "id", driver.Exec{Stdout: &stdout})
			if tt.exit == nil {
				if err == nil || !strings.Contains(err.Error(), errNoExitResult.Error()) {
					t.Errorf("got %+v, %v", exitResult, err)
				}
				return
			}
			expectEqual(t, "exit", []any{exitResult, err}, []any{tt.exit, nil})
			expectEqual(t, "stdout", stdout.String(), tt.stdout)
		})
	}
}
