package logs

import (
	"fmt"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// StreamLimits bounds one stream's disk space.
type StreamLimits = collectorwire.StreamLimits

// Stream is one of a task's two outputs: stdout or stderr.
type Stream = collectorwire.Stream

// A task's streams.
const (
	Stdout = collectorwire.Stdout
	Stderr = collectorwire.Stderr
)

// Task names a task and the directory for its output.
type Task struct {
	AllocID string
	Name    string

	// LogDir is the directory <alloc>/alloc/logs. Tasks can write to LogDir and to its parent, so
	// both are opened without following links. Tasks cannot write to <alloc>, which has the FIFOs.
	LogDir string

	StdoutLimits StreamLimits
	StderrLimits StreamLimits

	// AlreadyRunning: the task runs, and writes to the keeper's FIFOs, whatever is in the allocation's
	// directory.
	AlreadyRunning bool
}

var bothStreams = [...]Stream{Stdout, Stderr}

// OutputLoss reports that a task's output cannot be written, or can be written again.
type OutputLoss struct {
	AllocID        string
	Task           string
	Stream         Stream
	DroppedBytes   int64  // bytes dropped so far
	Reason         string // the file system's error
	WritingResumed bool   // the loss is over: output is written again, after a line in the log that marks the gap
}

// tasksOfFDKeys returns the tasks with a FIFO among the keeper's descriptors, given the descriptor keys.
func tasksOfFDKeys(keys []string) map[taskKey]bool {
	tasks := make(map[taskKey]bool)
	for _, k := range keys {
		if name, ok := strings.CutPrefix(k, collectorwire.FDKeyPrefix); ok {
			if parts := strings.Split(name, "/"); len(parts) == 3 {
				tasks[taskKey{parts[0], parts[1]}] = true
			}
		}
	}
	return tasks
}

// validate rejects names that would lead out of the log directory, and limits too low for any output.
func (t *Task) validate() error {
	for _, s := range bothStreams {
		if err := t.streamKey(s).Validate(); err != nil {
			return err
		}
		if err := t.limits(s).Validate(); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (t *Task) streamKey(s Stream) collectorwire.StreamKey {
	return collectorwire.StreamKey{AllocID: t.AllocID, Task: t.Name, Stream: s}
}

func (t *Task) limits(s Stream) StreamLimits {
	if s == Stdout {
		return t.StdoutLimits
	}
	return t.StderrLimits
}
