package logs

import (
	"fmt"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
)

// StreamLimits bounds the disk space of one stream.
type StreamLimits struct {
	MaxFiles     int   // number of files that are kept, the newest ones
	MaxFileBytes int64 `json:"MaxFileSize"` // size limit of a file, which ends at the last line end before this size
}

// Task names a task and the directory for its output.
type Task struct {
	AllocID string
	Name    string

	// LogDir is the directory <alloc>/alloc/logs. Tasks can write to LogDir and to its parent, so
	// both are opened without following links. Tasks cannot write to <alloc>, which has the FIFOs.
	LogDir string

	StdoutLimits StreamLimits
	StderrLimits StreamLimits

	// AlreadyRunning means that the task runs, and writes to the FIFOs that the keeper holds, whatever
	// is in the directory of the allocation.
	AlreadyRunning bool
}

// Stream is one of the two outputs of a task: stdout or stderr.
type Stream string

// The streams of a task, as they appear in file names.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

var bothStreams = [...]Stream{Stdout, Stderr}

// OutputLoss reports that output of a task cannot be written, or that it can be written again.
type OutputLoss struct {
	AllocID        string
	Task           string
	Stream         Stream
	DroppedBytes   int64  // bytes dropped so far
	Reason         string // error of the file system
	WritingResumed bool   // the loss is over: output is written again, after a line in the log that marks the gap
}

// streamKey identifies a stream of a task.
type streamKey struct {
	AllocID string
	Task    string
	Stream  Stream
}

// keeperFDKey returns the key under which the keeper holds the read end of the stream's FIFO.
func (k streamKey) keeperFDKey() string {
	return fdKeyPrefix + k.AllocID + "/" + k.Task + "/" + string(k.Stream)
}

const fdKeyPrefix = "fifo/"

// tasksOfFDKeys returns the tasks that have a FIFO among the descriptors of the keeper, whose keys are given.
func tasksOfFDKeys(keys []string) map[taskKey]bool {
	tasks := make(map[taskKey]bool)
	for _, k := range keys {
		if name, ok := strings.CutPrefix(k, fdKeyPrefix); ok {
			if parts := strings.Split(name, "/"); len(parts) == 3 {
				tasks[taskKey{parts[0], parts[1]}] = true
			}
		}
	}
	return tasks
}

func (k streamKey) fifoName() string { return "." + k.Task + "." + string(k.Stream) + ".fifo" }

func (k streamKey) filePrefix() string { return logfile.Prefix(k.Task, string(k.Stream)) }

// validate rejects a stream other than stdout and stderr, because the name becomes part of a path.
func (k streamKey) validate() error {
	if k.Stream != Stdout && k.Stream != Stderr {
		return fmt.Errorf("stream %q is unknown", k.Stream)
	}
	return nil
}

// validate rejects names that would lead out of the log directory, and limits that permit no output.
func (t *Task) validate() error {
	switch {
	case t.AllocID == "" || strings.ContainsAny(t.AllocID, "/\x00"):
		return fmt.Errorf("allocation id %q cannot be used", t.AllocID)
	case t.Name == "" || strings.ContainsAny(t.Name, "/\x00"):
		return fmt.Errorf("task name %q cannot be part of a file name", t.Name)
	case len(t.Name) > 200:
		return fmt.Errorf("task name of %d bytes is too long for a file name", len(t.Name))
	}
	for _, s := range bothStreams {
		if l := t.limits(s); l.MaxFiles < 1 || l.MaxFileBytes < 1 {
			return fmt.Errorf("%s: limits of %d files of %d bytes leave no room", s, l.MaxFiles, l.MaxFileBytes)
		}
	}
	return nil
}

func (t *Task) limits(s Stream) StreamLimits {
	if s == Stdout {
		return t.StdoutLimits
	}
	return t.StderrLimits
}
