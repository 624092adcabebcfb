package logs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// FollowOrigin is the position from which Follow counts its offset.
type FollowOrigin int

const (
	FromStart      FollowOrigin = iota // the oldest existing file's start
	FromEnd                            // the newest file's current end
	FromNewestFile                     // the newest file's start, without an offset
)

// FollowRequest selects the output to read.
type FollowRequest struct {
	AllocID string
	Task    string
	LogDir  string // as in Task
	Stream  Stream

	Origin           FollowOrigin
	OffsetFromOrigin int64 // bytes after the start or before the end, limited to the existing output

	// StopAtEnd makes Follow return at the current end, instead of waiting for more output.
	StopAtEnd bool
	// AcrossRestarts makes Follow continue when the stream is stopped: the task may be started again.
	AcrossRestarts bool
}

// OutputChunk is a piece of a stream. Data is valid until emit returns.
type OutputChunk struct {
	FileName   string // file name in the log directory
	FileOffset int64  // offset in the file
	Data       []byte
}

var bufferPool = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// Follow reads a stream's files and passes their content to emit, in order and without gaps as long as the reader
// is not max_files behind the task; then it continues with the oldest remaining file. It returns nil after the last
// byte if the stream is stopped or was never started here, or if StopAtEnd is set. Otherwise, and always with
// AcrossRestarts, it returns emit's error or ctx's cause. Any number of followers may read one stream, and none
// slows the task down.
func (c *CollectorClient) Follow(ctx context.Context, req FollowRequest, emit func(OutputChunk) error) error {
	k := collectorwire.StreamKey{AllocID: req.AllocID, Task: req.Task, Stream: req.Stream}
	dir, err := OpenLogDir(req.LogDir)
	if err != nil {
		return fmt.Errorf("follow %s of task %q: %w", req.Stream, req.Task, err)
	}
	defer unix.Close(dir)
	r := &logReader{logDirFD: dir, filePrefix: k.FilePrefix(), fileFD: -1}
	defer r.close()
	if err := r.seek(req.Origin, req.OffsetFromOrigin); err != nil {
		return fmt.Errorf("follow %s of task %q: %w", req.Stream, req.Task, err)
	}

	for {
		// The stream's state is read before its files: a change between the two reads is in the files, or closes the
		// channel.
		c.mu.Lock()
		st := c.progressByStream[k]
		changed, newest := c.streamAdded, int64(-1)
		if st != nil {
			changed, newest = st.changed, st.newestFileIndex
		}
		c.mu.Unlock()

		if err := r.emitToEnd(ctx, newest, emit); err != nil {
			return err
		}
		if req.StopAtEnd || st == nil && !req.AcrossRestarts {
			return nil
		}
		c.mu.Lock()
		l := c.processConns.CurrentConn()
		ended := st != nil && st.ended
		c.mu.Unlock()
		if ended {
			// The stream may have ended during the read, and the files may have more output.
			if err := r.emitToEnd(ctx, -1, emit); err != nil || !req.AcrossRestarts {
				return err
			}
			continue
		}
		if l != nil && st != nil {
			// If the send fails, the connection is closed, and the next connection wakes this
			// follower.
			_ = l.send(&collectorwire.Message{Op: collectorwire.OpSubscribe, StreamKey: k, FileIndex: r.fileIndex, FileOffset: r.fileOffset})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.closeStarted:
			return ErrClosed
		}
	}
}

// HasLogsOrIsCollected reports whether a stream has a log file, or is collected, so that it will have one.
func (c *CollectorClient) HasLogsOrIsCollected(req FollowRequest) (bool, error) {
	k := collectorwire.StreamKey{AllocID: req.AllocID, Task: req.Task, Stream: req.Stream}
	c.mu.Lock()
	collected := c.progressByStream[k] != nil
	c.mu.Unlock()
	if collected {
		return true, nil
	}
	dir, err := OpenLogDir(req.LogDir)
	if err != nil {
		return false, err
	}
	defer unix.Close(dir)
	all, err := collectorwire.ListFileIndexes(dir, k.FilePrefix())
	return len(all) > 0, err
}

// logReader reads a stream's files, and has the position reached.
type logReader struct {
	logDirFD   int
	filePrefix string
	fileFD     int   // the open file, or -1
	fileIndex  int64 // the open file's number; without an open file, the next file's lowest possible number
	fileOffset int64 // position in the file
}

func (r *logReader) close() {
	if r.fileFD >= 0 {
		unix.Close(r.fileFD)
		r.fileFD = -1
	}
}

