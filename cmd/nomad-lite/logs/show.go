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
)

// showStreams shows the stored output of streams, merged by time, and starts to follow them with -f.
func (p *logPrinter) showStreams(ctx context.Context, streams []*outputStream) error {
	files := map[string][]*api.AllocFileInfo{}
	var sources []lineSource
	for i, s := range streams {
		listed, known := files[s.alloc.ID]
		if !known {
			var err error
			if listed, err = p.lister(s).list(ctx); err != nil {
				p.reportError(ctx, s, err)
			}
			files[s.alloc.ID] = listed
		}
		if p.o.lines < 0 || s.late {
			sources = append(sources, p.storedLines(s, streamFiles(listed, s.task, s.name)))
			continue
		}
		if i > 0 && streams[i-1].view == s.view {
			continue // the lines of both streams of a task are counted together
		}
		lines, err := p.lastLinesOfTask(ctx, streams[i:], listed)
		if err != nil {
			return err
		}
		sources = append(sources, sliceSource(lines))
	}
	if err := p.showLines(ctx, sources); err != nil {
		return err
	}
	if p.o.follow {
		for _, s := range streams {
			p.followers.Go(func() { p.follow(ctx, s) })
		}
	}
	return nil
}

func (p *logPrinter) lister(s *outputStream) fileLister {
	return fileLister{client: p.client, alloc: s.alloc}
}

// reportError reports that the output of a task cannot be shown.
func (p *logPrinter) reportError(ctx context.Context, s *outputStream, err error) {
	if ctx.Err() == nil {
		p.taskView.PrintMessage(apiclient.WrapError("output of task "+s.view.Label+" is not shown", err).Error())
	}
}

// storedLines returns the lines of a stream's files from the stream's position on, and moves the position
// past each of them.
func (p *logPrinter) storedLines(s *outputStream, files []logFile) lineSource {
	r := p.newReader(s, files, s.position)
	return func(ctx context.Context) (line, error) {
		l, err := r.next(ctx)
		if err == nil {
			return l, nil
		}
		s.position = r.position
		if !errors.Is(err, io.EOF) {
			p.reportError(ctx, s, err)
		}
		return line{}, io.EOF
	}
}

func (p *logPrinter) newReader(s *outputStream, files []logFile, from position) *lineReader {
	r := newLineReader(p.lister(s), s, files, from, !p.o.follow || streaming.IsChannelClosed(s.allocEnded))
	r.since = p.since
	return r
}

// lastLinesOfTask returns the last lines of the task of the first stream, whose streams are neighbours.
func (p *logPrinter) lastLinesOfTask(ctx context.Context, streams []*outputStream, listed []*api.AllocFileInfo) ([]line, error) {
	var sources []lineSource
	for _, s := range streams {
		if s.view != streams[0].view {
			break
		}
		files := streamFiles(listed, s.task, s.name)
		lines, end, err := lastLines(ctx, files, func(from position) *lineReader { return p.newReader(s, files, from) }, p.o.lines)
		if err != nil {
			p.reportError(ctx, s, err)
		}
		s.position = end
		sources = append(sources, sliceSource(lines))
	}
	return lastOfAll(ctx, sources, p.o.lines)
}

// maxBatchSize is the number of bytes after which lines of one stream are written together.
const maxBatchSize = 64 << 10

