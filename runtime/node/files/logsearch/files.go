package logsearch

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// Stream is one task output, with the files to search.
type Stream struct {
	StreamKey
	LogDir string // as in logs.Task; it need not exist
}

func (s Stream) filePrefix() string { return logfile.Prefix(s.Task, string(s.Output)) }

// file is a stream's log file, as it was listed.
type file struct {
	index         int64
	size          int64
	modifiedAt    time.Time
	timesFileSize int64 // 0 if there is no arrival time file
}

// files are a stream's log files. They are opened for each read: otherwise a search in a thousand streams would take a thousand
// descriptors from the tasks.
type files struct {
	stream Stream
	listed []file // sorted by index
	// omitsOldFiles means that there are more files, with lower indexes than those in listed.
	omitsOldFiles bool
}

// errRemoved: a file no longer exists, or a task has replaced it.
var errRemoved = errors.New("log file was removed")

func isRemoved(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, collectorwire.ErrForeignFile)
}

// maxListedFiles limits the memory for a directory in which a task has made its own files.
const maxListedFiles = 2000

// list reads the files' names and sizes. A stream without a directory has no files. If there are very many files, it lists the
// newest ones.
func (f *files) list() error {
	f.listed, f.omitsOldFiles = nil, false
	dir, err := logs.OpenLogDir(f.stream.LogDir)
	if isRemoved(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	indexes, err := collectorwire.ListFileIndexes(dir, f.stream.filePrefix())
	if err != nil {
		return err
	}
	if excess := len(indexes) - maxListedFiles; excess > 0 {
		indexes, f.omitsOldFiles = indexes[excess:], true
	}
	for _, index := range indexes {
		name := logfile.Name(f.stream.filePrefix(), index)
		st, err := safepath.StatAt(dir, name)
		if err != nil || !collectorwire.IsLogFile(&st) {
			continue // removed, or replaced by a task
		}
		one := file{index: index, size: st.Size, modifiedAt: time.Unix(st.Mtim.Unix())}
		if times, err := safepath.StatAt(dir, logfile.ArrivalTimesFile(name)); err == nil && collectorwire.IsLogFile(&times) {
			one.timesFileSize = times.Size
		}
		f.listed = append(f.listed, one)
	}
	return nil
}

// withOpenFile calls read with a descriptor for a file in the log directory. The error is errRemoved if there is no such file.
func (f *files) withOpenFile(name string, read func(fd int) error) error {
	dir, err := logs.OpenLogDir(f.stream.LogDir)
	if err == nil {
		defer unix.Close(dir)
		var fd int
		if fd, _, err = collectorwire.OpenLogFile(dir, name, unix.O_RDONLY); err == nil {
			defer unix.Close(fd)
			return read(fd)
		}
	}
	if isRemoved(err) {
		return errRemoved
	}
	return err
}

// readAt reads a part of a log file into p, and returns how many bytes it has read; fewer than len(p) means end of file.
func (f *files) readAt(index int64, p []byte, offset int64) (n int, err error) {
	err = f.withOpenFile(logfile.Name(f.stream.filePrefix(), index), func(fd int) error {
		n, err = readFull(fd, p, offset)
		return err
	})
	return n, err
}

// sizeOf returns a log file's present size.
func (f *files) sizeOf(index int64) (size int64, err error) {
	err = f.withOpenFile(logfile.Name(f.stream.filePrefix(), index), func(fd int) error {
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		size = st.Size
		return err
	})
	return size, err
}

// withTimes calls use with a reader for a log file's arrival times.
func (f *files) withTimes(index int64, use func(timesReader) error) error {
	return f.withOpenFile(logfile.ArrivalTimesFile(logfile.Name(f.stream.filePrefix(), index)), func(fd int) error {
		return use(func(p []byte, offset int64) (int, error) { return readFull(fd, p, offset) })
	})
}

func readFull(fd int, p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		m, err := unix.Pread(fd, p[n:], offset+int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || m == 0 {
			return n, err
		}
		n += m
	}
	return n, nil
}

// timesIndexOf returns the index for a log file's arrival times. It is empty if no times are stored.
func (f *files) timesIndexOf(one file) (x *timesIndex, err error) {
	if one.timesFileSize > 0 {
		err = f.withTimes(one.index, func(read timesReader) error {
			x, err = newTimesIndex(one.timesFileSize, read)
			return err
		})
		if errors.Is(err, errRemoved) {
			err = nil
		}
	}
	if x == nil {
		x = &timesIndex{}
	}
	return x, err
}

// positionOfTime returns the start of the first line with a later arrival time than the given one: a file, as an index in listed,
// and an offset in it. Without stored times, a file's lines have the time of its last change.
func (f *files) positionOfTime(ctx context.Context, milliseconds int64) (at int, offset int64, err error) {
	for at, one := range slices.Backward(f.listed) {
		if ctx.Err() != nil {
			return 0, 0, context.Cause(ctx)
		}
		x, err := f.timesIndexOf(one)
		if err != nil {
			return 0, 0, err
		}
		if x.isEmpty() {
			if one.modifiedAt.UnixMilli() <= milliseconds {
				return at, one.size, nil
			}
			continue
		}
		end := int64(0)
		err = f.withTimes(one.index, func(read timesReader) error {
			end, err = x.endOfTime(milliseconds, read)
			return err
		})
		if err != nil && !errors.Is(err, errRemoved) {
			return 0, 0, err
		}
		if end == 0 {
			continue
		}
		offset, err := f.lineStartFrom(one, min(end, one.size))
		return at, offset, err
	}
	return 0, 0, nil
}

// maxLineBytes is the maximum line length. A longer line counts as several.
const maxLineBytes = 16 << 10

// lineLength returns the length of the line at text's start, with its line end. text starts at a line start, or after a piece of
// a too long line. lineLength returns 0 if text does not have the line end.
func lineLength(text []byte) int {
	text = text[:min(len(text), maxLineBytes)]
	if end := bytes.IndexByte(text, '\n'); end >= 0 {
		return end + 1
	}
	if len(text) == maxLineBytes {
		return maxLineBytes
	}
	return 0
}

// maxLineStartDistance limits how far back a line start is searched, because a task can make a file of any size without a line
// end.
const maxLineStartDistance = 16 << 20

// lineStartBefore returns the start of the line that contains the byte before an offset. If the line starts very far before, it
// returns the start of a piece.
func (f *files) lineStartBefore(one file, offset int64) (int64, error) {
	buf := make([]byte, maxPageSize)
	end := offset - 1 // the byte before the offset can be the line end
	lowest := int64(0)
	if end > maxLineStartDistance {
		lowest = (end - maxLineStartDistance) / maxLineBytes * maxLineBytes
	}
	for end > lowest {
		start := max(lowest, end-int64(len(buf)))
		n, err := f.readAt(one.index, buf[:end-start], start)
		if err != nil {
			return 0, err
		}
		for i := n - 1; i >= 0; i-- {
			if buf[i] == '\n' {
				return start + int64(i) + 1, nil
			}
		}
		end = start
	}
	return lowest, nil
}

// lineStartFrom returns the first line start at an offset or after it. In a too long line, each piece's start counts.
func (f *files) lineStartFrom(one file, offset int64) (int64, error) {
	if offset <= 0 {
		return 0, nil
	}
	start, err := f.lineStartBefore(one, offset+1)
	if err != nil || start >= offset {
		return start, ignoreRemoved(err)
	}
	start += (offset - start) / maxLineBytes * maxLineBytes // start of the piece with the offset
	if start == offset {
		return start, nil
	}
	var buf [maxLineBytes]byte
	n, err := f.readAt(one.index, buf[:min(maxLineBytes, max(0, one.size-start))], start)
	if err != nil {
		return one.size, ignoreRemoved(err)
	}
	for i, c := range buf[:n] {
		if c == '\n' {
			return start + int64(i) + 1, nil
		}
	}
	return start + int64(n), nil
}

func ignoreRemoved(err error) error {
	if errors.Is(err, errRemoved) {
		return nil
	}
	return err
}
