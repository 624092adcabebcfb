package store

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// taskStateRecord is the stored form of an api.TaskState, and taskEventRecord of an api.TaskEvent. Empty fields are omitted
// because most event fields are deprecated and always empty, and all the field names would be the largest part of each write
// about a task. The API types can decode both.
type taskStateRecord struct {
	State       string
	Failed      bool   `store:",omitempty"`
	Restarts    uint64 `store:",omitempty"`
	LastRestart time.Time
	StartedAt   time.Time
	FinishedAt  time.Time
	Events      []*taskEventRecord
}

// taskEventRecord has exactly the fields of api.TaskEvent, so it can be converted to that type. It is large because
// api.TaskEvent is.
type taskEventRecord struct {
	Type             string
	Time             int64
	DisplayMessage   string            `store:",omitempty"`
	Details          map[string]string // not omitted when it is empty, because an empty map differs from nil
	Message          string            `store:",omitempty"`
	FailsTask        bool              `store:",omitempty"`
	RestartReason    string            `store:",omitempty"`
	SetupError       string            `store:",omitempty"`
	DriverError      string            `store:",omitempty"`
	DriverMessage    string            `store:",omitempty"`
	ExitCode         int               `store:",omitempty"`
	Signal           int               `store:",omitempty"`
	KillReason       string            `store:",omitempty"`
	KillTimeout      time.Duration     `store:",omitempty"`
	KillError        string            `store:",omitempty"`
	StartDelay       int64             `store:",omitempty"`
	DownloadError    string            `store:",omitempty"`
	ValidationError  string            `store:",omitempty"`
	DiskLimit        int64             `store:",omitempty"`
	DiskSize         int64             `store:",omitempty"`
	FailedSibling    string            `store:",omitempty"`
	VaultError       string            `store:",omitempty"`
	TaskSignalReason string            `store:",omitempty"`
	TaskSignal       string            `store:",omitempty"`
	GenericSource    string            `store:",omitempty"`
}

func newTaskStateRecord(s *api.TaskState) *taskStateRecord {
	if s == nil {
		return nil
	}
	stored := &taskStateRecord{
		State: s.State, Failed: s.Failed, Restarts: s.Restarts,
		LastRestart: s.LastRestart, StartedAt: s.StartedAt, FinishedAt: s.FinishedAt,
	}
	if s.Events != nil {
		stored.Events = make([]*taskEventRecord, len(s.Events))
	}
	for i, e := range s.Events {
		stored.Events[i] = (*taskEventRecord)(e)
	}
	return stored
}
