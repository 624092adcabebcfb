package streaming

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/internal/logfile"
)

// LogDir is the directory of the log files in the directory of an allocation.
const LogDir = "alloc/logs"

// LogRequest is a request for a part of one output stream of a task.
type LogRequest struct {
	Alloc          *api.Allocation // only ID, NodeID and Namespace are used
	Task           string
	Stream         string
	Follow         bool
	FromNewestFile bool            // with Follow: start at the newest log file, not at the oldest
	TailLines      int             // number of lines from the end of the output; negative means all
	TailBytes      int64           // number of bytes from the end of the output; negative means all
	TaskEnded      <-chan struct{} // for FollowFramesUntilTaskEnded: closed when the task no longer writes output
}

// AssumedLineLength is the length of a line, in bytes, that requests for the last lines assume. It is the value of
// Nomad's command line.
const AssumedLineLength = 120

// StreamLog calls onData with each block of data of the requested part of the output. It returns when the output ends;
// the end of ctx is not an error.
func (r LogRequest) StreamLog(ctx context.Context, c *api.Client, onData func([]byte) error) error {
	switch {
	case !r.Follow && (r.TailLines == 0 || r.TailBytes == 0):
		return nil
	case r.TailBytes >= 0:
		return r.readStream(ctx, c, api.OriginEnd, r.TailBytes, FrameReader{OnData: onData})
	case r.Follow && r.TailLines >= 0:
		t := &tailBuffer{maxLines: r.TailLines, flushAtBytes: r.TailLines * AssumedLineLength, writeOutput: onData}
		return r.readStream(ctx, c, api.OriginEnd, int64(t.flushAtBytes), FrameReader{OnData: t.addData, onIdle: t.flush})
	case r.TailLines >= 0:
		return r.readLastLines(ctx, c, onData)
	case r.Follow && r.FromNewestFile:
		return r.readStream(ctx, c, api.OriginEnd, 0, FrameReader{OnData: onData})
	}
	return r.readStream(ctx, c, api.OriginStart, 0, FrameReader{OnData: onData})
}

// LastWriteTime returns the modification time of the stream's newest log file, or the zero time if the stream has no
// file.
func (r LogRequest) LastWriteTime(ctx context.Context, c *api.Client) (time.Time, error) {
	files, _, err := c.AllocFS().List(r.Alloc, LogDir, apiclient.QueryOptions(ctx, r.Alloc.Namespace))
	if err != nil {
		return time.Time{}, err
	}
	newest, written := int64(-1), time.Time{}
	for _, f := range files {
		if f == nil || f.IsDir {
			continue
		}
		if index, ok := logfile.Index(f.Name, logfile.Prefix(r.Task, r.Stream)); ok && index > newest {
			newest, written = index, f.ModTime
		}
	}
	return written, nil
}

// FollowFramesUntilTaskEnded calls onFrame with the frames of the output, from an offset in the concatenation of all
// existing log files, until TaskEnded is closed and no frame has arrived for idleDelay. Output that a busy agent sends
// later is lost. The end of ctx is not an error.
func (r LogRequest) FollowFramesUntilTaskEnded(ctx context.Context, c *api.Client, startByteOffset int64, onFrame func(*api.StreamFrame) error) error {
	return r.readStream(ctx, c, api.OriginStart, startByteOffset, FrameReader{OnFrame: onFrame, writerEnded: r.TaskEnded})
}

// readLastLines reads a part of the output's end that it enlarges until the part contains TailLines lines, and calls
// onData with these lines.
func (r LogRequest) readLastLines(ctx context.Context, c *api.Client, onData func([]byte) error) error {
	for size := int64(r.TailLines) * AssumedLineLength; ; size *= 8 {
		var logTail []byte
		err := r.readStream(ctx, c, api.OriginEnd, size, FrameReader{OnData: func(data []byte) error {
			logTail = append(logTail, data...)
			return nil
		}})
		if err != nil {
			return err
		}
		if end := LastLines(logTail, r.TailLines); len(end) < len(logTail) || int64(len(logTail)) < size {
			return onData(end)
		}
	}
}

func (r LogRequest) readStream(ctx context.Context, c *api.Client, origin string, offset int64, reader FrameReader) error {
	ctx, cancel := context.WithCancel(ctx) // cancel ends the goroutine of the Go client
	defer cancel()
	frames, errs := c.AllocFS().Logs(r.Alloc, r.Follow, r.Task, r.Stream, origin, offset, ctx.Done(), apiclient.QueryOptions(ctx, r.Alloc.Namespace))
	return reader.ReadFrames(ctx, frames, errs)
}
