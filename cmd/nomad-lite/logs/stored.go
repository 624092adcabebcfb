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

// line is a line of a task's output.
type line struct {
	text     []byte // with its line end, except for the last line of some files
	time     time.Time
	hasTime  bool // time is the time of arrival; else it is the time of the last change of the line's file
	position position
	stream   *outputStream
}

// position is a place in the output of a task.
type position struct {
	fileIndex int64
	offset    int64
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.fileIndex, q.fileIndex), cmp.Compare(p.offset, q.offset))
}

// logFile is a file of a task's output, as it was listed.
type logFile struct {
	index    int64
	name     string
	size     int64
	modified time.Time
	hasTimes bool
}

// fileLister lists and reads the log files of an allocation.
type fileLister struct {
	client *api.Client
	alloc  *api.Allocation // only the ids are used
}

// list returns the files in the log directory.
func (l fileLister) list(ctx context.Context) ([]*api.AllocFileInfo, error) {
	files, _, err := l.client.AllocFS().List(l.alloc, streaming.LogDir, apiclient.QueryOptions(ctx, l.alloc.Namespace))
	return files, err
}

// read returns up to limit bytes of a file. A limit of 0 means the whole file.
func (l fileLister) read(ctx context.Context, name string, offset, limit int64) ([]byte, error) {
	params := url.Values{"path": {path.Join(streaming.LogDir, name)}, "offset": {strconv.FormatInt(offset, 10)}, "limit": {strconv.FormatInt(limit, 10)}}
	// The client's own method connects to the node, for each call, before it asks the agent.
	body, err := l.client.Raw().Response("/v1/client/fs/readat/"+l.alloc.ID+"?"+params.Encode(), apiclient.QueryOptions(ctx, l.alloc.Namespace))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

// streamFiles returns the files of a stream out of all files of a log directory, oldest first.
func streamFiles(all []*api.AllocFileInfo, task, stream string) []logFile {
	var files []logFile
	names := map[string]bool{}
	for _, f := range all {
		if f == nil {
			continue
		}
		names[f.Name] = true
		if index, ok := logfile.Index(f.Name, logfile.Prefix(task, stream)); ok && !f.IsDir {
			files = append(files, logFile{index: index, name: f.Name, size: f.Size, modified: f.ModTime})
		}
	}
	for i := range files {
		files[i].hasTimes = names[logfile.ArrivalTimesFile(files[i].name)]
	}
	sort.Slice(files, func(i, j int) bool { return files[i].index < files[j].index })
	return files
}

// lineReader reads the lines of a stream's files from a position to the listed end.
type lineReader struct {
	lister   fileLister
	stream   *outputStream
	files    []logFile // the first one is being read
	since    time.Time // earlier lines are skipped; can be zero
	position position  // of the next line
	buffer   []byte    // output from position on
	times    []logfile.ArrivalTime
	opened   bool // times is set for the first file
	ended    bool // the last line is complete even without a line end
}

const (
	readSize    = 128 << 10 // bytes per request
	maxLineSize = 1 << 20   // a longer line is split
)

// newLineReader returns a reader of a stream's files from a position on.
func newLineReader(lister fileLister, stream *outputStream, files []logFile, from position, ended bool) *lineReader {
	r := &lineReader{lister: lister, stream: stream, files: files, position: from, ended: ended}
	for len(r.files) > 0 && r.files[0].index < from.fileIndex {
		r.files = r.files[1:]
	}
	if len(r.files) > 0 && r.files[0].index > from.fileIndex {
		r.position = position{r.files[0].index, 0}
	}
	return r
}

// next returns the next line. At the end of the output it returns io.EOF.
func (r *lineReader) next(ctx context.Context) (line, error) {
	for {
		if len(r.files) == 0 {
			return line{}, io.EOF
		}
		if !r.opened {
			if err := r.open(ctx); err != nil {
				return line{}, err
			}
		}
		text, err := r.readLine(ctx)
		if err != nil {
			return line{}, err
		}
		if len(text) == 0 {
			if len(r.files) > 1 {
				r.position = position{r.files[1].index, 0}
			}
			r.files, r.opened, r.buffer = r.files[1:], false, nil
			continue
		}
		l := line{text: text, time: r.files[0].modified, position: r.position, stream: r.stream}
		if at, ok := logfile.FindArrivalTime(r.times, r.position.offset); ok {
			l.time, l.hasTime = at, true
		}
		r.position.offset += int64(len(text))
		if !l.time.Before(r.since) {
			return l, nil
		}
	}
}

// open reads the arrival times of the first file, and skips lines that arrived before r.since.
func (r *lineReader) open(ctx context.Context) error {
	f := r.files[0]
	r.opened, r.times = true, nil
	if f.modified.Before(r.since) {
		r.position.offset, r.buffer = f.size, nil
		return nil
	}
	if !f.hasTimes {
		return nil
	}
	content, err := r.lister.read(ctx, logfile.ArrivalTimesFile(f.name), 0, 0)
	if err != nil && !apiclient.IsNotFound(err) {
		return err
	}
	r.times = logfile.ParseArrivalTimes(content)
	skipped := int64(0)
	for _, at := range r.times {
		if !at.Time.Before(r.since) {
			break
		}
		skipped = at.Offset // this output is early, and its last line can end with later output
	}
	return r.skipTo(ctx, skipped)
}

// skipTo moves to the first start of a line at an offset or after it, unless it is the present position or
// before it.
func (r *lineReader) skipTo(ctx context.Context, offset int64) error {
	if offset <= r.position.offset {
		return nil
	}
	r.position.offset, r.buffer = offset-1, nil
	skipped, err := r.readLine(ctx)
	r.position.offset += int64(len(skipped))
	return err
}

// readLine returns the line at the position, nothing at the end of the file, or before a line that the task
// has not completed. It does not change the position.
func (r *lineReader) readLine(ctx context.Context) ([]byte, error) {
	f := r.files[0]
	for {
		end := bytes.IndexByte(r.buffer, '\n') + 1
		offset := r.position.offset + int64(len(r.buffer))
		atEnd := offset >= f.size
		if end == 0 && (len(r.buffer) >= maxLineSize || atEnd && (r.ended || len(r.files) > 1)) {
			end = len(r.buffer)
		}
		if end > 0 || atEnd {
			text := r.buffer[:end:end]
			r.buffer = r.buffer[end:]
			return text, nil
		}
		data, err := r.lister.read(ctx, f.name, offset, min(readSize, f.size-offset))
		switch {
		case apiclient.IsNotFound(err), err == nil && len(data) == 0:
			r.files[0].size = offset // the file was removed or truncated
			f = r.files[0]
		case err != nil:
			return nil, err
		}
		r.buffer = append(slices.Clip(r.buffer), data...)
	}
}

// lastLines returns the last n lines of a stream's files, and the position after them.
func lastLines(ctx context.Context, files []logFile, newReader func(position) *lineReader, n int) (lines []line, end position, err error) {
	for size := int64(n) * streaming.AssumedLineLength; ; size *= 8 {
		from, isStart := positionBefore(files, size)
		r := newReader(from)
		if !isStart {
			if err := r.skipTo(ctx, from.offset+1); err != nil {
				return nil, position{}, err
			}
		}
		lines = nil
		for {
			l, err := r.next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, position{}, err
			}
			lines = append(lines, l)
		}
		if len(lines) >= n || isStart {
			return lines[max(0, len(lines)-n):], r.position, nil
		}
	}
}

// positionBefore returns the position that is size bytes before the end of the files, and whether it is their
// start.
func positionBefore(files []logFile, size int64) (from position, isStart bool) {
	for _, f := range slices.Backward(files) {
		if size < f.size {
			return position{f.index, f.size - size}, false
		}
		size -= f.size
	}
	return position{}, true
}
