package logs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/url"
	"path"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
	"github.com/nomad-lite/nomad-lite/internal/logfile"
)

// outputLine is a line of a task's output.
type outputLine struct {
	text                  []byte // includes the line end, which the last line of a file can lack
	sortTime              time.Time
	sortTimeIsArrivalTime bool // sortTime is the time at which the line arrived at the agent; else it is the modification time of its file
	position              streamPosition
	stream                *outputStream
}

// streamPosition is an offset in one of the log files of a stream.
type streamPosition struct {
	rotationIndex int64
	byteOffset    int64
}

func (p streamPosition) compare(q streamPosition) int {
	return cmp.Or(cmp.Compare(p.rotationIndex, q.rotationIndex), cmp.Compare(p.byteOffset, q.byteOffset))
}

// logFile is a log file of a stream, as the agent has listed it.
type logFile struct {
	rotationIndex       int64
	name                string
	sizeBytes           int64
	modifiedAt          time.Time
	hasArrivalTimesFile bool
}

// allocLogDir lists and reads the log files of an allocation through the HTTP API.
type allocLogDir struct {
	client *api.Client
	alloc  *api.Allocation // only ID, NodeID and Namespace are set
}

// listFiles returns the files in the log directory.
func (l allocLogDir) listFiles(ctx context.Context) ([]*api.AllocFileInfo, error) {
	files, _, err := l.client.AllocFS().List(l.alloc, streaming.LogDir, apiclient.QueryOptions(ctx, l.alloc.Namespace))
	return files, err
}