// showLines shows the lines of all sources in the order of their times.
func (p *logPrinter) showLines(ctx context.Context, sources []lineSource) error {
	var batch []byte
	var stream *outputStream
	flush := func() {
		if len(batch) > 0 {
			p.print(stream, batch)
			batch = batch[:0]
		}
	}
	err := mergeLines(ctx, sources, func(l line) error {
		if l.stream != stream || len(batch) >= maxBatchSize {
			flush()
			stream = l.stream
		}
		at := l.time
		if !l.hasTime {
			at = time.Time{}
		}
		batch = p.appendLine(batch, at, l.text)
		return ctx.Err()
	})
	flush()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (p *logPrinter) print(s *outputStream, lines []byte) {
	p.taskView.PrintLines(s.view, s.name == api.FSLogNameStderr, lines)
}

// timestampLayout has a fixed width, and the resolution of the stored times.
const timestampLayout = "2006-01-02T15:04:05.000Z07:00"

// appendLine appends a line with its line end, and with -timestamps the time in front of it. The zero time is
// unknown.
func (p *logPrinter) appendLine(b []byte, at time.Time, text []byte) []byte {
	if p.o.timestamps {
		if at.IsZero() {
			b = append(b, strings.Repeat(" ", len(time.Now().Format(timestampLayout)))...)
		} else {
			b = at.Local().AppendFormat(b, timestampLayout)
		}
		b = append(b, ' ')
	}
	b = append(b, text...)
	if !bytes.HasSuffix(text, []byte("\n")) {
		b = append(b, '\n')
	}
	return b
}

// maxPartialLine is the number of bytes after which an incomplete line is shown.
const maxPartialLine = 64 << 10

// errGap means that a stream does not continue at the position where its shown part ended.
var errGap = errors.New("output is missing")

// follow shows new output of a stream until its allocation has ended, and then the rest of its files: the
// agent of a busy machine can send the end of the output late, or no output at all.
func (p *logPrinter) follow(ctx context.Context, s *outputStream) {
	for {
		err := p.followFrames(ctx, s)
		switch {
		case errors.Is(err, errGap):
		case err != nil:
			p.reportError(ctx, s, err)
			return
		default: // the agent can end a stream before the allocation has ended
			select {
			case <-s.allocEnded:
			case <-time.After(time.Second):
			case <-ctx.Done():
				return
			}
		}
		listed, err := p.lister(s).list(ctx)
		switch {
		case apiclient.IsNotFound(err):
			return // the files were removed
		case err != nil:
			p.reportError(ctx, s, err)
			return
		}
		ended := streaming.IsChannelClosed(s.allocEnded)
		if err := p.showLines(ctx, []lineSource{p.storedLines(s, streamFiles(listed, s.task, s.name))}); err != nil || ended {
			return
		}
	}
}

// followFrames shows new output of a stream while its allocation runs. It returns errGap if output between
// the stream's position and the new output is missing.
func (p *logPrinter) followFrames(ctx context.Context, s *outputStream) error {
	if streaming.IsChannelClosed(s.allocEnded) {
		return nil
	}
	listed, err := p.lister(s).list(ctx)
	if err != nil {
		return err
	}
	offset := s.position.offset
	for _, f := range streamFiles(listed, s.task, s.name) {
		if f.index < s.position.fileIndex {
			offset += f.size
		}
	}
	f := frameFollower{printer: p, stream: s, received: s.position}
	request := streaming.LogRequest{Alloc: s.alloc, Task: s.task, Stream: s.name, Follow: true, TaskEnded: s.allocEnded}
	err = request.FollowFrames(ctx, p.client, offset, f.add)
	if ctx.Err() != nil {
		f.showPartialLine()
	}
	return err
}

// frameFollower shows the frames of a stream.
type frameFollower struct {
	printer  *logPrinter
	stream   *outputStream
	received position // end of the last frame
	joined   bool     // received has been reached: the following frames are new output
	partial  []byte   // the incomplete line at the stream's position
}

// add shows the complete lines of a frame. It skips output that was shown before the stream was followed.
func (f *frameFollower) add(frame *api.StreamFrame) error {
	s := f.stream
	index, ok := logfile.Index(path.Base(frame.File), logfile.Prefix(s.task, s.name))
	if !ok || len(frame.Data) == 0 {
		return nil
	}
	start, end, data := position{index, frame.Offset - int64(len(frame.Data))}, position{index, frame.Offset}, frame.Data
	if !f.joined {
		switch {
		case start.compare(f.received) > 0:
			return errGap
		case end.compare(f.received) <= 0:
			return nil
		case index == f.received.fileIndex:
			data = data[f.received.offset-start.offset:]
		}
		f.joined = true
	}
	if index != f.received.fileIndex {
		f.showPartialLine() // a line does not continue in another file
	}
	f.received = end
	f.partial = append(f.partial, data...)
	complete := bytes.LastIndexByte(f.partial, '\n') + 1
	if len(f.partial)-complete >= maxPartialLine {
		complete = len(f.partial)
	}
	f.show(f.partial[:complete])
	f.partial = append([]byte(nil), f.partial[complete:]...)
	s.position = position{index, end.offset - int64(len(f.partial))}
	return nil
}

// showPartialLine shows the incomplete line.
func (f *frameFollower) showPartialLine() {
	f.show(f.partial)
	f.partial = nil
	f.stream.position = f.received
}

func (f *frameFollower) show(text []byte) {
	now := time.Now()
	var lines []byte
	for text := range bytes.Lines(text) {
		lines = f.printer.appendLine(lines, now, text)
	}
	if len(lines) > 0 {
		f.printer.print(f.stream, lines)
	}
}
