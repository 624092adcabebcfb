package timeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/replacefile"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

const (
	// fileName is the span file's name in the allocation's directory, where no task can write.
	fileName = ".timeline"

	// flushDelay is how long an ended span waits in memory, so that one write contains several spans. A killed agent loses
	// these spans. The start of a run does not wait.
	flushDelay = 100 * time.Millisecond

	// exhaustedFlushDelay is the time between two attempts to write while there is no free file descriptor.
	exhaustedFlushDelay = 5 * time.Second

	// A file larger than maxFileSize is rewritten with the first keptFirstSpans spans, which are about the
	// allocation's setup, and with the last spans up to keptLastBytes bytes.
	maxFileSize    = 512 << 10
	keptLastBytes  = maxFileSize / 2
	keptFirstSpans = 100

	// maxReadSize limits how many bytes of the file are read. The file can be larger than maxFileSize by one write.
	maxReadSize = 2 * maxFileSize

	// maxUnwrittenSpans limits the spans kept in memory after a failed write; older ones are dropped.
	maxUnwrittenSpans = 1000
)

// File is one allocation's time line: it stores the spans in a file in the allocation's directory. All methods may be called
// concurrently.
type File struct {
	dir    directory
	trace  Trace // nil if spans are not exported
	logger hclog.Logger

	fileIOMu sync.Mutex // held while the file is read or written; taken before mu

	mu               sync.Mutex
	activeSpanByID   map[string]tracespan.Span // spans in progress, by span id
	unwrittenSpans   []tracespan.Span          // spans not yet in the file
	flushTimer       *time.Timer               // not nil if a flush is scheduled
	closed           bool
	version          uint64
	changedSinceRead chan struct{} // closed at the next change; nil if no caller waits for it
}

// Trace exports an allocation's spans as a distributed trace. Its methods are called concurrently, also
// while locks are held, and must not block.
type Trace interface {
	// ExportEndedSpan is called once with each ended span.
	ExportEndedSpan(tracespan.Span)
	// Traceparent returns the trace context with the given span as parent, in the format for the HTTP header traceparent.
	Traceparent(spanID string) string
	// TasksGetTraceparent reports whether tasks get a trace context in the variable TRACEPARENT.
	TasksGetTraceparent() bool
}

// directory is an allocation's directory.
type directory interface {
	Open() (*os.Root, error)
	// OpenToAppend opens or creates a file in the directory, with mode 0600.
	OpenToAppend(name string) (*os.File, error)
}

// NewFile returns an allocation's time line. Spans are kept in memory while the allocation's directory does not exist. The
// trace may be nil.
func NewFile(dir directory, trace Trace, logger hclog.Logger) *File {
	return &File{dir: dir, trace: trace, logger: logger, activeSpanByID: make(map[string]tracespan.Span)}
}

func (f *File) addActiveSpan(s tracespan.Span) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.activeSpanByID[s.ID] = s
	if s.Kind == tracespan.KindRun {
		f.addUnwrittenAndScheduleFlushLocked(s, 0) // at once, because the process can outlive the agent and its record in the state
	}
	f.increaseVersionAndNotifyLocked(s.Start)
}

func (f *File) recordEndedSpan(s tracespan.Span) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.activeSpanByID, s.ID)
	if f.closed {
		return
	}
	f.addUnwrittenAndScheduleFlushLocked(s, flushDelay)
	if f.trace != nil {
		f.trace.ExportEndedSpan(s)
	}
	at := s.End
	if s.Kind == tracespan.KindEvent {
		at = time.Now() // an event's time may come from a plugin
	}
	f.increaseVersionAndNotifyLocked(at)
}

// dropActiveSpan drops a span in progress, so that it is not recorded.
func (f *File) dropActiveSpan(s tracespan.Span) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, found := f.activeSpanByID[s.ID]; !found {
		return
	}
	delete(f.activeSpanByID, s.ID)
	f.increaseVersionAndNotifyLocked(time.Now())
}