// readFile returns up to maxBytesOrZero bytes of a file from byteOffset on. A maxBytesOrZero of 0 means all of them.
func (l allocLogDir) readFile(ctx context.Context, name string, byteOffset, maxBytesOrZero int64) ([]byte, error) {
	params := url.Values{"path": {path.Join(streaming.LogDir, name)}, "offset": {strconv.FormatInt(byteOffset, 10)}, "limit": {strconv.FormatInt(maxBytesOrZero, 10)}}
	// AllocFS().ReadAt would try to connect to the node for each call before it sends the request to the agent.
	body, err := l.client.Raw().Response("/v1/client/fs/readat/"+l.alloc.ID+"?"+params.Encode(), apiclient.QueryOptions(ctx, l.alloc.Namespace))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

// logFilesOfStreamOldestFirst selects the files of a stream from all files of a log directory, oldest first.
func logFilesOfStreamOldestFirst(all []*api.AllocFileInfo, taskName, stream string) []logFile {
	var files []logFile
	names := map[string]bool{}
	for _, f := range all {
		if f == nil {
			continue
		}
		names[f.Name] = true
		if index, ok := logfile.Index(f.Name, logfile.Prefix(taskName, stream)); ok && !f.IsDir {
			files = append(files, logFile{rotationIndex: index, name: f.Name, sizeBytes: f.Size, modifiedAt: f.ModTime})
		}
	}
	for i := range files {
		files[i].hasArrivalTimesFile = names[logfile.ArrivalTimesFile(files[i].name)]
	}
	sort.Slice(files, func(i, j int) bool { return files[i].rotationIndex < files[j].rotationIndex })
	return files
}

// lineReader reads the lines of a stream's log files, from a position to the end that the files had when they were
// listed.
type lineReader struct {
	dir                  allocLogDir
	stream               *outputStream
	unreadFiles          []logFile // the first of these files is being read
	since                time.Time // lines that arrived earlier are skipped; the zero time skips none
	nextLinePosition     streamPosition
	unreadText           []byte // output that was read from nextLinePosition on
	arrivalTimes         []logfile.ArrivalTime
	hasPreparedFirstFile bool // prepareFirstUnreadFile was called for unreadFiles[0]
	isOutputComplete     bool // no output will follow, so the last line is complete even without a line end
}

const (
	readSize    = 128 << 10 // bytes per request
	maxLineSize = 1 << 20   // a longer line is split
)

// newLineReader returns a reader of a stream's files from a position on.
func newLineReader(dir allocLogDir, stream *outputStream, files []logFile, from streamPosition, isOutputComplete bool) *lineReader {
	r := &lineReader{dir: dir, stream: stream, unreadFiles: files, nextLinePosition: from, isOutputComplete: isOutputComplete}
	for len(r.unreadFiles) > 0 && r.unreadFiles[0].rotationIndex < from.rotationIndex {
		r.unreadFiles = r.unreadFiles[1:]
	}
	if len(r.unreadFiles) > 0 && r.unreadFiles[0].rotationIndex > from.rotationIndex {
		r.nextLinePosition = streamPosition{r.unreadFiles[0].rotationIndex, 0}
	}
	return r
}

// nextLine returns the next line. At the end of the output it returns io.EOF.
func (r *lineReader) nextLine(ctx context.Context) (outputLine, error) {
	for {
		if len(r.unreadFiles) == 0 {
			return outputLine{}, io.EOF
		}
		if !r.hasPreparedFirstFile {
			if err := r.prepareFirstUnreadFile(ctx); err != nil {
				return outputLine{}, err
			}
		}
		text, err := r.readLineWithoutAdvancing(ctx)
		if err != nil {
			return outputLine{}, err
		}
		if len(text) == 0 {
			if len(r.unreadFiles) > 1 {
				r.nextLinePosition = streamPosition{r.unreadFiles[1].rotationIndex, 0}
			}
			r.unreadFiles, r.hasPreparedFirstFile, r.unreadText = r.unreadFiles[1:], false, nil
			continue
		}
		l := outputLine{text: text, sortTime: r.unreadFiles[0].modifiedAt, position: r.nextLinePosition, stream: r.stream}
		if at, ok := logfile.FindArrivalTime(r.arrivalTimes, r.nextLinePosition.byteOffset); ok {
			l.sortTime, l.sortTimeIsArrivalTime = at, true
		}
		r.nextLinePosition.byteOffset += int64(len(text))
		if !l.sortTime.Before(r.since) {
			return l, nil
		}
	}
}

// prepareFirstUnreadFile reads the arrival times of the first file, and skips lines that arrived before r.since.
func (r *lineReader) prepareFirstUnreadFile(ctx context.Context) error {
	f := r.unreadFiles[0]
	r.hasPreparedFirstFile, r.arrivalTimes = true, nil
	if f.modifiedAt.Before(r.since) {
		r.nextLinePosition.byteOffset, r.unreadText = f.sizeBytes, nil
		return nil
	}
	if !f.hasArrivalTimesFile {
		return nil
	}
	content, err := r.dir.readFile(ctx, logfile.ArrivalTimesFile(f.name), 0, 0)
	if err != nil && !apiclient.IsNotFound(err) {
		return err
	}
	r.arrivalTimes = logfile.ParseArrivalTimes(content)
	skipped := int64(0)
	for _, at := range r.arrivalTimes {
		if !at.Time.Before(r.since) {
			break
		}
		skipped = at.Offset // output before this offset arrived before r.since; its last line can continue after the offset
	}
	return r.skipToLineStartAtOrAfter(ctx, skipped)
}

// skipToLineStartAtOrAfter moves the position forward to the first start of a line at or after the offset. It does
// nothing if the position is already at or after the offset.
func (r *lineReader) skipToLineStartAtOrAfter(ctx context.Context, byteOffset int64) error {
	if byteOffset <= r.nextLinePosition.byteOffset {
		return nil
	}
	r.nextLinePosition.byteOffset, r.unreadText = byteOffset-1, nil
	skipped, err := r.readLineWithoutAdvancing(ctx)
	r.nextLinePosition.byteOffset += int64(len(skipped))
	return err
}

// readLineWithoutAdvancing returns the line at the position. It returns nil at the end of the file, and for a line that
// the task has not completed. It does not change the position.
func (r *lineReader) readLineWithoutAdvancing(ctx context.Context) ([]byte, error) {
	f := r.unreadFiles[0]
	for {
		end := bytes.IndexByte(r.unreadText, '\n') + 1
		offset := r.nextLinePosition.byteOffset + int64(len(r.unreadText))
		atEnd := offset >= f.sizeBytes
		if end == 0 && (len(r.unreadText) >= maxLineSize || atEnd && (r.isOutputComplete || len(r.unreadFiles) > 1)) {
			end = len(r.unreadText)
		}
		if end > 0 || atEnd {
			text := r.unreadText[:end:end]
			r.unreadText = r.unreadText[end:]
			return text, nil
		}
		data, err := r.dir.readFile(ctx, f.name, offset, min(readSize, f.sizeBytes-offset))
		switch {
		case apiclient.IsNotFound(err), err == nil && len(data) == 0:
			r.unreadFiles[0].sizeBytes = offset // the file was removed or truncated
			f = r.unreadFiles[0]
		case err != nil:
			return nil, err
		}
		r.unreadText = append(slices.Clip(r.unreadText), data...)
	}
}

// readLastLines returns the last lineCount lines of a stream's files, and the position after them. It starts with a
// guess where they begin, and reads more if that gave fewer lines.
func readLastLines(ctx context.Context, files []logFile, newReader func(streamPosition) *lineReader, lineCount int) (lines []outputLine, end streamPosition, err error) {
	for size := int64(lineCount) * streaming.AssumedLineLength; ; size *= 8 {
		from, isStart := positionBytesBeforeEnd(files, size)
		r := newReader(from)
		if !isStart {
			if err := r.skipToLineStartAtOrAfter(ctx, from.byteOffset+1); err != nil {
				return nil, streamPosition{}, err
			}
		}
		lines = nil
		for {
			l, err := r.nextLine(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, streamPosition{}, err
			}
			lines = append(lines, l)
		}
		if len(lines) >= lineCount || isStart {
			return lines[max(0, len(lines)-lineCount):], r.nextLinePosition, nil
		}
	}
}

// positionBytesBeforeEnd returns the position that is byteCount bytes before the end of the last file. isStart means
// that the files have at most byteCount bytes, so that the position is their start.
func positionBytesBeforeEnd(files []logFile, byteCount int64) (from streamPosition, isStart bool) {
	for _, f := range slices.Backward(files) {
		if byteCount < f.sizeBytes {
			return streamPosition{f.rotationIndex, f.sizeBytes - byteCount}, false
		}
		byteCount -= f.sizeBytes
	}
	return streamPosition{}, true
}
