package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// The streams of a container, as indexes.
const (
	stdoutStream = iota
	stderrStream
)

// maxAtomicWrite is the size up to which a write to a FIFO is complete or has not happened
// when the process is killed (PIPE_BUF).
const maxAtomicWrite = 4096

// engineChunk is the size at which the engine splits long lines.
const engineChunk = 16 << 10

// logPump copies the output of one container from the engine's log to the FIFOs of the
// host. It remembers how far it has come, so that another process continues at the same
// byte.
type logPump struct {
	engine      engineRef
	containerID string
	tty         bool
	start       *sdk.StartRequest
	positions   *positionFile
	boot        func() int64 // bootTime

	files  [2]*os.File
	resume [2]streamPosition // resume: what this connection must skip
	buffer [2]pendingOutput
}

// pendingOutput is output that was received and is not yet written.
type pendingOutput struct {
	data     []byte
	position streamPosition // position after data
	received streamPosition // time of the last message, number of messages with that time, and greatest time of a message
}

// open opens the output files of the task, and blocks until the host reads them.
func (p *logPump) open(ctx context.Context) (err error) {
	if p.files[stdoutStream], p.files[stderrStream], err = process.OpenOutput(ctx, p.start); err != nil {
		return fmt.Errorf("open the output of the task: %w", err)
	}
	return nil
}

func (p *logPump) close() {
	for i, f := range p.files {
		if f != nil {
			f.Close()
		}
		p.files[i] = nil
	}
}

// run copies output until the container has exited and all of its output is written, or
// ctx ends. hasExited reports whether the container no longer runs.
func (p *logPump) run(ctx context.Context, hasExited func() bool) {
	defer p.close()
	if p.files[stdoutStream] == nil {
		if err := p.open(ctx); err != nil {
			if ctx.Err() == nil {
				p.start.Logger().Error("the output of the task is lost", "error", err)
			}
			return
		}
	}
	const minDelay, maxDelay = 20 * time.Millisecond, 2 * time.Second
	delay := minDelay
	for ctx.Err() == nil {
		exited := hasExited() // before the copy: output that follows is read by the next copy
		copied, err := p.copy(ctx, !exited)
		switch {
		case err == nil && exited, isGone(err):
			return
		case cerrdefs.IsNotImplemented(err): // the log driver of the task or of the operator
			p.start.EventOnce("The output of the task is not collected: its log driver cannot be read")
			return
		case err != nil && ctx.Err() == nil:
			p.start.Logger().Debug("the stream of the container's output broke off, connecting again", "error", err)
		}
		if copied || err == nil { // after the end of a stream, the container has just exited, or its engine is shutting down
			delay = minDelay
		}
		select {
		case <-time.After(delay):
			delay = min(2*delay, maxDelay)
		case <-ctx.Done():
		}
	}
}

// copy copies output from where the last copy ended until the stream ends, which is an
// error unless the engine has ended the stream. It reports whether it has copied anything.
func (p *logPump) copy(ctx context.Context, follow bool) (copied bool, err error) {
	for stream := range p.resume {
		position := p.positions.load(stream)
		p.resume[stream], p.buffer[stream] = position, pendingOutput{received: streamPosition{Newest: position.Newest}}
	}
	boot := p.boot()
	first := p.resume[stdoutStream].oldestNext(boot)
	if !p.tty {
		first = min(first, p.resume[stderrStream].oldestNext(boot))
	}
	options := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: follow}
	if first > 0 {
		at := time.Unix(0, first)
		options.Since = fmt.Sprintf("%d.%09d", at.Unix(), at.Nanosecond())
	}
	logs, err := p.engine.client().ContainerLogs(ctx, p.containerID, options)
	if err != nil {
		return false, err
	}
	defer logs.Close()
	r := bufio.NewReaderSize(logs, engineChunk)
	var message []byte
	for {
		if r.Buffered() == 0 {
			if err := p.flushAll(ctx); err != nil {
				return copied, err
			}
		}
		var stream int
		if p.tty {
			message, err = readLine(r, message[:0])
		} else {
			stream, message, err = readFrame(r, message[:0])
		}
		if err != nil {
			if flushErr := p.flushAll(ctx); flushErr != nil {
				return copied, flushErr
			}
			if errors.Is(err, io.EOF) {
				return copied, nil
			}
			return copied, err
		}
		at, text, err := splitTimestamp(message)
		if err != nil {
			return copied, err
		}
		copied = true
		if err := p.add(ctx, stream, at, text); err != nil {
			return copied, err
		}
	}
}