func (f *File) addUnwrittenAndScheduleFlushLocked(s tracespan.Span, delay time.Duration) {
	f.unwrittenSpans = append(f.unwrittenSpans, s)
	switch {
	case f.flushTimer == nil:
		f.flushTimer = time.AfterFunc(delay, f.Flush)
	case delay == 0:
		f.flushTimer.Reset(0)
	}
}

// increaseVersionAndNotifyLocked increases the version after a change, and closes changedSinceRead. Versions are times in
// microseconds, so they increase across agents although they are not stored.
func (f *File) increaseVersionAndNotifyLocked(changedAt time.Time) {
	f.version = max(f.version+1, uint64(changedAt.UnixMicro()))
	if f.changedSinceRead != nil {
		close(f.changedSinceRead)
		f.changedSinceRead = nil
	}
}

// Flush writes the spans not yet in the file. After an error, which it logs, it keeps the spans for the next write.
func (f *File) Flush() {
	f.fileIOMu.Lock()
	defer f.fileIOMu.Unlock()
	f.mu.Lock()
	spans := f.unwrittenSpans
	f.unwrittenSpans, f.flushTimer = nil, nil
	f.mu.Unlock()
	if len(spans) == 0 {
		return
	}
	err := f.appendSpansAndLimitFileSize(spans)
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unwrittenSpans = append(spans, f.unwrittenSpans...)
	if n := len(f.unwrittenSpans) - maxUnwrittenSpans; n > 0 {
		f.unwrittenSpans = slices.Delete(f.unwrittenSpans, 0, n)
	}
	if errors.Is(err, fs.ErrNotExist) || f.closed {
		return
	}
	if !osprocess.IsResourceExhausted(err) {
		f.logger.Error("time line of the allocation not written", "error", err)
		return
	}
	f.logger.Debug("time line of the allocation is written later", "error", err)
	if f.flushTimer == nil {
		// The write is repeated without a new span, because none may follow after the allocation has ended.
		f.flushTimer = time.AfterFunc(exhaustedFlushDelay, f.Flush)
	}
}

// Close writes the remaining spans and makes the File ignore all later ones, so that the allocation's directory can be
// removed afterwards.
func (f *File) Close() {
	f.mu.Lock()
	f.closed = true
	if f.flushTimer != nil {
		f.flushTimer.Stop()
	}
	f.mu.Unlock()
	f.Flush()
}

// appendSpansAndLimitFileSize appends spans to the file. The caller holds fileIOMu.
func (f *File) appendSpansAndLimitFileSize(spans []tracespan.Span) error {
	size, err := f.appendToTimelineFile(encodeSpansAsJSONLines(spans))
	if err != nil || size <= maxFileSize {
		return err
	}
	dir, err := f.dir.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	all, err := readSpansFromFile(dir)
	if err != nil {
		return err
	}
	return replacefile.WriteInRoot(dir, fileName, encodeSpansAsJSONLines(replaceMiddleSpansByGap(all)), 0o600)
}

// appendToTimelineFile appends content to the file in one write, and returns the file's new size.
func (f *File) appendToTimelineFile(content []byte) (size int64, err error) {
	file, err := f.dir.OpenToAppend(fileName)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(content); err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// replaceMiddleSpansByGap replaces the spans between the first keptFirstSpans and the last keptLastBytes by one
// tracespan.KindGap span.
func replaceMiddleSpansByGap(spans []tracespan.Span) []tracespan.Span {
	last, size := len(spans), 0
	for last > keptFirstSpans {
		if size += len(encodeSpansAsJSONLines(spans[last-1 : last])); size > keptLastBytes {
			break
		}
		last--
	}
	if last <= keptFirstSpans {
		return spans
	}
	dropped := spans[keptFirstSpans:last]
	gap := tracespan.Span{ID: newSpanID(), Kind: tracespan.KindGap, Name: "dropped", Start: dropped[0].Start}
	for _, s := range dropped {
		gap.Dropped += max(s.Dropped, 1) // a gap counts as the spans it has replaced
		gap.End = laterTime(gap.End, laterTime(s.Start, s.End))
	}
	return slices.Concat(spans[:keptFirstSpans], []tracespan.Span{gap}, spans[last:])
}

func laterTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func encodeSpansAsJSONLines(spans []tracespan.Span) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for i := range spans {
		_ = e.Encode(&spans[i]) // a Span has only strings, integers and times in this century, which all have a JSON form
	}
	return b.Bytes()
}

