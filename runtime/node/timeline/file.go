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
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

const (
	// fileName is the name of the file in the directory of the allocation, where no task can write.
	fileName    = ".timeline"
	newFileName = fileName + ".new"

	// flushDelay is how long an ended span can wait for others, so that few spans need a write of their own.
	// An agent that is killed loses the spans of this time.
	flushDelay = 100 * time.Millisecond

	// exhaustedFlushDelay is the time between two writes while there is no free descriptor.
	exhaustedFlushDelay = 5 * time.Second

	// A file that is larger than maxFileSize is rewritten with the first keptFirst spans, which are about the
	// setup of the allocation, and with the last spans up to keptSize bytes.
	maxFileSize = 512 << 10
	keptSize    = maxFileSize / 2
	keptFirst   = 100

	// maxReadSize is how much of a file is read: it can be larger than maxFileSize by one write.
	maxReadSize = 2 * maxFileSize

	// maxPending is the number of spans that are kept while they cannot be written.
	maxPending = 1000
)

// File keeps the spans of one allocation. All methods may be called concurrently.
type File struct {
	openDir func() (*os.Root, error)
	trace   Trace // nil if spans are not exported
	logger  hclog.Logger

	ioMu sync.Mutex // held while the file is read or written; taken before mu

	mu         sync.Mutex
	active     map[string]tracespan.Span // spans that have not ended, by id
	pending    []tracespan.Span          // spans that are not written yet
	flushTimer *time.Timer               // not nil if a flush is scheduled
	closed     bool
	version    uint64
	changed    chan struct{} // closed at the next change; nil if no caller waits for it
}

// Trace exports the spans of an allocation as a distributed trace. Its methods are called concurrently, also
// while locks are held, and must not block.
type Trace interface {
	// Export is called once with each span that has ended.
	Export(tracespan.Span)
	// Traceparent returns the trace context, in the format of the HTTP header traceparent, in which the span
	// with an id is the parent.
	Traceparent(spanID string) string
	// ForTasks reports whether tasks get a trace context.
	ForTasks() bool
}

// NewFile returns the time line of an allocation. The function openDir opens the allocation's directory;
// spans are kept in memory while the directory does not exist. The trace may be nil.
func NewFile(openDir func() (*os.Root, error), trace Trace, logger hclog.Logger) *File {
	return &File{openDir: openDir, trace: trace, logger: logger, active: make(map[string]tracespan.Span)}
}

func (f *File) start(s tracespan.Span) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.active[s.ID] = s
	if s.Kind == tracespan.KindRun {
		f.appendLocked(s) // the run outlives the agent
	}
	f.notifyLocked(s.Start)
}

func (f *File) end(s tracespan.Span) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.active, s.ID)
	if f.closed {
		return
	}
	f.appendLocked(s)
	if f.trace != nil {
		f.trace.Export(s)
	}
	at := s.End
	if s.Kind == tracespan.KindEvent {
		at = time.Now() // the time of an event can come from a plugin
	}
	f.notifyLocked(at)
}

// remove removes a span that has not ended.
func (f *File) remove(s tracespan.Span) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, found := f.active[s.ID]; !found {
		return
	}
	delete(f.active, s.ID)
	f.notifyLocked(time.Now())
}

func (f *File) appendLocked(s tracespan.Span) {
	f.pending = append(f.pending, s)
	if f.flushTimer == nil {
		f.flushTimer = time.AfterFunc(flushDelay, f.Flush)
	}
}

