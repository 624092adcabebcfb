package streaming

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// FrameReader passes on the frames of a stream of the Go client.
//
// The reader of the Go client loses the error of a stream that breaks while
// frames are waiting, and then blocks for ever.
type FrameReader struct {
	OnData      func([]byte) error
	onIdle      func() error    // called each time nothing has arrived for a while
	outputEnded <-chan struct{} // closed when nothing more will be written; can be nil
}

// idleDelay is the time without a frame after which all existing output has arrived. A Nomad
// client collects output for 200 ms before it sends it.
const idleDelay = 300 * time.Millisecond

// Read returns when the stream has ended, when over is closed, or when ctx ends, which is
// not an error.
func (r FrameReader) Read(ctx context.Context, frames <-chan *api.StreamFrame, errs <-chan error) error {
	if frames == nil {
		return StreamError(ctx, <-errs)
	}
	silence := time.NewTimer(idleDelay)
	defer silence.Stop()
	last := false
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				return r.end(ctx, nil, errs)
			}
			if err := r.OnData(frame.Data); err != nil {
				return err
			}
			silence.Reset(idleDelay)
		case err := <-errs:
			return r.end(ctx, frames, errorChannel(err))
		case <-silence.C:
			if r.onIdle != nil {
				if err := r.onIdle(); err != nil {
					return err
				}
			}
			if last {
				return nil
			}
		case <-r.outputEnded:
			r.outputEnded, last = nil, true
			silence.Reset(idleDelay)
		case <-ctx.Done():
			return nil
		}
	}
}

// end passes on the waiting frames, and returns the error of the stream.
func (r FrameReader) end(ctx context.Context, frames <-chan *api.StreamFrame, errs <-chan error) error {
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				frames = nil
				continue
			}
			if err := r.OnData(frame.Data); err != nil {
				return err
			}
			continue
		default:
		}
		break
	}
	if r.onIdle != nil {
		if err := r.onIdle(); err != nil {
			return err
		}
	}
	select {
	case err := <-errs:
		return StreamError(ctx, err)
	default:
		return nil
	}
}

func errorChannel(err error) <-chan error {
	errs := make(chan error, 1)
	errs <- err
	return errs
}

// StreamError returns nil for errors that only mark the end of a stream.
func StreamError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return DescribeError(err)
}

// DescribeError describes a broken stream, which the Go client reports as bad JSON or an
// unexpected end.
func DescribeError(err error) error {
	if text := err.Error(); strings.HasPrefix(text, "failed to decode") || strings.HasSuffix(text, io.ErrUnexpectedEOF.Error()) {
		return errors.New("the connection to the agent broke")
	}
	return err
}

// A tail passes on the last lines of the existing text, and all later text.
type tailBuffer struct {
	maxLines    int // number of lines
	maxBytes    int // maximum number of bytes held back
	out         func([]byte) error
	buffer      []byte
	passThrough bool // the tail no longer holds text back
}

func (t *tailBuffer) add(data []byte) error {
	if t.passThrough {
		return t.out(data)
	}
	t.buffer = append(t.buffer, data...)
	if len(t.buffer) >= t.maxBytes {
		return t.flush()
	}
	return nil
}

// flush writes the last lines of the text held back. It can be called again.
func (t *tailBuffer) flush() error {
	data := LastLines(t.buffer, t.maxLines)
	t.passThrough, t.buffer = true, nil
	if len(data) == 0 {
		return nil
	}
	return t.out(data)
}

// LastLines returns the last n lines of a text, whose last line can be unterminated.
func LastLines(text []byte, n int) []byte {
	from := len(text)
	for range n {
		if from == 0 {
			break
		}
		from = bytes.LastIndexByte(text[:from-1], '\n') + 1
	}
	return text[from:]
}
