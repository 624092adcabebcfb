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

// Indexes of the output streams of a container.
const (
	stdoutStream = iota
	stderrStream
)

// maxAtomicWrite is PIPE_BUF, the number of bytes up to which a write to a FIFO is atomic: if the
// process is killed, all bytes are written or none.
const maxAtomicWrite = 4096

// engineChunk is the size at which the engine splits long lines.
const engineChunk = 16 << 10

// logPump copies the output of one container from the engine's log to the FIFOs of the host. It
// stores the position after each write, so that a later plugin process continues at the same byte.
type logPump struct {
	engine        untypedEngineClient
	containerID   string
	hasTTY        bool
	start         *sdk.StartRequest
	positionFile  *positionFile
	bootTimeNanos func() int64 // bootUnixNanos, except in tests

	outputFiles     [2]*os.File
	resumePositions [2]streamPosition // positions up to which this connection must skip output
	pendingByStream [2]pendingOutput
}

// pendingOutput is output of one stream that was received and is not yet written.
type pendingOutput struct {
	data                 []byte
	positionAfterData    streamPosition // position of the stream after the bytes of data
	lastReceivedPosition streamPosition // position after the last received message, without WrittenBytesOfNextMessage and BootTimeNanos
}

// outputReaderTimeout is how long a start waits for a reader of the task's output, see [process.OpenOutput]. A task that runs waits
// for as long as there is none.
const outputReaderTimeout = 30 * time.Second

// openOutputFIFOs opens the output files of the task, and blocks until the host reads them.
func (p *logPump) openOutputFIFOs(ctx context.Context) (err error) {
	if p.outputFiles[stdoutStream], p.outputFiles[stderrStream], err = process.OpenOutput(ctx, p.start); err != nil {
		return fmt.Errorf("open the output of the task: %w", err)
	}
	return nil
}

func (p *logPump) closeOutputFIFOs() {
	for i, f := range p.outputFiles {
		if f != nil {
			f.Close()
		}
		p.outputFiles[i] = nil
	}
}

// copyUntilExit copies output until the container has exited and all of its output is written, or
// ctx ends. hasExited reports whether the container no longer runs.
func (p *logPump) copyUntilExit(ctx context.Context, hasExited func() bool) {
	defer p.closeOutputFIFOs()
	if p.outputFiles[stdoutStream] == nil {
		if err := p.openOutputFIFOs(ctx); err != nil {
			if ctx.Err() == nil {
				p.start.Logger().Error("the output of the task is lost", "error", err)
			}
			return
		}
	}
	const minDelay, maxDelay = 20 * time.Millisecond, 2 * time.Second
	delay := minDelay
	for ctx.Err() == nil {
		exited := hasExited() // read before the copy, because output that is written after the copy needs another copy
		copied, err := p.copyStream(ctx, !exited)
		switch {
		case err == nil && exited, isContainerGone(err):
			return
		case cerrdefs.IsNotImplemented(err): // the engine cannot read back the configured log driver
			p.start.EventOnce("The output of the task is not collected: its log driver cannot be read")
			return
		case err != nil && ctx.Err() == nil:
			p.start.Logger().Debug("the stream of the container's output broke off, connecting again", "error", err)
		}
		if copied || err == nil { // a stream that ends without an error means that the container has exited or the engine shuts down
			delay = minDelay
		}
		select {
		case <-time.After(delay):
			delay = min(2*delay, maxDelay)
		case <-ctx.Done():
		}
	}
}

// copyStream copies output from the stored positions until the stream ends. The end of the stream is an
// error unless the engine has closed the stream. It reports whether it has copied anything.
func (p *logPump) copyStream(ctx context.Context, follow bool) (copied bool, err error) {
	for stream := range p.resumePositions {
		position := p.positionFile.loadPosition(stream)
		p.resumePositions[stream], p.pendingByStream[stream] = position, pendingOutput{lastReceivedPosition: streamPosition{NewestMessageTimeNanos: position.NewestMessageTimeNanos}}
	}
	boot := p.bootTimeNanos()
	first := p.resumePositions[stdoutStream].earliestNanosOfNextMessage(boot)
	if !p.hasTTY {
		first = min(first, p.resumePositions[stderrStream].earliestNanosOfNextMessage(boot))
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
		if p.hasTTY {
			message, err = readTerminalMessage(r, message[:0])
		} else {
			stream, message, err = readStreamFrame(r, message[:0])
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
		if err := p.addUnwrittenPartOfMessage(ctx, stream, at, text); err != nil {
			return copied, err
		}
	}
}

// readStreamFrame reads one frame of the engine's stream, in which frames of stdout and stderr alternate.
func readStreamFrame(r *bufio.Reader, buffer []byte) (stream int, _ []byte, err error) {
	var header [8]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, buffer, err
	}
	size := binary.BigEndian.Uint32(header[4:])
	const maxFrame = 4 << 20 // bytes; the engine's frames are far smaller
	if size > maxFrame {
		return 0, buffer, fmt.Errorf("a frame of %d bytes in the engine's stream of output", size)
	}
	if cap(buffer) < int(size) {
		buffer = make([]byte, size)
	}
	buffer = buffer[:size]
	if _, err := io.ReadFull(r, buffer); err != nil {
		return 0, buffer, io.ErrUnexpectedEOF
	}
	switch header[0] {
	case 1:
		return stdoutStream, buffer, nil
	case 2:
		return stderrStream, buffer, nil
	}
	return 0, buffer, fmt.Errorf("the engine reports in the stream of output: %s", bytes.TrimSpace(buffer))
}