// readFrame reads one frame of a stream of both outputs.
func readFrame(r *bufio.Reader, message []byte) (stream int, _ []byte, err error) {
	var header [8]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, message, err
	}
	size := binary.BigEndian.Uint32(header[4:])
	const maxFrame = 4 << 20 // bytes; the engine's frames are far smaller
	if size > maxFrame {
		return 0, message, fmt.Errorf("a frame of %d bytes in the engine's stream of output", size)
	}
	if cap(message) < int(size) {
		message = make([]byte, size)
	}
	message = message[:size]
	if _, err := io.ReadFull(r, message); err != nil {
		return 0, message, io.ErrUnexpectedEOF
	}
	switch header[0] {
	case 1:
		return stdoutStream, message, nil
	case 2:
		return stderrStream, message, nil
	}
	return 0, message, fmt.Errorf("the engine reports in the stream of output: %s", bytes.TrimSpace(message))
}

// readLine reads one message of a terminal, whose stream has no frames: a timestamp and a
// line, or the part of a long line.
func readLine(r *bufio.Reader, message []byte) ([]byte, error) {
	textStart := -1
	for textStart < 0 || len(message)-textStart < engineChunk {
		c, err := r.ReadByte()
		if err != nil {
			if len(message) > 0 && errors.Is(err, io.EOF) {
				return message, nil
			}
			return message, err
		}
		message = append(message, c)
		if c == ' ' && textStart < 0 {
			textStart = len(message)
		}
		if c == '\n' {
			break
		}
	}
	return message, nil
}

func splitTimestamp(message []byte) (nanoseconds int64, text []byte, err error) {
	stamp, text, ok := bytes.Cut(message, []byte(" "))
	if !ok {
		return 0, nil, fmt.Errorf("a line without a time in the engine's stream of output: %s", strconv.QuoteToASCII(string(message[:min(len(message), 40)])))
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return 0, nil, fmt.Errorf("the time of a line in the engine's stream of output: %w", err)
	}
	return at.UnixNano(), text, nil
}

// add adds a message to the output that is to be written, except the part that an earlier
// connection has written.
func (p *logPump) add(ctx context.Context, stream int, at int64, text []byte) error {
	b, resume := &p.buffer[stream], &p.resume[stream]
	if b.received.Time != at {
		b.received.Time, b.received.Count = at, 0
	}
	index := b.received.Count
	b.received.Count++
	skip := 0
	if resume.Time != 0 {
		// The engine sends the log from the first message that is not older than the position. If the clock was set back, that
		// message is before the position. A message newer than all of them follows a position that is no longer in the log.
		switch {
		case at > resume.Newest:
		case at == resume.Time && index == resume.Count:
			skip = int(min(resume.Bytes, uint64(len(text))))
		case at == resume.Time && index+1 == resume.Count && resume.Bytes == 0:
			*resume = streamPosition{} // the next message is new, also if the clock was set back before it
			return nil
		default:
			return nil
		}
		*resume = streamPosition{}
	}
	b.received.Newest = max(b.received.Newest, at)
	for sent := skip; ; {
		room := maxAtomicWrite - len(b.data)
		if len(text)-sent <= room {
			b.data = append(b.data, text[sent:]...)
			b.position = streamPosition{Time: at, Count: index + 1, Newest: b.received.Newest}
			return nil
		}
		b.data = append(b.data, text[sent:sent+room]...)
		sent += room
		b.position = streamPosition{Time: at, Count: index, Bytes: uint64(sent), Newest: b.received.Newest}
		if err := p.flush(ctx, stream); err != nil {
			return err
		}
	}
}

func (p *logPump) flushAll(ctx context.Context) error {
	return errors.Join(p.flush(ctx, stdoutStream), p.flush(ctx, stderrStream))
}

// flush writes at most maxAtomicWrite bytes, and stores the position after them. If the
// host has closed its end of the FIFO, flush waits until the host opens it again.
func (p *logPump) flush(ctx context.Context, stream int) error {
	b := &p.buffer[stream]
	if len(b.data) == 0 {
		return nil
	}
	for {
		f := p.files[stream]
		// The end of ctx ends a write to a FIFO that is full. SetWriteDeadline fails for the null device, which has no
		// deadlines and never blocks, and for a file that is closed.
		stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Now()) })
		_, err := f.Write(b.data)
		stop()
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EPIPE) {
			return fmt.Errorf("write the output of the task: %w", err)
		}
		p.close()
		if err := p.open(ctx); err != nil {
			return err
		}
	}
	b.position.Boot = p.boot()
	p.positions.store(stream, b.position)
	b.data = b.data[:0]
	return nil
}
