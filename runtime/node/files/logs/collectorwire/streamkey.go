package collectorwire

import (
	"fmt"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
)

// StreamLimits bounds one stream's disk space.
type StreamLimits struct {
	MaxFiles     int   // how many files are kept, the newest ones
	MaxFileBytes int64 `json:"MaxFileSize"` // file size limit; a file ends at the last line end before this size
}

// Stream is one of a task's two outputs: stdout or stderr.
type Stream string

// A task's streams, as they appear in file names.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// StreamKey identifies a task's stream.
type StreamKey struct {
	AllocID string
	Task    string
	Stream  Stream
}

// KeeperFDKey returns the key under which the keeper holds the read end of the stream's FIFO.
func (k StreamKey) KeeperFDKey() string {
	return FDKeyPrefix + k.AllocID + "/" + k.Task + "/" + string(k.Stream)
}

// FDKeyPrefix is the first part of FIFO keys.
const FDKeyPrefix = "fifo/"

// FIFOName returns the stream's FIFO name.
func (k StreamKey) FIFOName() string { return "." + k.Task + "." + string(k.Stream) + ".fifo" }

// FilePrefix returns the stream's log file name without the number.
func (k StreamKey) FilePrefix() string { return logfile.Prefix(k.Task, string(k.Stream)) }

// Validate rejects a stream other than stdout and stderr, and names that would lead out of the log directory, because they
// become parts of paths.
func (k StreamKey) Validate() error {
	switch {
	case k.Stream != Stdout && k.Stream != Stderr:
		return fmt.Errorf("stream %q is unknown", k.Stream)
	case k.AllocID == "" || strings.ContainsAny(k.AllocID, "/\x00"):
		return fmt.Errorf("allocation id %q cannot be used", k.AllocID)
	case k.Task == "" || strings.ContainsAny(k.Task, "/\x00"):
		return fmt.Errorf("task name %q cannot be part of a file name", k.Task)
	case len(k.Task) > 200:
		return fmt.Errorf("task name of %d bytes is too long for a file name", len(k.Task))
	}
	return nil
}

// Validate rejects limits that permit no output.
func (l StreamLimits) Validate() error {
	if l.MaxFiles < 1 || l.MaxFileBytes < 1 {
		return fmt.Errorf("limits of %d files of %d bytes leave no room", l.MaxFiles, l.MaxFileBytes)
	}
	return nil
}