// seek moves the position by a number of bytes after or before an origin, as described at FollowRequest.
func (r *logReader) seek(origin FollowOrigin, offset int64) error {
	all, err := collectorwire.ListFileIndexes(r.logDirFD, r.filePrefix)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return nil
	}
	sizes := make([]int64, len(all))
	for i, index := range all {
		if st, err := safepath.StatAt(r.logDirFD, logfile.Name(r.filePrefix, index)); err == nil && collectorwire.IsLogFile(&st) {
			sizes[i] = st.Size
		}
	}
	if origin == FromNewestFile {
		r.fileIndex = all[len(all)-1]
		return nil
	}
	if origin == FromEnd {
		for i, size := range slices.Backward(sizes) {
			r.fileIndex, r.fileOffset = all[i], max(0, size-offset)
			offset -= size
			if offset <= 0 {
				return nil
			}
		}
		return nil
	}
	for i, size := range sizes {
		r.fileIndex, r.fileOffset = all[i], min(offset, size)
		if offset < size {
			return nil
		}
		offset -= size
	}
	return nil
}

// emitToEnd passes the files' content to emit, up to the newest file's end. If newestFileIndex is -1, emitToEnd
// lists the directory to find the newest file.
func (r *logReader) emitToEnd(ctx context.Context, newestFileIndex int64, emit func(OutputChunk) error) error {
	buf := bufferPool.Get().(*[32 << 10]byte)
	defer bufferPool.Put(buf)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if r.fileFD < 0 {
			next, ok, err := r.nextFileIndex(r.fileIndex - 1)
			if err != nil || !ok {
				return err
			}
			if err := r.openFileOrSkip(next); err != nil {
				return err
			}
			continue
		}
		n, err := r.emitRestOfOpenFile(ctx, buf[:], emit)
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if newestFileIndex >= 0 && newestFileIndex <= r.fileIndex {
			return nil
		}
		// The reader is at its file's end. If a newer file exists, this file is complete, but it may have grown before
		// the newer file was made.
		next, ok, err := r.nextFileIndex(r.fileIndex)
		if err != nil || !ok {
			return err
		}
		if _, err := r.emitRestOfOpenFile(ctx, buf[:], emit); err != nil {
			return err
		}
		r.close()
		r.fileIndex, r.fileOffset = next, 0
	}
}

// nextFileIndex returns the lowest file number above index.
func (r *logReader) nextFileIndex(index int64) (next int64, exists bool, err error) {
	all, err := collectorwire.ListFileIndexes(r.logDirFD, r.filePrefix)
	if err != nil {
		return 0, false, err
	}
	i, _ := slices.BinarySearch(all, index+1)
	if i == len(all) {
		return 0, false, nil
	}
	return all[i], true, nil
}

// openFileOrSkip opens a file. If the file does not exist, or a task has replaced it, openFileOrSkip leaves no file
// open, and moves the position behind it.
func (r *logReader) openFileOrSkip(index int64) error {
	if index != r.fileIndex {
		r.fileIndex, r.fileOffset = index, 0
	}
	fd, _, err := collectorwire.OpenLogFile(r.logDirFD, logfile.Name(r.filePrefix, index), unix.O_RDONLY)
	switch {
	case err == nil:
		r.fileFD = fd
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, collectorwire.ErrForeignFile):
		r.fileIndex, r.fileOffset = index+1, 0
	default:
		return fmt.Errorf("open %s: %w", logfile.Name(r.filePrefix, index), err)
	}
	return nil
}

// emitRestOfOpenFile passes the rest of the open file to emit. It reads a truncated file from its start.
func (r *logReader) emitRestOfOpenFile(ctx context.Context, buf []byte, emit func(OutputChunk) error) (emittedBytes int64, err error) {
	for ctx.Err() == nil {
		n, err := unix.Pread(r.fileFD, buf, r.fileOffset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return emittedBytes, fmt.Errorf("read %s: %w", logfile.Name(r.filePrefix, r.fileIndex), err)
		}
		if n == 0 {
			var st unix.Stat_t
			if err := unix.Fstat(r.fileFD, &st); err != nil || st.Size >= r.fileOffset {
				return emittedBytes, err
			}
			r.fileOffset = 0
			continue
		}
		if err := emit(OutputChunk{FileName: logfile.Name(r.filePrefix, r.fileIndex), FileOffset: r.fileOffset, Data: buf[:n]}); err != nil {
			return emittedBytes, err
		}
		r.fileOffset += int64(n)
		emittedBytes += int64(n)
	}
	return emittedBytes, context.Cause(ctx)
}
