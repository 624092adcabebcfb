package taskfiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// FollowOrigin is the position from which Follow counts its offset.
type FollowOrigin int

const (
	FromStart FollowOrigin = iota
	FromEnd
)

// FollowRequest selects the part of a file to read.
type FollowRequest struct {
	Origin           FollowOrigin
	OffsetFromOrigin int64 // bytes after the start or before the end
	// StopAtEnd makes Follow return at the current end, instead of waiting for more.
	StopAtEnd bool
}

// Events for a followed file. The texts are Nomad's.
const (
	EventTruncated = "file truncated"
	EventDeleted   = "file deleted"
)

// FollowChunk is a piece of a file, or an event. Data is valid until emit returns.
type FollowChunk struct {
	EndOffset int64 // where Data ends in the file
	Data      []byte
	Event     string // EventTruncated or EventDeleted, and Data is empty; or empty
}

// pollInterval is how often Follow looks for changes without a notification: inotify watches are limited, and network
// file systems do not report other machines' changes.
const pollInterval = time.Second

var readBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// Path returns the requested path of the file, relative to the directory of the allocation.
func (f *File) Path() string { return f.path }

// Follow passes the file's content to emit, and then appended data. It reads a truncated file from its start again.
// Follow returns nil when the file is deleted, or with StopAtEnd at its end. Otherwise it returns emit's error or
// ctx's cause.
func (f *File) Follow(ctx context.Context, r FollowRequest, emit func(FollowChunk) error) error {
	offset := max(r.OffsetFromOrigin, 0)
	if r.Origin == FromEnd {
		size, err := f.size()
		if err != nil {
			return err
		}
		offset = max(0, size-offset)
	}
	if r.StopAtEnd {
		_, err := f.emitFromOffset(ctx, offset, emit)
		return err
	}
	nextChange, stop, err := f.opener.watcher.watchFile(f.File)
	if err != nil {
		nextChange, stop = func() <-chan struct{} { return nil }, func() {}
	}
	defer stop()
	for {
		changed := nextChange() // before the read, so that a change during the read is not missed
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return fmt.Errorf("stat %s: %w", f.path, err)
		}
		if st.Size < offset {
			offset = 0
			if err := emit(FollowChunk{Event: EventTruncated}); err != nil {
				return err
			}
		}
		if offset, err = f.emitFromOffset(ctx, offset, emit); err != nil {
			return err
		}
		if st.Nlink == 0 {
			return emit(FollowChunk{Event: EventDeleted, EndOffset: offset})
		}
		if err := waitForChangeOrPoll(ctx, changed); err != nil {
			return err
		}
	}
}

// waitForChangeOrPoll waits until changed is closed, or for pollInterval. It returns ctx's cause when ctx ends.
func waitForChangeOrPoll(ctx context.Context, changed <-chan struct{}) error {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// size returns the file's current size.
func (f *File) size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// emitFromOffset passes the content from offset on to emit, and returns the offset where it ends.
func (f *File) emitFromOffset(ctx context.Context, offset int64, emit func(FollowChunk) error) (endOffset int64, err error) {
	buf := readBuffers.Get().(*[64 << 10]byte)
	defer readBuffers.Put(buf)
	for ctx.Err() == nil {
		n, err := f.ReadAt(buf[:], offset)
		if n > 0 {
			offset += int64(n)
			if err := emit(FollowChunk{EndOffset: offset, Data: buf[:n]}); err != nil {
				return offset, err
			}
		}
		if errors.Is(err, io.EOF) {
			return offset, nil
		}
		if err != nil {
			return offset, fmt.Errorf("read %s: %w", f.path, err)
		}
	}
	return offset, context.Cause(ctx)
}
