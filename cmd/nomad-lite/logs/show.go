package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// showStoredAndStartFollowing shows the stored output of streams, merged by time. With -f it then starts a goroutine
// that follows each stream.
func (p *logPrinter) showStoredAndStartFollowing(ctx context.Context, streams []*outputStream) error {
	files := map[string][]*api.AllocFileInfo{}
	var sources []lineSource
	for i, s := range streams {
		listed, known := files[s.alloc.ID]
		if !known {
			var err error
			if listed, err = p.logDirOf(s).listFiles(ctx); err != nil {
				p.printStreamError(ctx, s, err)
			}
			files[s.alloc.ID] = listed
		}
		if p.options.tailLines < 0 || s.startedAfterCommand {
			sources = append(sources, p.newStoredLineSource(s, logFilesOfStreamOldestFirst(listed, s.taskName, s.streamName)))
			continue
		}
		if i > 0 && streams[i-1].taskInView == s.taskInView {
			continue // lastLinesOfFirstTask has read this stream together with the previous stream of the task
		}
		lines, err := p.lastLinesOfFirstTask(ctx, streams[i:], listed)
		if err != nil {
			return err
		}
		sources = append(sources, newSliceLineSource(lines))
	}
	if err := p.showLinesMergedByTime(ctx, sources); err != nil {
		return err
	}
	if p.options.follow {
		for _, s := range streams {
			p.followGoroutines.Go(func() { p.followStreamUntilAllocEnded(ctx, s) })
		}
	}
	return nil
}

func (p *logPrinter) logDirOf(s *outputStream) allocLogDir {
	return allocLogDir{client: p.client, alloc: s.alloc}
}

// printStreamError prints a message that the output of a task cannot be shown, unless ctx has ended.
func (p *logPrinter) printStreamError(ctx context.Context, s *outputStream, err error) {
	if ctx.Err() == nil {
		p.taskView.QueueMessage(apiclient.WrapErrorWithAdvice("output of task "+s.taskInView.Label+" is not shown", err).Error())
	}
}

// newStoredLineSource returns a source of the lines in a stream's files, from the stream's position on. At its end it
// sets the position to the end of the last line.
func (p *logPrinter) newStoredLineSource(s *outputStream, files []logFile) lineSource {
	r := p.newReader(s, files, s.firstUnshownPosition)
	return func(ctx context.Context) (outputLine, error) {
		l, err := r.nextLine(ctx)
		if err == nil {
			return l, nil
		}
		s.firstUnshownPosition = r.nextLinePosition
		if !errors.Is(err, io.EOF) {
			p.printStreamError(ctx, s, err)
		}
		return outputLine{}, io.EOF
	}
}

func (p *logPrinter) newReader(s *outputStream, files []logFile, from streamPosition) *lineReader {
	r := newLineReader(p.logDirOf(s), s, files, from, !p.options.follow || wait.IsClosed(s.allocEnded))
	r.since = p.since
	return r
}

// lastLinesOfFirstTask returns the last tailLines lines of the task of the first stream, from all of its streams, which
// must be the first elements of streams.
func (p *logPrinter) lastLinesOfFirstTask(ctx context.Context, streams []*outputStream, listedFiles []*api.AllocFileInfo) ([]outputLine, error) {
	var sources []lineSource
	for _, s := range streams {
		if s.taskInView != streams[0].taskInView {
			break
		}
		files := logFilesOfStreamOldestFirst(listedFiles, s.taskName, s.streamName)
		lines, end, err := readLastLines(ctx, files, func(from streamPosition) *lineReader { return p.newReader(s, files, from) }, p.options.tailLines)
		if err != nil {
			p.printStreamError(ctx, s, err)
		}
		s.firstUnshownPosition = end
		sources = append(sources, newSliceLineSource(lines))
	}
	return lastMergedLines(ctx, sources, p.options.tailLines)
}

// maxBatchSize is the number of bytes after which showLinesMergedByTime writes the collected lines of one stream.
const maxBatchSize = 64 << 10

