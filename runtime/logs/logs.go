package logs

import (
	"fmt"
	"strings"
)

// Limits bounds what is kept of one stream.
type Limits struct {
	MaxFiles    int   // how many files are kept, the newest ones
	MaxFileSize int64 // bytes; a file ends at the last line end before
}

// Task says whose output is collected, and where it goes.
type Task struct {
	AllocID string
	Name    string

	// Dir is the log directory, <alloc>/alloc/logs. Tasks can write to it and to
	// the directory above it, so these two are never reached through a link. They cannot
	// write to <alloc>, which has the FIFOs.
	Dir string

	Stdout Limits
	Stderr Limits
}

// Stream is one of the two outputs of a task.
type Stream string

// The streams of a task, as they appear in file names.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

var streams = [...]Stream{Stdout, Stderr}

// Loss tells that output of a task could not be written, or that it can be
// written again.
type Loss struct {
	AllocID string
	Task    string
	Stream  Stream
	Bytes   int64  // dropped so far
	Reason  string // what the file system says
	Over    bool   // output is written again; a line in the log tells of the gap
}

// key names one stream of one task.
type key struct {
	AllocID string `json:"alloc"`
	Task    string `json:"task"`
	Stream  Stream `json:"stream"`
}

// held is the key under which the keeper holds the read end.
func (k key) held() string { return "fifo/" + k.AllocID + "/" + k.Task + "/" + string(k.Stream) }

func (k key) fifoName() string { return "." + k.Task + "." + string(k.Stream) + ".fifo" }

// prefix is what the names of the stream's files begin with; a number follows.
func (k key) prefix() string { return k.Task + "." + string(k.Stream) + "." }

// check refuses a stream that does not exist, whose name would be part of a path.
func (k key) check() error {
	if k.Stream != Stdout && k.Stream != Stderr {
		return fmt.Errorf("stream %q is unknown", k.Stream)
	}
	return nil
}

// check refuses names that would not stay in the log directory.
func (t *Task) check() error {
	switch {
	case t.AllocID == "" || strings.ContainsAny(t.AllocID, "/\x00"):
		return fmt.Errorf("allocation id %q cannot be used", t.AllocID)
	case t.Name == "" || strings.ContainsAny(t.Name, "/\x00"):
		return fmt.Errorf("task name %q cannot be part of a file name", t.Name)
	case len(t.Name) > 200:
		return fmt.Errorf("task name of %d bytes is too long for a file name", len(t.Name))
	}
	for _, s := range streams {
		if l := t.limits(s); l.MaxFiles < 1 || l.MaxFileSize < 1 {
			return fmt.Errorf("%s: limits of %d files of %d bytes leave no room", s, l.MaxFiles, l.MaxFileSize)
		}
	}
	return nil
}

func (t *Task) limits(s Stream) Limits {
	if s == Stdout {
		return t.Stdout
	}
	return t.Stderr
}
