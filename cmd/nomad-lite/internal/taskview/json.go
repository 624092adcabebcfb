package taskview

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
)

// The types of records.
const (
	recordOutput  = "output"  // one line that a task has written
	recordEvent   = "event"   // an event of a task
	recordMessage = "message" // message of nomad-lite itself
	recordResult  = "result"  // result of a job that has ended
)

// jsonRecord is a line of JSON on standard output. Programs parse it, so fields can be added but never renamed.
type jsonRecord struct {
	Time     time.Time
	Type     string
	JobID    string          `json:",omitempty"`
	AllocID  string          `json:",omitempty"`
	Task     string          `json:",omitempty"`
	Stream   string          `json:",omitempty"` // "stdout" or "stderr" of the task
	Event    string          `json:",omitempty"` // type of the event
	ExitCode *int            `json:",omitempty"` // of the event Terminated
	Signal   *int            `json:",omitempty"` // of the event Terminated
	Success  *bool           `json:",omitempty"` // of a result
	Failures []failureRecord `json:",omitempty"`
	Text     string
}

// failureRecord is a task, or an allocation as a whole, that did not end successfully.
type failureRecord struct {
	AllocID string
	Task    string `json:",omitempty"`
	Reason  string
}

// NewJSONView returns a view that writes a JSON object per line to standard output, for programs. The caller
// must close it.
func NewJSONView(s *cli.Streams) *View {
	v := newView(nil)
	v.isJSON = true
	v.out = v.newOutputStream(s, s.JSONOutput(), &v.mu)
	v.err = v.out
	v.wg.Go(v.showUpdatesUntilClosed)
	return v
}

// newTaskRecord returns a record of a task.
func newTaskRecord(recordType string, t *Task) jsonRecord {
	return jsonRecord{Time: time.Now(), Type: recordType, JobID: t.Alloc.JobID, AllocID: t.Alloc.ID, Task: t.Name}
}

func (v *View) writeRecord(r jsonRecord) {
	text, _ := json.Marshal(r) // Marshal fails only for types that a record does not have
	v.writeToStream(&v.out, append(text, '\n'))
}

func (v *View) writeOutputRecords(t *Task, isStderr bool, text []byte) {
	for line := range bytes.Lines(text) {
		r := newTaskRecord(recordOutput, t)
		r.Stream = api.FSLogNameStdout
		if isStderr {
			r.Stream = api.FSLogNameStderr
		}
		r.Text = string(bytes.TrimSuffix(line, []byte("\n")))
		v.writeRecord(r)
	}
}

func (v *View) writeEventRecord(t *Task, e *api.TaskEvent) {
	r := newTaskRecord(recordEvent, t)
	r.Time, r.Event, r.Text = time.Unix(0, e.Time), e.Type, strings.TrimSpace(e.DisplayMessage)
	if e.Type == api.TaskTerminated {
		r.ExitCode, r.Signal = &e.ExitCode, &e.Signal
	}
	v.writeRecord(r)
}

// QueueResult queues the result of a job: its failures, or the reason of its end if there are none. A view for people
// prints only the reason, because the command's error lists the failures.
func (v *View) QueueResult(jobID string, failures []taskreason.TaskWithReason, reasonIfNoFailures string) {
	if !v.isJSON {
		if len(failures) == 0 {
			v.QueueMessage(reasonIfNoFailures)
		}
		return
	}
	r := jsonRecord{Time: time.Now(), Type: recordResult, JobID: jobID, Success: new(len(failures) == 0), Text: reasonIfNoFailures}
	for _, f := range failures {
		r.Failures = append(r.Failures, failureRecord{f.Alloc.ID, f.Name, f.Reason.String()})
	}
	v.enqueue(queuedUpdate{jsonRecord: &r})
}
