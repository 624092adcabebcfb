package logs

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// ReadLastLine returns the last line of a stream that is not blank, at most the last maxBytes bytes of it, and the time of the
// last write to the stream. Both are zero if the stream has no file. It ignores the position in req.
func ReadLastLine(ctx context.Context, req FollowRequest, maxBytes int64) (line string, writtenAt time.Time, err error) {
	if line, writtenAt, err = readLastLine(ctx, req, maxBytes); err != nil {
		return "", time.Time{}, fmt.Errorf("read %s of task %q: %w", req.Stream, req.Task, err)
	}
	return line, writtenAt, nil
}

func readLastLine(ctx context.Context, req FollowRequest, maxBytes int64) (line string, writtenAt time.Time, err error) {
	k := collectorwire.StreamKey{AllocID: req.AllocID, Task: req.Task, Stream: req.Stream}
	dir, err := OpenLogDir(req.LogDir)
	if err != nil {
		return "", time.Time{}, err
	}
	defer unix.Close(dir)
	r := &logReader{logDirFD: dir, filePrefix: k.FilePrefix(), fileFD: -1}
	defer r.close()
	if err := r.seek(FromEnd, maxBytes); err != nil {
		return "", time.Time{}, err
	}
	var tail []byte
	if err := r.emitToEnd(ctx, -1, func(c OutputChunk) error {
		tail = append(tail, c.Data...)
		tail = tail[max(0, len(tail)-int(maxBytes)):]
		return nil
	}); err != nil {
		return "", time.Time{}, err
	}
	if r.fileFD >= 0 {
		var st unix.Stat_t
		if err := unix.Fstat(r.fileFD, &st); err != nil {
			return "", time.Time{}, err
		}
		writtenAt = time.Unix(st.Mtim.Unix())
	}
	tail = bytes.TrimSpace(tail)
	return string(tail[bytes.LastIndexByte(tail, '\n')+1:]), writtenAt, nil
}
