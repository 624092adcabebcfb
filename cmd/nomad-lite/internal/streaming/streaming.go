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

// FrameReader calls OnData with the data of each frame of a stream of the Go client, or OnFrame with the
// frame.
//
// The frame reader of the Go client loses the error of a stream that breaks while frames are
// queued, and then blocks forever.
type FrameReader struct {
	OnData      func([]byte) error
	OnFrame     func(*api.StreamFrame) error // if set, it is called instead of OnData
	onIdle      func() error                 // called whenever no frame has arrived for idleDelay
	outputEnded <-chan struct{}              // closed when nothing more will be written to the stream's file; can be nil
}

// idleDelay is the time without a frame after which the existing output counts as received. A Nomad
// client buffers output for 200 ms before it sends it.
const idleDelay = 300 * time.Millisecond

// Read reads frames until the stream ends, or until ctx ends, which is not an error. After
// outputEnded is closed, Read returns when no frame has arrived for idleDelay.
func (r FrameReader) Read(ctx context.Context, frames <-chan *api.StreamFrame, errs <-chan error) error {
	if frames == nil {
		return IgnoreStreamEnd(ctx, <-errs)
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
			if err := r.handle(frame); err != nil {
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

func (r FrameReader) handle(frame *api.StreamFrame) error {
	if r.OnFrame != nil {
		return r.OnFrame(frame)
	}
	return r.OnData(frame.Data)
}

// end calls OnData or OnFrame for the frames that are queued, and returns the error of the stream.
func (r FrameReader) end(ctx context.Context, frames <-chan *api.StreamFrame, errs <-chan error) error {
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				frames = nil
				continue
			}
			if err := r.handle(frame); err != nil {
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
		return IgnoreStreamEnd(ctx, err)
	default:
		return nil
	}
}

func errorChannel(err error) <-chan error {
	errs := make(chan error, 1)
	errs <- err
	return errs
}

// IgnoreStreamEnd returns nil for errors that only mark the end of a stream.
func IgnoreStreamEnd(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return DescribeStreamError(err)
}

// DescribeStreamError describes a broken stream, which the Go client reports as bad JSON or an
// unexpected end.
func DescribeStreamError(err error) error {
	if text := err.Error(); strings.HasPrefix(text, "failed to decode") || strings.HasSuffix(text, io.ErrUnexpectedEOF.Error()) {
		return errors.New("the connection to the agent broke")
	}
	return err
}

// tailBuffer passes on the last lines of the existing text, and all text that arrives later.
type tailBuffer struct {
	maxLines    int // number of lines
	maxBytes    int // maximum number of bytes that are buffered
	out         func([]byte) error
	buffer      []byte
	passThrough bool // the last lines were written, and later text is no longer buffered
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

// flush writes the last lines of the buffered text. It can be called more than once.
func (t *tailBuffer) flush() error {
	data := LastLines(t.buffer, t.maxLines)
	t.passThrough, t.buffer = true, nil
	if len(data) == 0 {
		return nil
	}
	return t.out(data)
}

// LastLines returns the last n lines of a text. The last line of the text can be unterminated.
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
