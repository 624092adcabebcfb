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

// untilInterrupted is a context that ends when the user has seen enough. What a
// command followed has then come to its end, and not failed.
func untilInterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, ends()...)
}

// ends are the signals that end a command. Those that were ignored at its start, as
// under nohup, stay ignored.
func ends() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	return slices.DeleteFunc(all, signal.Ignored)
}

// frameReader hands on what arrives on a stream of the Go client.
//
// The reader of the Go client loses the error of a stream that breaks while
// frames are waiting, and then blocks for ever.
type frameReader struct {
	each  func([]byte) error
	quiet func() error    // called when nothing has arrived for a while, again and again
	over  <-chan struct{} // closed when nothing more is going to be written; or nil
}

// settled is how long nothing arrives after all that there was has arrived. A
// Nomad client collects what it sends for 200 ms.
const settled = 300 * time.Millisecond

// read returns when the stream has ended, when what it was for is over, or when
// ctx ends, which is no error.
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

// end hands on the frames that are waiting, and returns the error that there is.
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

// streamError leaves out what is no error of a stream: its end.
func streamError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return broken(err)
}

// broken says plainly what the Go client calls bad JSON, or an end that it did not
// expect.
func broken(err error) error {
	if text := err.Error(); strings.HasPrefix(text, "failed to decode") || strings.HasSuffix(text, io.ErrUnexpectedEOF.Error()) {
		return errors.New("the connection to the agent broke")
	}
	return err
}

// A tail lets through the last lines of what is there already, and all that
// comes later.
type tail struct {
	lines int // how many
	most  int // more than so many bytes need not be held back
	out   func([]byte) error
	held  []byte
	open  bool // it holds nothing back any more
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

// release lets go of what is held back, of which the last lines are shown. It may
// be called again.
func (t *tail) release() error {
	data := lastLines(t.held, t.lines)
	t.open, t.held = true, nil
	if len(data) == 0 {
		return nil
	}
	return t.out(data)
}

// lastLines are the last n lines of a text, of which the last need not have an
// end.
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