// notifyLocked reports a change to readers. Versions are times, so that they increase across agents without
// a record of their own.
func (f *File) notifyLocked(at time.Time) {
	f.version = max(f.version+1, uint64(at.UnixMicro()))
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// Flush writes the ended spans. It logs errors, and keeps the spans for the next write.
func (f *File) Flush() {
	f.ioMu.Lock()
	defer f.ioMu.Unlock()
	f.mu.Lock()
	spans := f.pending
	f.pending, f.flushTimer = nil, nil
	f.mu.Unlock()
	if len(spans) == 0 {
		return
	}
	err := f.write(spans)
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(spans, f.pending...)
	if n := len(f.pending) - maxPending; n > 0 {
		f.pending = slices.Delete(f.pending, 0, n)
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
		// No later span may follow: an allocation is flushed for the last time when it ends.
		f.flushTimer = time.AfterFunc(exhaustedFlushDelay, f.Flush)
	}
}

// Close flushes, and ignores all later spans. The directory of the allocation can be removed afterwards.
func (f *File) Close() {
	f.mu.Lock()
	f.closed = true
	if f.flushTimer != nil {
		f.flushTimer.Stop()
	}
	f.mu.Unlock()
	f.Flush()
}

// write appends spans to the file. The caller holds ioMu.
func (f *File) write(spans []tracespan.Span) error {
	dir, err := f.openDir()
	if err != nil {
		return err
	}
	defer dir.Close()
	size, err := appendFile(dir, encode(spans))
	if err != nil || size <= maxFileSize {
		return err
	}
	all, err := readFile(dir)
	if err != nil {
		return err
	}
	return replaceFile(dir, encode(dropExcess(all)))
}

// appendFile writes to the end of the file in one call, and returns the size of the file.
func appendFile(dir *os.Root, content []byte) (size int64, err error) {
	file, err := dir.OpenFile(fileName, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
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

func replaceFile(dir *os.Root, content []byte) error {
	if err := dir.WriteFile(newFileName, content, 0o600); err != nil {
		return err
	}
	return dir.Rename(newFileName, fileName)
}

// dropExcess replaces spans in the middle by a gap.
func dropExcess(spans []tracespan.Span) []tracespan.Span {
	last, size := len(spans), 0
	for last > keptFirst {
		if size += len(encode(spans[last-1 : last])); size > keptSize {
			break
		}
		last--
	}
	if last <= keptFirst {
		return spans
	}
	dropped := spans[keptFirst:last]
	gap := tracespan.Span{ID: newID(), Kind: tracespan.KindGap, Name: "dropped", Start: dropped[0].Start}
	for _, s := range dropped {
		gap.Dropped += max(s.Dropped, 1) // a gap counts as what it has replaced
		gap.End = latest(gap.End, latest(s.Start, s.End))
	}
	return slices.Concat(spans[:keptFirst], []tracespan.Span{gap}, spans[last:])
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func encode(spans []tracespan.Span) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for i := range spans {
		_ = e.Encode(&spans[i]) // a Span has only strings, integers and times of this century, which all have a JSON form
	}
	return b.Bytes()
}

// readFile returns the spans of the file in the order of their start. A file that does not exist has no spans. Lines that are not
// spans, such as the incomplete line of a machine that lost power, are ignored.
func readFile(dir *os.Root) ([]tracespan.Span, error) {
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
	return decode(content), nil
}

func decode(content []byte) []tracespan.Span {
	var spans []tracespan.Span
	for line := range bytes.Lines(content) {
		var s tracespan.Span
		if json.Unmarshal(line, &s) == nil && s.ID != "" && len(s.ID) <= idLen {
			s.Clip()
			spans = append(spans, s)
		}
	}
	return merge(spans)
}

// merge sorts spans, and drops all but the last of the spans with the same id.
func merge(spans []tracespan.Span) []tracespan.Span {
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
	sortSpans(merged)
	return merged
}

// Snapshot is the state of a time line.
type Snapshot struct {
	Spans   []tracespan.Span // in the order of their start
	Version uint64           // increases with each change, also across agents
	Changed <-chan struct{}
}

// fileTimeTick is the longest tick of the clock from which Linux takes the time of a file (HZ is at least 100). The time of
// a file precedes its change by at most one tick.
const fileTimeTick = 10 * time.Millisecond

// Read returns all spans. Changed is closed at the next change.
func (f *File) Read() (Snapshot, error) {
	f.ioMu.Lock()
	defer f.ioMu.Unlock()
	var stored []tracespan.Span
	var modified time.Time
	dir, err := f.openDir()
	if err == nil {
		defer dir.Close()
		if info, statErr := dir.Lstat(fileName); statErr == nil {
			modified = info.ModTime()
		}
		stored, err = readFile(dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, err
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.version == 0 && !modified.IsZero() {
		f.version = uint64(modified.Add(fileTimeTick).UnixMicro())
	}
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	active := slices.SortedFunc(maps.Values(f.active), func(a, b tracespan.Span) int { return strings.Compare(a.ID, b.ID) })
	return Snapshot{Spans: merge(slices.Concat(stored, f.pending, active)), Version: f.version, Changed: f.changed}, nil
}

// sortSpans sorts spans by their start. Spans with the same start keep their order.
func sortSpans(spans []tracespan.Span) {
	slices.SortStableFunc(spans, func(a, b tracespan.Span) int { return a.Start.Compare(b.Start) })
}
