package timeline

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

func newTestFile(dir string) *File {
	return NewFile(testDir(dir), nil, hclog.NewNullLogger())
}

// testDir is an allocation's directory.
type testDir string

func (d testDir) Open() (*os.Root, error) { return os.OpenRoot(string(d)) }

func (d testDir) OpenToAppend(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(string(d), name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// exhaustedDir is a directory that cannot be opened for writing in the first calls, because no descriptor is free.
type exhaustedDir struct {
	testDir
	failures int
}

func (d *exhaustedDir) OpenToAppend(name string) (*os.File, error) {
	if d.failures > 0 {
		d.failures--
		return nil, unix.EMFILE
	}
	return d.testDir.OpenToAppend(name)
}

func readSpans(t testing.TB, f *File) []tracespan.Span {
	t.Helper()
	s, err := f.ReadSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s.Spans
}

func TestSpansAreKeptForTheNextAgent(t *testing.T) {
	dir := t.TempDir()
	f := newTestFile(dir)
	var secrets redact.Values
	secrets.Add("hunter2")
	task := f.Recorder("web", &secrets)
	hook := task.StartHookSpan("prestart", "logmon", true)
	if got := readSpans(t, f); len(got) != 1 || !got[0].End.IsZero() {
		t.Fatalf("spans before the end: %+v", got)
	}
	hook.End("1 mount", errors.New("the password hunter2 is wrong"))
	task.StartRunSpan("id/web/1", "raw_exec", time.Now())
	f.Recorder("", nil).RecordEvent("Alloc Healthy", "", time.Now())
	f.Flush()

	next := newTestFile(dir)
	spans := readSpans(t, next)
	if len(spans) != 3 {
		t.Fatalf("%d spans were stored, want 3: %+v", len(spans), spans)
	}
	if s := spans[0]; s.Task != "web" || s.Plugin != "logmon" || !s.Internal || s.Result != "1 mount" || s.Error != "the password <redacted> is wrong" || s.End.Before(s.Start) {
		t.Errorf("stored span of a hook: %+v", s)
	}
	if s := spans[1]; s.Kind != tracespan.KindRun || !s.End.IsZero() {
		t.Errorf("stored span of a run: %+v", s)
	}
	if s := spans[2]; s.Name != "Alloc Healthy" || s.Task != "" || !s.End.Equal(s.Start) {
		t.Errorf("stored event: %+v", s)
	}

	// The next agent recovers the process.
	next.Recorder("web", nil).StartRunSpan("id/web/1", "raw_exec", spans[1].Start).End("Exit Code: 0", nil)
	next.Close()
	spans = readSpans(t, newTestFile(dir))
	if len(spans) != 3 || spans[1].End.IsZero() || spans[1].Result != "Exit Code: 0" {
		t.Errorf("spans after the end of the run: %+v", spans)
	}
}

func TestVersionIncreasesWithEachChange(t *testing.T) {
	dir := t.TempDir()
	f := newTestFile(dir)
	before, err := f.ReadSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	f.Recorder("", nil).RecordEvent("a", "", time.Now())
	select {
	case <-before.Changed:
	default:
		t.Error("the channel is open after a change")
	}
	after, err := f.ReadSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	if after.Version <= before.Version {
		t.Errorf("version %d after version %d", after.Version, before.Version)
	}
	f.Close()
	lastTick := time.UnixMicro(int64(after.Version)).Truncate(10 * time.Millisecond)
	if err := os.Chtimes(filepath.Join(dir, fileName), time.Time{}, lastTick); err != nil {
		t.Fatal(err)
	}
	next, err := newTestFile(dir).ReadSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	if next.Version < after.Version {
		t.Errorf("version %d under the next agent, %d under the one before", next.Version, after.Version)
	}
}

func TestSpansWaitForTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "alloc")
	f := newTestFile(dir)
	for range 2 * maxUnwrittenSpans {
		f.Recorder("", nil).RecordEvent("Received", "", time.Now())
	}
	f.Flush()
	if got := len(readSpans(t, f)); got != maxUnwrittenSpans {
		t.Errorf("%d spans are kept without a directory, want %d", got, maxUnwrittenSpans)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f.Flush()
	if got := len(readSpans(t, newTestFile(dir))); got != maxUnwrittenSpans {
		t.Errorf("%d spans were stored, want %d", got, maxUnwrittenSpans)
	}
}

// After an allocation's last span no other one causes a write.
func TestLastSpansWaitForDescriptors(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := NewFile(&exhaustedDir{testDir(dir), 3}, nil, hclog.NewNullLogger())
		f.Recorder("", nil).RecordEvent("Received", "", time.Now())
		f.Flush()
		time.Sleep(time.Minute)
		synctest.Wait()
	})
	if got := len(readSpans(t, newTestFile(dir))); got != 1 {
		t.Errorf("%d spans were stored, want 1", got)
	}
}

func TestClosedFileIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	f := newTestFile(dir)
	span := f.Recorder("", nil).StartSpan(tracespan.KindHook, "destroy", "x")
	f.Close()
	span.End("", nil)
	f.Recorder("", nil).RecordEvent("late", "", time.Now())
	f.Flush()
	if _, err := os.Stat(filepath.Join(dir, fileName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("file after Close: %v", err)
	}
}

func TestExcessSpansBecomeAGap(t *testing.T) {
	dir := t.TempDir()
	f := newTestFile(dir)
	r := f.Recorder("web", nil)
	begin := time.Now()
	const count = 20000
	for i := range count {
		r.RecordEvent("Restarting", strings.Repeat("x", 50), begin.Add(time.Duration(i)*time.Second))
		if i%100 == 99 {
			f.Flush()
		}
		if info, err := os.Stat(filepath.Join(dir, fileName)); err == nil && info.Size() > maxReadSize {
			t.Fatalf("the file has %d bytes, more than are read", info.Size())
		}
	}
	f.Flush()
	spans := readSpans(t, f)
	gap := spans[keptFirstSpans]
	if gap.Kind != tracespan.KindGap || gap.Dropped+len(spans)-1 != count {
		t.Fatalf("of %d spans, %d are left, and %q has %d", count, len(spans)-1, gap.Kind, gap.Dropped)
	}
	if first := spans[0].Start; !first.Equal(begin) {
		t.Errorf("the first span starts at %v, want %v", first, begin)
	}
	if last := spans[len(spans)-1].Start; !last.Equal(begin.Add((count - 1) * time.Second)) {
		t.Errorf("the last span starts at %v", last)
	}
	if gap.Start.Before(spans[keptFirstSpans-1].Start) || gap.End.After(spans[keptFirstSpans+1].Start) {
		t.Errorf("the gap from %v to %v overlaps the spans beside it", gap.Start, gap.End)
	}
}

func TestShortWaitsAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFile(t.TempDir())
		r := f.Recorder("web", nil)
		short, long := r.StartWaitSpan("other tasks"), r.StartWaitSpan("restart delay")
		if spans := readSpans(t, f); len(spans) != 2 || !spans[0].End.IsZero() {
			t.Errorf("spans during the waits: %+v", spans)
		}
		short.End("", nil)
		time.Sleep(time.Second)
		long.End("", errors.New("task killed"))
		spans := readSpans(t, f)
		if len(spans) != 1 || spans[0].Name != "restart delay" || spans[0].Error != "task killed" || spans[0].End.Sub(spans[0].Start) != time.Second {
			t.Errorf("spans: %+v", spans)
		}
	})
}

func TestZeroRecorderRecordsNothing(t *testing.T) {
	var r Recorder
	r.StartSpan(tracespan.KindHook, "prestart", "x").End("", nil)
	r.StartRunSpan("1", "x", time.Now()).End("", nil)
	r.RecordEvent("x", "", time.Now())
	r.StartWaitSpan("x").End("", nil)
	want := errors.New("failed")
	if err := r.CallWithSpan(t.Context(), tracespan.KindDriver, "StopTask", "x", func(context.Context) error { return want }); err != want {
		t.Errorf("Record returned %v", err)
	}
}

func TestConcurrentUse(t *testing.T) {
	dir := t.TempDir()
	f := newTestFile(dir)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				f.Recorder("web", nil).StartSpan(tracespan.KindHook, "poststart", "x").End("", nil)
			}
		})
		wg.Go(func() {
			for range 20 {
				f.Flush()
				if _, err := f.ReadSnapshot(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	f.Close()
	if got := len(readSpans(t, newTestFile(dir))); got != 400 {
		t.Errorf("%d spans were stored, want 400", got)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"ID":"1","Kind":"hook","Start":"2026-01-02T03:04:05Z"}` + "\n" + `{"ID":"1","End":"2026-01-02T03:04:06Z"}` + "\n{\"ID"))
	f.Add([]byte(`{"ID":"2","Kind":"gap","Dropped":-1}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		ids := map[string]bool{}
		for _, s := range decodeValidSpans(content) {
			if s.ID == "" || ids[s.ID] {
				t.Errorf("id %q is empty or not unique", s.ID)
			}
			ids[s.ID] = true
			if len(s.Name) > tracespan.MaxTextLen || len(s.Result) > tracespan.MaxTextLen {
				t.Errorf("text of %d and %d bytes", len(s.Name), len(s.Result))
			}
		}
	})
}

// spansPerAlloc is about how many spans a one-task allocation has when it starts and stops.
const spansPerAlloc = 50

// BenchmarkSpan measures what a recorded call costs, with its share of the writes. The floor is a
// call without a recorder.
func BenchmarkSpan(b *testing.B) {
	f := newTestFile(b.TempDir())
	for name, r := range map[string]Recorder{"recorded": f.Recorder("web", nil), "floor": {}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				r.StartSpan(tracespan.KindHook, "prestart", "logmon").End("", nil)
				if n++; n%spansPerAlloc == 0 && r.file != nil {
					r.file.Close()
					r = newTestFile(b.TempDir()).Recorder("web", nil)
				}
			}
		})
	}
}
