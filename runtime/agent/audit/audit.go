package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/eventlogger"
	"github.com/hashicorp/go-hclog"
	"github.com/ryanuber/go-glob"
)

// Defaults of a sink.
const (
	DefaultFileMode       fs.FileMode = 0o600
	DefaultRotateDuration             = 24 * time.Hour
)

// Sink is a file to which a log is written. A rotated file gets a timestamp in its name.
type Sink struct {
	Path           string
	Mode           fs.FileMode   // mode of the file; 0 means DefaultFileMode
	RotateBytes    int           // size from which the file is rotated; 0: no limit
	RotateDuration time.Duration // age from which the file is rotated; 0 means DefaultRotateDuration
	RotateMaxFiles int           // number of rotated files that are kept; 0: all
	// BestEffort lets a request go on if its record cannot be written.
	BestEffort bool
}

// Filter selects records that are not written. An empty list, and the element "*", match everything.
type Filter struct {
	Endpoints  []string // paths, in which * matches any text
	Stages     []Stage
	Operations []string // HTTP methods
}

// Settings are the settings of a log.
type Settings struct {
	Sinks   []Sink
	Filters []Filter
}

// Stage is a moment of a request.
type Stage string

// Stages of a request. One that is refused before its client is known has only the second.
const (
	OperationReceived Stage = "OperationReceived"
	OperationComplete Stage = "OperationComplete"
)

// Record is one line of a log.
type Record struct {
	ID        string    `json:"id"` // the same for both stages of a request
	Stage     Stage     `json:"stage"`
	Type      string    `json:"type"` // "audit"
	Timestamp time.Time `json:"timestamp"`
	Version   int       `json:"version"` // 1
	Auth      Auth      `json:"auth"`
	Request   Request   `json:"request"`
	Response  *Response `json:"response,omitempty"` // nil unless the request is complete
}

// Auth is the client of a request.
type Auth struct {
	AccessorID string     `json:"accessor_id"` // empty for a client without an ACL token
	Name       string     `json:"name"`        // name of the token, or what the client is
	Global     bool       `json:"global"`
	CreateTime *time.Time `json:"create_time,omitempty"`
}

// Request is what a client has requested.
type Request struct {
	ID          string      `json:"id"`
	Operation   string      `json:"operation"`        // HTTP method
	Endpoint    string      `json:"endpoint"`         // path
	Object      string      `json:"object,omitempty"` // the object, if the path does not name it; an addition to Nomad's form
	Namespace   Namespace   `json:"namespace"`
	RequestMeta RequestMeta `json:"request_meta"`
	NodeMeta    NodeMeta    `json:"node_meta"`
}

// Namespace is the namespace of a request.
type Namespace struct {
	ID string `json:"id"`
}

// RequestMeta is where a request came from.
type RequestMeta struct {
	RemoteAddress string `json:"remote_address"`
	UserAgent     string `json:"user_agent"`
}

// NodeMeta is where a request went to.
type NodeMeta struct {
	IP string `json:"ip"`
}

// Response is the result of a request.
type Response struct {
	StatusCode int    `json:"status_code"`
	Error      string `json:"error,omitempty"`
}

// New returns the record of a request that has just been received.
func New(auth Auth, request Request) Record {
	request.ID = uuid.NewString()
	return Record{ID: uuid.NewString(), Stage: OperationReceived, Type: "audit", Version: 1, Auth: auth, Request: request}
}

// Log writes records. A nil Log writes nothing. Its methods may be called concurrently.
type Log struct {
	sinks   []*sink
	filters []Filter
	logger  hclog.Logger
}

// sink is an open sink.
type sink struct {
	*eventlogger.FileSink
	bestEffort bool
	mu         sync.Mutex
	hasFailed  bool // the last record was not written
}

// Open returns a log, whose files it opens. The error names the file that cannot be opened.
func Open(s Settings, logger hclog.Logger) (*Log, error) {
	l := &Log{filters: s.Filters, logger: logger}
	for _, settings := range s.Sinks {
		f := &eventlogger.FileSink{
			Path: filepath.Dir(settings.Path), FileName: filepath.Base(settings.Path), Mode: settings.Mode, MaxBytes: settings.RotateBytes,
			MaxDuration: settings.RotateDuration, MaxFiles: settings.RotateMaxFiles, TimestampOnlyOnRotate: true,
		}
		if f.Mode == 0 {
			f.Mode = DefaultFileMode
		}
		if f.MaxDuration == 0 {
			f.MaxDuration = DefaultRotateDuration
		}
		if err := f.Reopen(); err != nil {
			return nil, fmt.Errorf("open audit log %s: %w", settings.Path, err)
		}
		if info, err := os.Stat(settings.Path); err == nil {
			f.BytesWritten = info.Size() // by earlier agents
		}
		l.sinks = append(l.sinks, &sink{FileSink: f, bestEffort: settings.BestEffort})
	}
	return l, nil
}

// ErrNotWritten is the error for a record that a sink with enforced delivery could not write.
var ErrNotWritten = errors.New("the audit log cannot be written, so the request is refused: see the log of the agent")

// Record writes a record to all sinks, with the present time. It returns ErrNotWritten if the request must not go on. It blocks until
// the operating system has the record.
func (l *Log) Record(r Record) error {
	if l == nil || slices.ContainsFunc(l.filters, func(f Filter) bool { return f.matches(r) }) {
		return nil
	}
	r.Timestamp = time.Now().UTC()
	event := &eventlogger.Event{Type: "audit", CreatedAt: r.Timestamp, Formatted: make(map[string][]byte), Payload: r}
	if _, err := new(eventlogger.JSONFormatter).Process(context.Background(), event); err != nil {
		l.logger.Error("record of the audit log not encoded", "endpoint", r.Request.Endpoint, "error", err)
		return ErrNotWritten
	}
	for _, s := range l.sinks {
		_, err := s.Process(context.Background(), event)
		s.logChange(l.logger, err)
		if err != nil && !s.bestEffort {
			return ErrNotWritten
		}
	}
	return nil
}

// logChange logs the first failure of a sink, and the first record after it that was written.
func (s *sink) logChange(logger hclog.Logger, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch failed := err != nil; {
	case failed && !s.hasFailed:
		logger.Error("audit log not written", "path", filepath.Join(s.Path, s.FileName), "requests_are_refused", !s.bestEffort, "error", err)
	case !failed && s.hasFailed:
		logger.Info("audit log is written again", "path", filepath.Join(s.Path, s.FileName))
	}
	s.hasFailed = err != nil
}

func (f Filter) matches(r Record) bool {
	return matchesAny(f.Endpoints, r.Request.Endpoint) && matchesAny(f.Stages, r.Stage) && matchesAny(f.Operations, r.Request.Operation)
}

func matchesAny[T ~string](patterns []T, text T) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p T) bool { return glob.Glob(string(p), string(text)) })
}