// readTerminalMessage reads one message of a container with a terminal, whose stream has no frames: a
// timestamp and a line, or a timestamp and a part of a long line.
func readTerminalMessage(r *bufio.Reader, buffer []byte) ([]byte, error) {
	textStart := -1
	for textStart < 0 || len(buffer)-textStart < engineChunk {
		c, err := r.ReadByte()
		if err != nil {
			if len(buffer) > 0 && errors.Is(err, io.EOF) {
				return buffer, nil
			}
			return buffer, err
		}
		buffer = append(buffer, c)
		if c == ' ' && textStart < 0 {
			textStart = len(buffer)
		}
		if c == '\n' {
			break
		}
	}
	return buffer, nil
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

// addUnwrittenPartOfMessage adds a message to the pending output, except the part that an earlier connection has
// written.
func (p *logPump) addUnwrittenPartOfMessage(ctx context.Context, stream int, timeNanoseconds int64, text []byte) error {
	b, resume := &p.pendingByStream[stream], &p.resumePositions[stream]
	if b.lastReceivedPosition.MessageTimeNanos != timeNanoseconds {
		b.lastReceivedPosition.MessageTimeNanos, b.lastReceivedPosition.WrittenMessagesAtTime = timeNanoseconds, 0
	}
	index := b.lastReceivedPosition.WrittenMessagesAtTime
	b.lastReceivedPosition.WrittenMessagesAtTime++
	skip := 0
	if resume.MessageTimeNanos != 0 {
		// The engine sends the log from the first message that is not older than the position. If
		// the clock was set back, that message is before the position. A message with a greater
		// time than all messages up to the position means that the position is no longer in the
		// log.
		switch {
		case timeNanoseconds > resume.NewestMessageTimeNanos:
		case timeNanoseconds == resume.MessageTimeNanos && index == resume.WrittenMessagesAtTime:
			skip = int(min(resume.WrittenBytesOfNextMessage, uint64(len(text))))
		case timeNanoseconds == resume.MessageTimeNanos && index+1 == resume.WrittenMessagesAtTime && resume.WrittenBytesOfNextMessage == 0:
			*resume = streamPosition{} // the next message is new, also if the clock was set back before it
			return nil
		default:
			return nil
		}
		*resume = streamPosition{}
	}
	b.lastReceivedPosition.NewestMessageTimeNanos = max(b.lastReceivedPosition.NewestMessageTimeNanos, timeNanoseconds)
	for sent := skip; ; {
		room := maxAtomicWrite - len(b.data)
		if len(text)-sent <= room {
			b.data = append(b.data, text[sent:]...)
			b.positionAfterData = streamPosition{MessageTimeNanos: timeNanoseconds, WrittenMessagesAtTime: index + 1, NewestMessageTimeNanos: b.lastReceivedPosition.NewestMessageTimeNanos}
			return nil
		}
		b.data = append(b.data, text[sent:sent+room]...)
		sent += room
		b.positionAfterData = streamPosition{MessageTimeNanos: timeNanoseconds, WrittenMessagesAtTime: index, WrittenBytesOfNextMessage: uint64(sent), NewestMessageTimeNanos: b.lastReceivedPosition.NewestMessageTimeNanos}
		if err := p.flushStream(ctx, stream); err != nil {
			return err
		}
	}
}

func (p *logPump) flushAll(ctx context.Context) error {
	return errors.Join(p.flushStream(ctx, stdoutStream), p.flushStream(ctx, stderrStream))
}

// flushStream writes at most maxAtomicWrite bytes, and stores the position after them. If the
// host has closed its end of the FIFO, flushStream waits until the host opens it again.
func (p *logPump) flushStream(ctx context.Context, stream int) error {
	b := &p.pendingByStream[stream]
	if len(b.data) == 0 {
		return nil
	}
	for {
		if p.outputFiles[stream] == nil {
			if err := p.openOutputFIFOs(ctx); err != nil {
				return err
			}
		}
		f := p.outputFiles[stream]
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
		p.closeOutputFIFOs()
	}
	b.positionAfterData.BootTimeNanos = p.bootTimeNanos()
	p.positionFile.storePosition(stream, b.positionAfterData)
	b.data = b.data[:0]
	return nil
}
