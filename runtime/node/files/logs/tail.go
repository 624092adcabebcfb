package logs

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// ReadTail returns at most a stream's last maxBytes bytes, and the time of the last write to it. Both are zero if the stream
// has no file. It ignores the position in req.
func ReadTail(ctx context.Context, req FollowRequest, maxBytes int64) (tail string, writtenAt time.Time, err error) {
	if tail, writtenAt, err = readTail(ctx, req, maxBytes); err != nil {
		return "", time.Time{}, fmt.Errorf("read %s of task %q: %w", req.Stream, req.Task, err)
	}
	return tail, writtenAt, nil
}

func readTail(ctx context.Context, req FollowRequest, maxBytes int64) (tail string, writtenAt time.Time, err error) {
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
	var data []byte
	if err := r.emitToEnd(ctx, -1, func(c OutputChunk) error {
		data = append(data, c.Data...)
		data = data[max(0, len(data)-int(maxBytes)):]
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
	return string(data), writtenAt, nil
}