// showLinesMergedByTime shows the lines of all sources in the order of their times.
func (p *logPrinter) showLinesMergedByTime(ctx context.Context, sources []lineSource) error {
	var batch []byte
	var stream *outputStream
	flush := func() {
		if len(batch) > 0 {
			p.printLines(stream, batch)
			batch = batch[:0]
		}
	}
	err := mergeLinesByTime(ctx, sources, func(l outputLine) error {
		if l.stream != stream || len(batch) >= maxBatchSize {
			flush()
			stream = l.stream
		}
		at := l.sortTime
		if !l.sortTimeIsArrivalTime {
			at = time.Time{}
		}
		batch = p.appendFormattedLine(batch, at, l.text)
		return ctx.Err()
	})
	flush()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (p *logPrinter) printLines(s *outputStream, lines []byte) {
	if p.showLines != nil {
		p.showLines(s.streamName == api.FSLogNameStderr, lines)
		return
	}
	p.taskView.PrintTaskOutput(s.taskInView, s.streamName == api.FSLogNameStderr, lines)
}

// timestampLayout is the format of -timestamps. It has a fixed width, and milliseconds as the stored arrival times.
const timestampLayout = "2006-01-02T15:04:05.000Z07:00"

// appendFormattedLine appends a line, with a line end and, with -timestamps, the time in front of it. The zero time
// means that the time is unknown.
func (p *logPrinter) appendFormattedLine(b []byte, arrivedAtOrZero time.Time, text []byte) []byte {
	if p.options.printTimestamps {
		if arrivedAtOrZero.IsZero() {
			b = append(b, strings.Repeat(" ", len(time.Now().Format(timestampLayout)))...)
		} else {
			b = arrivedAtOrZero.Local().AppendFormat(b, timestampLayout)
		}
		b = append(b, ' ')
	}
	b = append(b, text...)
	if !bytes.HasSuffix(text, []byte("\n")) {
		b = append(b, '\n')
	}
	return b
}

// maxPartialLineSize is the number of bytes after which an incomplete line is shown.
const maxPartialLineSize = 64 << 10

// errGap means that a followed stream starts after the position up to which the output was shown.
var errGap = errors.New("output is missing")

// followStreamUntilAllocEnded shows new output of a stream until its allocation has ended. It then reads the rest of
// the output from the log files, because a busy agent may not have sent the end of the output.
func (p *logPrinter) followStreamUntilAllocEnded(ctx context.Context, s *outputStream) {
	for {
		err := p.followFrames(ctx, s)
		switch {
		case errors.Is(err, errGap):
		case err != nil:
			p.printStreamError(ctx, s, err)
			return
		default: // the agent can end a stream before the allocation has ended
			select {
			case <-s.allocEnded:
			case <-time.After(time.Second):
			case <-ctx.Done():
				return
			}
		}
		listed, err := p.logDirOf(s).listFiles(ctx)
		switch {
		case apiclient.IsNotFound(err):
			return // the files were removed
		case err != nil:
			p.printStreamError(ctx, s, err)
			return
		}
		ended := wait.IsClosed(s.allocEnded)
		if err := p.showLinesMergedByTime(ctx, []lineSource{p.newStoredLineSource(s, logFilesOfStreamOldestFirst(listed, s.taskName, s.streamName))}); err != nil || ended {
			return
		}
	}
}

// followFrames shows the frames of new output that the agent sends, until the allocation has ended or the agent ends the
// stream. It returns errGap if the agent does not send the output that follows the stream's position.
func (p *logPrinter) followFrames(ctx context.Context, s *outputStream) error {
	if wait.IsClosed(s.allocEnded) {
		return nil
	}
	listed, err := p.logDirOf(s).listFiles(ctx)
	if err != nil {
		return err
	}
	offset := s.firstUnshownPosition.byteOffset
	for _, f := range logFilesOfStreamOldestFirst(listed, s.taskName, s.streamName) {
		if f.rotationIndex < s.firstUnshownPosition.rotationIndex {
			offset += f.sizeBytes
		}
	}
	f := frameFollower{printer: p, stream: s, endOfReceivedOutput: s.firstUnshownPosition}
	request := streaming.LogRequest{Alloc: s.alloc, Task: s.taskName, Stream: s.streamName, Follow: true, TaskEnded: s.allocEnded}
	err = request.FollowFramesUntilTaskEnded(ctx, p.client, offset, f.printCompleteLinesOfFrame)
	if ctx.Err() != nil {
		f.printAndClearPartialLine()
	}
	return err
}

// frameFollower prints the lines in the frames of new output of a stream.
type frameFollower struct {
	printer             *logPrinter
	stream              *outputStream
	endOfReceivedOutput streamPosition // position after the last received output
	hasReachedNewOutput bool           // frames have reached endOfReceivedOutput, so further frames are new output
	partialLine         []byte         // received start of a line whose end was not received
}

// printCompleteLinesOfFrame prints the complete lines of a frame, and keeps the rest in partialLine. It skips output
// that was shown before the stream was followed.
func (f *frameFollower) printCompleteLinesOfFrame(frame *api.StreamFrame) error {
	s := f.stream
	index, ok := logfile.Index(path.Base(frame.File), logfile.Prefix(s.taskName, s.streamName))
	if !ok || len(frame.Data) == 0 {
		return nil
	}
	start, end, data := streamPosition{index, frame.Offset - int64(len(frame.Data))}, streamPosition{index, frame.Offset}, frame.Data
	if !f.hasReachedNewOutput {
		switch {
		case start.compare(f.endOfReceivedOutput) > 0:
			return errGap
		case end.compare(f.endOfReceivedOutput) <= 0:
			return nil
		case index == f.endOfReceivedOutput.rotationIndex:
			data = data[f.endOfReceivedOutput.byteOffset-start.byteOffset:]
		}
		f.hasReachedNewOutput = true
	}
	if index != f.endOfReceivedOutput.rotationIndex {
		f.printAndClearPartialLine() // a line does not continue in the next log file
	}
	f.endOfReceivedOutput = end
	f.partialLine = append(f.partialLine, data...)
	complete := bytes.LastIndexByte(f.partialLine, '\n') + 1
	if len(f.partialLine)-complete >= maxPartialLineSize {
		complete = len(f.partialLine)
	}
	f.printLinesWithCurrentTime(f.partialLine[:complete])
	f.partialLine = append([]byte(nil), f.partialLine[complete:]...)
	s.firstUnshownPosition = streamPosition{index, end.byteOffset - int64(len(f.partialLine))}
	return nil
}

// printAndClearPartialLine prints partialLine as a line.
func (f *frameFollower) printAndClearPartialLine() {
	f.printLinesWithCurrentTime(f.partialLine)
	f.partialLine = nil
	f.stream.firstUnshownPosition = f.endOfReceivedOutput
}

func (f *frameFollower) printLinesWithCurrentTime(text []byte) {
	now := time.Now()
	var lines []byte
	for text := range bytes.Lines(text) {
		lines = f.printer.appendFormattedLine(lines, now, text)
	}
	if len(lines) > 0 {
		f.printer.printLines(f.stream, lines)
	}
}
