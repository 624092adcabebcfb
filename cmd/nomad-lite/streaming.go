package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
)

// untilInterrupted returns a context that ends when the user interrupts the command. A
// command that followed an output has then succeeded.
func untilInterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, ends()...)
}

// ends returns the signals that end a command. Signals that were ignored at its start, as
// under nohup, stay ignored.
func ends() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	return slices.DeleteFunc(all, signal.Ignored)
}

// frameReader passes on the frames of a stream of the Go client.
//
// The reader of the Go client loses the error of a stream that breaks while
// frames are waiting, and then blocks for ever.
type frameReader struct {
	each  func([]byte) error
	quiet func() error    // called each time nothing has arrived for a while
	over  <-chan struct{} // closed when nothing more will be written; can be nil
}

// settled is the time without a frame after which all existing output has arrived. A Nomad
// client collects output for 200 ms before it sends it.
const settled = 300 * time.Millisecond

// read returns when the stream has ended, when over is closed, or when ctx ends, which is
// not an error.
func (r frameReader) read(ctx context.Context, frames <-chan *api.StreamFrame, errs <-chan error) error {
	if frames == nil {
		return streamError(ctx, <-errs)
	}
	silence := time.NewTimer(settled)
	defer silence.Stop()
	last := false
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				return r.end(ctx, nil, errs)
			}
			if err := r.each(frame.Data); err != nil {
				return err
			}
			silence.Reset(settled)
		case err := <-errs:
			return r.end(ctx, frames, oneError(err))
		case <-silence.C:
			if r.quiet != nil {
				if err := r.quiet(); err != nil {
					return err
				}
			}
			if last {
				return nil
			}
		case <-r.over:
			r.over, last = nil, true
			silence.Reset(settled)
		case <-ctx.Done():
			return nil
		}
	}
}

// end passes on the waiting frames, and returns the error of the stream.
func (r frameReader) end(ctx context.Context, frames <-chan *api.StreamFrame, errs <-chan error) error {
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				frames = nil
				continue
			}
			if err := r.each(frame.Data); err != nil {
				return err
			}
			continue
		default:
		}
		break
	}
	if r.quiet != nil {
		if err := r.quiet(); err != nil {
			return err
		}
	}
	select {
	case err := <-errs:
		return streamError(ctx, err)
	default:
		return nil
	}
}

func oneError(err error) <-chan error {
	errs := make(chan error, 1)
	errs <- err
	return errs
}

// streamError returns nil for errors that only mark the end of a stream.
func streamError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return broken(err)
}

// broken describes a broken stream, which the Go client reports as bad JSON or an
// unexpected end.
func broken(err error) error {
	if text := err.Error(); strings.HasPrefix(text, "failed to decode") || strings.HasSuffix(text, io.ErrUnexpectedEOF.Error()) {
		return errors.New("the connection to the agent broke")
	}
	return err
}

// A tail passes on the last lines of the existing text, and all later text.
type tail struct {
	lines int // number of lines
	most  int // maximum number of bytes held back
	out   func([]byte) error
	held  []byte
	open  bool // the tail no longer holds text back
}

func (t *tail) add(data []byte) error {
	if t.open {
		return t.out(data)
	}
	t.held = append(t.held, data...)
	if len(t.held) >= t.most {
		return t.release()
	}
	return nil
}

// release writes the last lines of the text held back. It can be called again.
func (t *tail) release() error {
	data := lastLines(t.held, t.lines)
	t.open, t.held = true, nil
	if len(data) == 0 {
		return nil
	}
	return t.out(data)
}

// lastLines returns the last n lines of a text, whose last line can be unterminated.
func lastLines(text []byte, n int) []byte {
	from := len(text)
	for range n {
		if from == 0 {
			break
		}
		from = bytes.LastIndexByte(text[:from-1], '\n') + 1
	}
	return text[from:]
}
