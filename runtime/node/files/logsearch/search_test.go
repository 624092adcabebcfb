package logsearch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// writtenLine is a line written by a test.
type writtenLine struct {
	streamOrder  int
	fileIndex    int64
	offset       int64
	milliseconds int64 // lowest time among all writes to the file from the line start on
	text         string
	isPartial    bool
}

func (l writtenLine) String() string {
	return fmt.Sprintf("%d.%d.%d@%d %.40q", l.streamOrder, l.fileIndex, l.offset, l.milliseconds, l.text)
}

func compareWrittenLines(a, b writtenLine) int {
	return cmp.Or(cmp.Compare(a.milliseconds, b.milliseconds), cmp.Compare(a.streamOrder, b.streamOrder), cmp.Compare(a.fileIndex, b.fileIndex), cmp.Compare(a.offset, b.offset))
}

// writtenStream is a stream with files written by a test.
type writtenStream struct {
	Stream
	order int
	index int64
	files map[int64][]arrivedBytes
}

// arrivedBytes is output with its arrival time.
type arrivedBytes struct {
	milliseconds int64
	data         string
}

func newWrittenStream(t *testing.T, order int, key StreamKey) *writtenStream {
	dir := filepath.Join(t.TempDir(), "alloc", "logs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return &writtenStream{Stream: Stream{key, dir}, order: order, files: map[int64][]arrivedBytes{}}
}

// write appends output to the newest file.
func (w *writtenStream) write(milliseconds int64, data string) {
	w.files[w.index] = append(w.files[w.index], arrivedBytes{milliseconds, data})
}

// store writes the files, and the arrival time files as the log collector does.
func (w *writtenStream) store(t *testing.T) {
	t.Helper()
	for index, writes := range w.files {
		var content, times []byte
		var previous logfile.ArrivalTime
		for _, one := range writes {
			next := logfile.ArrivalTime{Offset: int64(len(content)), Time: time.UnixMilli(one.milliseconds)}
			if len(one.data) > 0 && !next.Time.Equal(previous.Time) {
				times = logfile.AppendArrivalTime(times, previous, next)
				previous = next
			}
			content = append(content, one.data...)
		}
		name := logfile.Name(logfile.Prefix(w.Task, string(w.Output)), index)
		for name, content := range map[string][]byte{name: content, logfile.ArrivalTimesFile(name): times} {
			if err := os.WriteFile(filepath.Join(w.LogDir, name), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// lines returns all files' lines, from the writes and not from the files.
func (w *writtenStream) lines() (lines []writtenLine) {
	for index, writes := range w.files {
		var content strings.Builder
		var timeOfByte []int64
		for _, one := range writes {
			content.WriteString(one.data)
			timeOfByte = append(timeOfByte, slices.Repeat([]int64{one.milliseconds}, len(one.data))...)
		}
		for i := len(timeOfByte) - 2; i >= 0; i-- {
			timeOfByte[i] = min(timeOfByte[i], timeOfByte[i+1])
		}
		offset := 0
		for line := range strings.Lines(content.String()) {
			for len(line) > 0 {
				piece := line[:min(len(line), maxLineBytes)]
				lines = append(lines, writtenLine{
					w.order, index, int64(offset), timeOfByte[offset], strings.TrimSuffix(piece, "\n"),
					!strings.HasSuffix(piece, "\n") && len(piece) < maxLineBytes,
				})
				offset, line = offset+len(piece), line[len(piece):]
			}
		}
	}
	return lines
}

const testTime = int64(1_763_762_400_000)

// randomStreams writes streams with rotated files, equal times, lines that arrive in pieces, long lines and lines without an end. If
// isClockSetBack is true, times decrease now and then.
func randomStreams(t *testing.T, random *rand.Rand, count int, isClockSetBack bool) []*writtenStream {
	var all []*writtenStream
	for order := range count {
		w := newWrittenStream(t, order, StreamKey{fmt.Sprintf("alloc-%d", order/2), "web.1", []logs.Stream{logs.Stdout, logs.Stderr}[order%2]})
		w.index = random.Int64N(3)
		now := testTime + random.Int64N(50)
		for line := range random.IntN(400) {
			text := fmt.Sprintf("stream %d line %d %s\n", order, line, []string{"ok", "ERROR", "\x00\xff", "größe"}[random.IntN(4)])
			switch random.IntN(40) {
			case 0:
				text = strings.Repeat("long ", random.IntN(8000)) + text
			case 1:
				text = strings.Repeat("x", maxLineBytes-1+random.IntN(3)) + "\n"
			case 2:
				text = "\n"
			case 3:
				text = strings.TrimSuffix(text, "\n")
			}
			pieces := 1 + random.IntN(2)
			for i := range pieces {
				w.write(now, text[i*len(text)/pieces:(i+1)*len(text)/pieces])
				now += max(0, random.Int64N(12)-6)
			}
			if isClockSetBack && random.IntN(30) == 0 {
				now -= random.Int64N(40)
			}
			if random.IntN(50) == 0 {
				w.index++
				if isClockSetBack {
					now += 1000 // different files are ordered by index
				}
			}
		}
		w.store(t)
		all = append(all, w)
	}
	return all
}

// collect runs a search and returns its lines.
func collect(t *testing.T, r Request) (lines []writtenLine) {
	t.Helper()
	order := map[StreamKey]int{}
	for i, s := range r.Streams {
		order[s.StreamKey] = i
	}
	var last Progress
	err := Run(t.Context(), r, func(l Line) error {
		lines = append(lines, writtenLine{order[l.Stream], l.FileIndex, l.Offset, l.Time.UnixMilli(), string(l.Text), l.IsPartial})
		if parsed, err := ParsePosition(l.Position.String()); err != nil || parsed != l.Position {
			t.Fatalf("position %q is parsed as %v, %v", l.Position, parsed, err)
		}
		return nil
	}, func(p Progress) error { last = p; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if !last.IsComplete || last.ReadBytes != last.TotalBytes {
		t.Errorf("the search ends after %+v", last)
	}
	return lines
}

func checkLines(t *testing.T, what string, got, want []writtenLine) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Fatalf("%s: %d lines, want %d; the next is %s", what, len(got), len(want), want[i])
		case i >= len(want):
			t.Fatalf("%s: %d lines, want %d; the next is %s", what, len(got), len(want), got[i])
		case got[i] != want[i]:
			t.Fatalf("%s: line %d of %d: got %s, want %s", what, i, len(want), got[i], want[i])
		}
	}
}

// TestRunReturnsExactlyTheWrittenLines compares searches from all kinds of positions with the written lines.
func TestRunReturnsExactlyTheWrittenLines(t *testing.T) {
	t.Parallel()
	expression := regexp.MustCompile(`line \d*7 (ERROR|gr.*e)$`)
	filters := []struct {
		name    string
		Filter  Filter
		matches func(string) bool
	}{
		{"all", Filter{}, func(string) bool { return true }},
		{"text", must(NewTextFilter("Error")), func(text string) bool { return strings.Contains(strings.ToLower(text), "error") }},
		{"regular expression", must(NewRegexpFilter(expression.String())), expression.MatchString},
		{"absent text", must(NewTextFilter("absent")), func(string) bool { return false }},
	}
	removed := filepath.Join(t.TempDir(), "removed", "logs")
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 1))
		written := randomStreams(t, random, 1+random.IntN(6), seed%3 == 2)
		var streams []Stream
		var all []writtenLine
		for _, w := range written {
			streams = append(streams, w.Stream)
			all = append(all, w.lines()...)
		}
		for i := range []int{0, 2100, 0}[seed%3] { // many streams make the pages small
			streams = append(streams, Stream{StreamKey{fmt.Sprintf("removed-%d", i), "t", logs.Stdout}, removed})
		}
		slices.SortFunc(all, compareWrittenLines)
		for _, f := range filters {
			var want []writtenLine
			for _, l := range all {
				if f.matches(l.text) {
					want = append(want, l)
				}
			}
			what := fmt.Sprintf("seed %d, %s", seed, f.name)
			backward := func(lines []writtenLine) []writtenLine {
				lines = slices.Clone(lines)
				slices.Reverse(lines)
				return lines
			}
			checkLines(t, what, collect(t, Request{Streams: streams, Filter: f.Filter}), want)
			checkLines(t, what+", backward", collect(t, Request{Streams: streams, Filter: f.Filter, Backward: true}), backward(want))
			for range 2 {
				if len(all) == 0 {
					break
				}
				at := all[random.IntN(len(all))]
				from := &Position{Time: time.UnixMilli(at.milliseconds), Stream: streams[at.streamOrder].StreamKey, FileIndex: at.fileIndex, Offset: at.offset}
				split, found := slices.BinarySearchFunc(want, at, compareWrittenLines)
				after := split
				if found {
					after++
				}
				where := what + " from " + at.String()
				checkLines(t, where, collect(t, Request{Streams: streams, Filter: f.Filter, From: from}), want[split:])
				checkLines(t, where+", without it", collect(t, Request{Streams: streams, Filter: f.Filter, From: from, ExcludeFrom: true}), want[after:])
				checkLines(t, where+", backward", collect(t, Request{Streams: streams, Filter: f.Filter, From: from, Backward: true}), backward(want[:split]))

				from = &Position{Time: time.UnixMilli(at.milliseconds + random.Int64N(3) - 1)}
				split, _ = slices.BinarySearchFunc(want, from.Time.UnixMilli(), func(l writtenLine, at int64) int { return cmp.Compare(l.milliseconds, at) })
				where = what + " from " + from.String()
				checkLines(t, where, collect(t, Request{Streams: streams, Filter: f.Filter, From: from}), want[split:])
				checkLines(t, where+", backward", collect(t, Request{Streams: streams, Filter: f.Filter, From: from, Backward: true}), backward(want[:split]))
			}
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// TestFollowReturnsEachLineOnce follows streams while they are written, rotated and added.
func TestFollowReturnsEachLineOnce(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 7))
	var written []*writtenStream
	add := func() {
		written = append(written, newWrittenStream(t, len(written), StreamKey{fmt.Sprintf("alloc-%d", len(written)), "t", logs.Stdout}))
	}
	add()
	add()
	now, line, isPartial := testTime, 0, false
	writeSome := func() (streams []Stream) {
		for _, w := range written {
			for range random.IntN(5) {
				text := fmt.Sprintf("line %d\n", line)
				line++
				w.write(now, text[:len(text)/2])
				now += random.Int64N(3)
				w.write(now, text[len(text)/2:])
				if random.IntN(10) == 0 {
					w.index++
				}
			}
			if isPartial {
				w.write(now, "prompt")
			}
			w.store(t)
			streams = append(streams, w.Stream)
		}
		return streams
	}
	streams := writeSome()
	ended := errors.New("ended")
	rounds := 0
	var got []writtenLine
	err := Run(t.Context(), Request{Streams: streams, Follow: func(context.Context) ([]Stream, error) {
		rounds++
		switch {
		case rounds == 20 || rounds == 40:
			add()
		case rounds == 60: // a partial line is kept until its file has not changed for a while
			isPartial = true
			return writeSome(), nil
		case rounds == 61:
			for _, l := range got {
				if l.isPartial {
					t.Errorf("the line %s has arrived at once", l)
				}
			}
			var streams []Stream
			for _, w := range written {
				names, err := filepath.Glob(filepath.Join(w.LogDir, "t.*"))
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range names {
					if err := os.Chtimes(name, time.Time{}, time.Now().Add(-2*partialLineAge)); err != nil {
						t.Fatal(err)
					}
				}
				streams = append(streams, w.Stream)
			}
			return streams, nil
		case rounds == 62:
			return nil, ended
		}
		return writeSome(), nil
	}}, func(l Line) error {
		if l.AfterGap {
			t.Errorf("gap before %s", l.Position)
		}
		order := slices.IndexFunc(written, func(w *writtenStream) bool { return w.StreamKey == l.Stream })
		got = append(got, writtenLine{order, l.FileIndex, l.Offset, l.Time.UnixMilli(), string(l.Text), l.IsPartial})
		return nil
	}, func(Progress) error { return nil })
	if err != ended {
		t.Fatal(err)
	}
	for order, w := range written {
		want := w.lines()
		slices.SortFunc(want, compareWrittenLines)
		var lines []writtenLine
		for _, l := range got {
			if l.streamOrder == order {
				lines = append(lines, l)
			}
		}
		checkLines(t, fmt.Sprintf("stream %d", order), lines, want)
	}
}

// TestFollowReportsRemovedFiles removes unread files.
func TestFollowReportsRemovedFiles(t *testing.T) {
	t.Parallel()
	w := newWrittenStream(t, 0, StreamKey{"a", "t", logs.Stdout})
	w.write(testTime, "first\n")
	w.store(t)
	ended := errors.New("ended")
	var got []string
	err := Run(t.Context(), Request{Streams: []Stream{w.Stream}, Follow: func(context.Context) ([]Stream, error) {
		if len(got) > 1 {
			return nil, ended
		}
		w.index, w.files = 5, map[int64][]arrivedBytes{}
		w.write(testTime, "later\n")
		w.store(t)
		return []Stream{w.Stream}, os.Remove(filepath.Join(w.LogDir, "t.stdout.0"))
	}}, func(l Line) error {
		got = append(got, fmt.Sprintf("%s %v", l.Text, l.AfterGap))
		return nil
	}, func(Progress) error { return nil })
	if want := "[first false later true]"; err != ended || fmt.Sprint(got) != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// TestRunReadsNoFilesOfOthers checks that links and hard links in place of log files are not read.
func TestRunReadsNoFilesOfOthers(t *testing.T) {
	t.Parallel()
	w := newWrittenStream(t, 0, StreamKey{"a", "t", logs.Stdout})
	w.write(testTime, "own\n")
	w.store(t)
	secret := filepath.Join(filepath.Dir(filepath.Dir(w.LogDir)), "secret")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(secret, filepath.Join(w.LogDir, "t.stdout.1")), os.Link(secret, filepath.Join(w.LogDir, "t.stdout.2")), os.Mkdir(filepath.Join(w.LogDir, "t.stdout.3"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, Request{Streams: []Stream{w.Stream}}); len(got) != 1 || got[0].text != "own" {
		t.Errorf("got %v", got)
	}
}

// TestRunContinuesInTruncatedFile truncates a file with an unreadable size, in both directions.
func TestRunContinuesInTruncatedFile(t *testing.T) {
	t.Parallel()
	for _, isBackward := range []bool{false, true} {
		w := newWrittenStream(t, 0, StreamKey{"a", "t", logs.Stdout})
		w.write(testTime, "line\n")
		w.store(t)
		w.index++
		w.write(testTime+1, "later\n")
		w.store(t)
		path := filepath.Join(w.LogDir, "t.stdout.1")
		if err := os.Truncate(path, 1<<42); err != nil {
			t.Fatal(err)
		}
		reads, got := 0, ""
		err := Run(t.Context(), Request{Streams: []Stream{w.Stream}, Filter: must(NewTextFilter("l")), Backward: isBackward}, func(l Line) error {
			got += string(l.Text) + " "
			return nil
		}, func(Progress) error {
			if reads++; reads == 3 {
				return os.Truncate(path, 6)
			}
			return nil
		})
		if want := map[bool]string{false: "line later ", true: "later line "}[isBackward]; err != nil || got != want {
			t.Errorf("backward %v: got %q, %v, want %q", isBackward, got, err, want)
		}
	}
}

// TestRunEndsWithItsContext checks that a search without matches ends soon after its client has disconnected.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := newWrittenStream(t, 0, StreamKey{"a", "t", logs.Stdout})
	w.write(testTime, strings.Repeat("line\n", 1<<20))
	w.store(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	disconnected := errors.New("disconnected")
	reads := 0
	err := Run(ctx, Request{Streams: []Stream{w.Stream}, Filter: must(NewTextFilter("absent"))}, func(Line) error { return nil }, func(p Progress) error {
		if reads++; reads == 3 {
			cancel(disconnected)
		}
		return nil
	})
	if err != disconnected || reads != 3 {
		t.Errorf("%d reads, error %v", reads, err)
	}
}

func TestParsePosition(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x", "-1", "1.2", "1.2.3.stdout.a", "1.2.3.stdin.a.t", "1.2.3.stdout..t", "1.2.3.stdout.a.", "1.-2.3.stdout.a.t", "9999999999999999999"} {
		if p, err := ParsePosition(text); err == nil {
			t.Errorf("%q is parsed as %v", text, p)
		}
	}
	if p, err := ParsePosition("5"); err != nil || p != (Position{Time: time.UnixMilli(5)}) {
		t.Errorf("got %v, %v", p, err)
	}
}

// FuzzTimesIndex compares an arrival time file's index with all times in the file.
func FuzzTimesIndex(f *testing.F) {
	f.Add([]byte{1, 1, 200, 3, 0, 1}, uint16(10), uint16(300), false)
	f.Add([]byte(strings.Repeat("\x05\x07\xfe", 700)), uint16(0), uint16(9000), false)
	f.Add([]byte(strings.Repeat("\x05\x07\x02\xfa", 900)), uint16(200), uint16(9000), true)
	f.Fuzz(func(t *testing.T, steps []byte, from, length uint16, isTruncated bool) {
		// The clock is set back, or the log file is truncated: records that no longer apply can lower the times before them if both
		// happen.
		var content []byte
		var previous logfile.ArrivalTime
		next := logfile.ArrivalTime{Time: time.UnixMilli(testTime)}
		for i, step := range steps {
			content = logfile.AppendArrivalTime(content, previous, next)
			previous = next
			next.Offset += int64(step%31) + 1
			next.Time = next.Time.Add(time.Duration(step%7+1) * time.Millisecond)
			switch {
			case step > 250 && isTruncated:
				next.Offset = max(0, next.Offset-int64(step)*int64(i%9))
			case step > 250:
				next.Time = next.Time.Add(-time.Duration(i%50) * time.Millisecond)
			case step == 250:
				content = append(content, 0x85) // a partial record
				previous = logfile.ArrivalTime{}
			}
		}
		all := logfile.ParseArrivalTimes(content)
		times := make([]arrivalRecord, len(all))
		later := int64(afterAllTimes)
		for i, at := range slices.Backward(all) {
			later = min(later, at.Time.UnixMilli())
			times[i] = arrivalRecord{at.Offset, later}
		}
		read := func(p []byte, offset int64) (int, error) { return bytes.NewReader(content).ReadAt(p, offset) }
		x, err := newTimesIndex(int64(len(content)), func(p []byte, offset int64) (int, error) {
			n, _ := read(p, offset)
			return n, nil
		})
		if err != nil || x.isEmpty() != (len(all) == 0) {
			t.Fatalf("an index of %d records, %v", len(all), err)
		}
		if x.isEmpty() {
			return
		}
		to := int64(from) + int64(length) + 1
		got, err := x.times(int64(from), to, func(p []byte, offset int64) (int, error) { n, _ := read(p, offset); return n, nil })
		if err != nil || len(got) == 0 {
			t.Fatalf("%d records, %v", len(got), err)
		}
		timeAt := func(records []arrivalRecord, offset int64) int64 {
			i, _ := slices.BinarySearchFunc(records, offset+1, func(r arrivalRecord, offset int64) int { return cmp.Compare(r.offset, offset) })
			return records[max(0, i-1)].milliseconds
		}
		for offset := int64(from); offset < to; offset++ {
			if got, want := timeAt(got, offset), timeAt(times, offset); got != want {
				t.Fatalf("byte %d of %d to %d has arrived at %d, want %d", offset, from, to, got, want)
			}
		}
		milliseconds := testTime + int64(length)
		want := int64(afterAllOutput)
		for _, r := range slices.Backward(times) {
			if r.milliseconds > milliseconds {
				want = r.offset
			}
		}
		if want == times[0].offset {
			want = 0
		}
		if got, err := x.endOfTime(milliseconds, func(p []byte, offset int64) (int, error) { n, _ := read(p, offset); return n, nil }); err != nil || got != want {
			t.Fatalf("output until %d ends at %d, %v, want %d", milliseconds, got, err, want)
		}
	})
}
