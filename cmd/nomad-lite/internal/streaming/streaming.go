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

// FrameReader reads the frames of a stream of Nomad's Go client, and calls OnData with the data of each frame, or
// OnFrame with the frame.
//
// The Go client has a frame reader of its own, which loses the error of a stream that breaks while frames are queued,
// and then blocks forever.
type FrameReader struct {
	OnData      func([]byte) error
	OnFrame     func(*api.StreamFrame) error // if set, it is called instead of OnData
	onIdle      func() error                 // called whenever no frame has arrived for idleDelay
	writerEnded <-chan struct{}              // closed when the writer of the stream's file has ended; can be nil
}

// idleDelay is the time without a frame after which FrameReader assumes that it has received all existing output. A
// Nomad client buffers output for 200 ms before it sends the output.
const idleDelay = 300 * time.Millisecond

// ReadFrames reads frames until the stream ends, or until ctx ends, which is not an error. After
// writerEnded is closed, Read returns when no frame has arrived for idleDelay.
func (r FrameReader) ReadFrames(ctx context.Context, frames <-chan *api.StreamFrame, errs <-chan error) error {
	if frames == nil {
		return IgnoreStreamEnd(ctx, <-errs)
	}
	silence := time.NewTimer(idleDelay)
	defer silence.Stop()
	ended := false
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				return r.deliverQueuedFrames(ctx, nil, errs)
			}
			if err := r.deliverFrame(frame); err != nil {
				return err
			}
			silence.Reset(idleDelay)
		case err := <-errs:
			return r.deliverQueuedFrames(ctx, frames, newErrorChannel(err))
		case <-silence.C:
			if r.onIdle != nil {
				if err := r.onIdle(); err != nil {
					return err
				}
			}
			if ended {
				return nil
			}
		case <-r.writerEnded:
			r.writerEnded, ended = nil, true
			silence.Reset(idleDelay)
		case <-ctx.Done():
			return nil
		}
	}
}

// endOfRights starts the event of the last frame of a stream whose token has ended, or lacks the right now.
const endOfRights = "Permission denied"

func (r FrameReader) deliverFrame(frame *api.StreamFrame) error {
	if strings.HasPrefix(frame.FileEvent, endOfRights) {
		return errors.New(frame.FileEvent)
	}
	if r.OnFrame != nil {
		return r.OnFrame(frame)
	}
	return r.OnData(frame.Data)
}

// deliverQueuedFrames delivers the queued frames, and returns the error of the stream.
func (r FrameReader) deliverQueuedFrames(ctx context.Context, frames <-chan *api.StreamFrame, errs <-chan error) error {
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				frames = nil
				continue
			}
			if err := r.deliverFrame(frame); err != nil {
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

func newErrorChannel(err error) <-chan error {
	errs := make(chan error, 1)
	errs <- err
	return errs
}

// IgnoreStreamEnd returns nil if err only marks the end of a stream or follows from the end of ctx, and otherwise the
// error of RewriteBrokenStreamError.
func IgnoreStreamEnd(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return RewriteBrokenStreamError(err)
}

// RewriteBrokenStreamError returns an error that says that the connection broke, if err is the Go client's error about
// bad JSON or an unexpected end. It returns other errors unchanged.
func RewriteBrokenStreamError(err error) error {
	if text := err.Error(); strings.HasPrefix(text, "failed to decode") || strings.HasSuffix(text, io.ErrUnexpectedEOF.Error()) {
		return errors.New("the connection to the agent broke")
	}
	return err
}

// tailBuffer writes only the last lines of the data that it receives before the first flush, and all data that it
// receives later.
type tailBuffer struct {
	maxLines     int // number of last lines that are written
	flushAtBytes int // number of buffered bytes that causes a flush
	writeOutput  func([]byte) error
	buffer       []byte
	isFlushed    bool // flush was called, so that data is no longer buffered
}

func (t *tailBuffer) addData(data []byte) error {
	if t.isFlushed {
		return t.writeOutput(data)
	}
	t.buffer = append(t.buffer, data...)
	if len(t.buffer) >= t.flushAtBytes {
		return t.flush()
	}
	return nil
}

// flush writes the last lines of the buffered data, and ends the buffering.
func (t *tailBuffer) flush() error {
	data := LastLines(t.buffer, t.maxLines)
	t.isFlushed, t.buffer = true, nil
	if len(data) == 0 {
		return nil
	}
	return t.writeOutput(data)
}

// LastLines returns the last n lines of a text, whose last line can lack a line end.
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