// readSpansFromFile returns the file's spans, sorted by start. A missing file has no spans. Invalid lines are ignored, such as
// an incomplete line after a power loss.
func readSpansFromFile(dir *os.Root) ([]tracespan.Span, error) {
	file, err := dir.OpenFile(fileName, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxReadSize))
	if err != nil {
		return nil, err
	}
	return decodeValidSpans(content), nil
}

func decodeValidSpans(content []byte) []tracespan.Span {
	var spans []tracespan.Span
	for line := range bytes.Lines(content) {
		var s tracespan.Span
		if json.Unmarshal(line, &s) == nil && s.ID != "" && len(s.ID) <= spanIDLen {
			s.TruncateTexts()
			spans = append(spans, s)
		}
	}
	return sortAndKeepLastPerID(spans)
}

// sortAndKeepLastPerID sorts spans by start. For spans with the same id it keeps only the last one.
func sortAndKeepLastPerID(spans []tracespan.Span) []tracespan.Span {
	at := make(map[string]int, len(spans))
	merged := make([]tracespan.Span, 0, len(spans))
	for _, s := range spans {
		if i, ok := at[s.ID]; ok {
			merged[i] = s
			continue
		}
		at[s.ID] = len(merged)
		merged = append(merged, s)
	}
	sortSpansByStart(merged)
	return merged
}

// Snapshot is a time line's state.
type Snapshot struct {
	Spans   []tracespan.Span // sorted by start
	Version uint64           // increases with each change, also across agents
	Changed <-chan struct{}
}

// fileTimeTick is the longest tick of Linux's clock for file times (HZ is at least 100). A file's time precedes its change
// by at most one tick.
const fileTimeTick = 10 * time.Millisecond

// ReadSnapshot returns all spans, those in the file and those in memory. Changed is closed at the next change.
func (f *File) ReadSnapshot() (Snapshot, error) {
	f.fileIOMu.Lock()
	defer f.fileIOMu.Unlock()
	var stored []tracespan.Span
	var modified time.Time
	dir, err := f.dir.Open()
	if err == nil {
		defer dir.Close()
		if info, statErr := dir.Lstat(fileName); statErr == nil {
			modified = info.ModTime()
		}
		stored, err = readSpansFromFile(dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, err
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.version == 0 && !modified.IsZero() {
		f.version = uint64(modified.Add(fileTimeTick).UnixMicro())
	}
	if f.changedSinceRead == nil {
		f.changedSinceRead = make(chan struct{})
	}
	active := slices.SortedFunc(maps.Values(f.activeSpanByID), func(a, b tracespan.Span) int { return strings.Compare(a.ID, b.ID) })
	return Snapshot{Spans: sortAndKeepLastPerID(slices.Concat(stored, f.unwrittenSpans, active)), Version: f.version, Changed: f.changedSinceRead}, nil
}

// LastRunByTask returns each task's last run span, by task name. The span's name is the task's start ID, and its plugin is
// the driver. A run may have no end if it ended just before the agent was killed.
func (f *File) LastRunByTask() (map[string]tracespan.Span, error) {
	snapshot, err := f.ReadSnapshot()
	runs := make(map[string]tracespan.Span)
	for _, s := range snapshot.Spans {
		if s.Kind == tracespan.KindRun && !s.Start.Before(runs[s.Task].Start) {
			runs[s.Task] = s
		}
	}
	return runs, err
}

// sortSpansByStart sorts spans by start. Spans with the same start keep their order.
func sortSpansByStart(spans []tracespan.Span) {
	slices.SortStableFunc(spans, func(a, b tracespan.Span) int { return a.Start.Compare(b.Start) })
}
