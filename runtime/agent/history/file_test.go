package history

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"
)

// testSample is a sample in the model.
type testSample struct {
	time    time.Time
	entries []Entry
}

var testStart = time.UnixMilli(1700000000000)

func openTestFile(t testing.TB, path string, size int64) *File {
	t.Helper()
	f, err := OpenFile(path, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func readAll(t testing.TB, f *File, since, now time.Time) []testSample {
	t.Helper()
	var all []testSample
	if err := f.Read(since, now, func(t time.Time, entries []Entry) { all = append(all, testSample{t, slices.Clone(entries)}) }); err != nil {
		t.Fatal(err)
	}
	return all
}

func randomEntries(r *rand.Rand, most int) []Entry {
	entries := make([]Entry, r.IntN(most+1))
	for i := range entries {
		entries[i] = Entry{Key: Key(r.Uint64()), Job: Key(r.Uint64()), CPUMHz: r.Float32(), MemoryKiB: r.Uint32(), DiskKiB: r.Uint32(), Restarts: r.Uint32()}
	}
	return entries
}

// visible returns the model's samples that Read returns: from the newest to the oldest, each is earlier than all before.
func visible(samples []testSample, since, now time.Time) []testSample {
	var all []testSample
	earliest := now.Add(time.Millisecond)
	for _, s := range slices.Backward(samples) {
		if s.time.Before(earliest) && !s.time.Before(since) {
			earliest = s.time
			all = append(all, s)
		}
	}
	slices.Reverse(all)
	return all
}

func checkSamples(t *testing.T, got, want []testSample) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d samples, want %d", len(got), len(want))
	}
	for i := range want {
		if !got[i].time.Equal(want[i].time) || !slices.Equal(got[i].entries, want[i].entries) {
			t.Fatalf("sample %d: %v, want %v", i, got[i], want[i])
		}
	}
}

// A file has the newest samples, as many as it has room for, also after it was opened again. The clock steps in both
// directions.
func TestFileMatchesModel(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			size := int64(headerSize + entrySize*(40+r.IntN(400)))
			path := filepath.Join(t.TempDir(), "history")
			f := openTestFile(t, path, size)
			now := testStart
			var model []testSample
			reopens := 0
			for range 300 {
				switch n := r.IntN(20); {
				case n == 0:
					now = now.Add(time.Duration(r.IntN(7200)-3600) * time.Second)
				case n == 1:
					f.Close()
					f = openTestFile(t, path, size)
					reopens++
				default:
					now = now.Add(Interval)
				}
				s := testSample{now, randomEntries(r, 20)}
				if err := f.Append(s.time, s.entries); err != nil {
					t.Fatal(err)
				}
				model = append(model, s)

				kept := len(f.index)
				used := int64(0)
				for i := len(model) - 1; i >= len(model)-kept; i-- {
					used += sampleHeaderSize + entrySize*int64(len(model[i].entries))
				}
				// The ring's end in two rounds, and the place of a partly overwritten sample, are less than three samples.
				if unused := size - headerSize - used; kept < len(model) && unused > 3*(sampleHeaderSize+20*entrySize) {
					t.Fatalf("%d of %d samples are kept, and %d bytes are unused", kept, len(model), unused)
				}
				since := now.Add(-time.Duration(r.IntN(5000)) * time.Second)
				checkSamples(t, readAll(t, f, since, now), visible(model[len(model)-kept:], since, now))
			}
			if reopens == 0 {
				t.Fatal("the file was not opened again")
			}
			if info, err := os.Stat(path); err != nil || info.Size() != size {
				t.Errorf("size %v, %v; want %d", info, err, size)
			}
		})
	}
}

// A sample with more entries than the ring has room for loses the last ones.
func TestSampleThatIsLargerThanFile(t *testing.T) {
	f := openTestFile(t, filepath.Join(t.TempDir(), "history"), headerSize+sampleHeaderSize+10*entrySize)
	entries := make([]Entry, 11)
	for i := range entries {
		entries[i].Key = Key(i)
	}
	for i := range 3 {
		now := testStart.Add(time.Duration(i) * Interval)
		if err := f.Append(now, entries); err != nil {
			t.Fatal(err)
		}
		checkSamples(t, readAll(t, f, testStart, now), []testSample{{now, entries[:10]}})
	}
}

// The index, which is the memory that a file needs, has a limit.
func TestIndexHasLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	f := openTestFile(t, path, DefaultSize)
	var now time.Time
	for i := range maxSamples + 10 {
		now = testStart.Add(time.Duration(i) * Interval)
		if err := f.Append(now, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(readAll(t, f, testStart, now)); got != maxSamples {
		t.Errorf("%d samples, want %d", got, maxSamples)
	}
	f.Close()
	if got := readAll(t, openTestFile(t, path, DefaultSize), testStart, now); len(got) != maxSamples || !got[maxSamples-1].time.Equal(now) {
		t.Errorf("%d samples after the file was opened again, want %d", len(got), maxSamples)
	}
}

func TestFileStartsEmpty(t *testing.T) {
	const size = headerSize + 100*entrySize
	valid := filepath.Join(t.TempDir(), "history")
	f := openTestFile(t, valid, size)
	if err := f.Append(testStart, make([]Entry, 3)); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(valid)
	if err != nil {
		t.Fatal(err)
	}
	otherVersion := slices.Clone(content)
	otherVersion[len(fileMagic)]++
	for name, text := range map[string][]byte{
		"missing": nil, "truncated": content[:len(content)-1], "header truncated": content[:100], "longer": append(slices.Clone(content), 0),
		"other version": otherVersion, "other program": bytes.Repeat([]byte("x"), size),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "history")
			if text != nil {
				if err := os.WriteFile(path, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f := openTestFile(t, path, size)
			if got := readAll(t, f, time.Time{}, testStart); len(got) != 0 {
				t.Fatalf("samples %v", got)
			}
			if err := f.Append(testStart, make([]Entry, 2)); err != nil {
				t.Fatal(err)
			}
			f.Close()
			checkSamples(t, readAll(t, openTestFile(t, path, size), time.Time{}, testStart), []testSample{{testStart, make([]Entry, 2)}})
		})
	}
}

// Another program truncates the file while it is open.
func TestFileIsTruncatedWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	f := openTestFile(t, path, headerSize+100*entrySize)
	for i := range 5 {
		if err := f.Append(testStart.Add(time.Duration(i)*Interval), make([]Entry, 3)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(path, headerSize+sampleHeaderSize+3*entrySize+1); err != nil {
		t.Fatal(err)
	}
	now := testStart.Add(5 * Interval)
	checkSamples(t, readAll(t, f, testStart, now), []testSample{{testStart, make([]Entry, 3)}})
	if err := f.Append(now, make([]Entry, 2)); err != nil {
		t.Fatal(err)
	}
	checkSamples(t, readAll(t, f, testStart, now), []testSample{{testStart, make([]Entry, 3)}, {now, make([]Entry, 2)}})
}

// Whatever a crash leaves in the file, it opens, has only samples that were appended, and accepts more.
func FuzzDamagedFile(f *testing.F) {
	f.Add(uint16(headerSize+5), []byte{1}, uint16(0))
	f.Add(uint16(headerSize+40), bytes.Repeat([]byte{0xff}, 200), uint16(0))
	f.Add(uint16(3), []byte("x"), uint16(0))
	f.Add(uint16(0), []byte{}, uint16(700))
	f.Add(uint16(headerSize+24), []byte{0xff, 0xff, 0xff, 0xff}, uint16(0)) // entry count
	f.Fuzz(func(t *testing.T, offset uint16, damage []byte, cut uint16) {
		const size = headerSize + 60*entrySize
		path := filepath.Join(t.TempDir(), "history")
		file := openTestFile(t, path, size)
		r := rand.New(rand.NewPCG(1, 2))
		var appended []testSample
		now := testStart
		for range 30 {
			now = now.Add(Interval)
			s := testSample{now, randomEntries(r, 5)}
			if err := file.Append(s.time, s.entries); err != nil {
				t.Fatal(err)
			}
			appended = append(appended, s)
		}
		file.Close()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if int(offset) < len(content) {
			copy(content[offset:], damage)
		}
		if err := os.WriteFile(path, content[:len(content)-min(int(cut), len(content))], 0o600); err != nil {
			t.Fatal(err)
		}
		file = openTestFile(t, path, size)
		wasAppended := func(s testSample) bool {
			return slices.ContainsFunc(appended, func(a testSample) bool { return a.time.Equal(s.time) && slices.Equal(a.entries, s.entries) })
		}
		for _, s := range readAll(t, file, time.Time{}, now) {
			if !wasAppended(s) {
				t.Fatalf("sample %v was not appended", s)
			}
		}
		now = now.Add(Interval)
		s := testSample{now, randomEntries(r, 5)}
		if err := file.Append(s.time, s.entries); err != nil {
			t.Fatal(err)
		}
		got := readAll(t, file, time.Time{}, now)
		if len(got) == 0 || !reflect.DeepEqual(got[len(got)-1].entries, s.entries) && len(s.entries) > 0 {
			t.Fatalf("the newest of %d samples is not the one that was appended after the damage", len(got))
		}
	})
}

func BenchmarkAppendOfThousandTasks(b *testing.B) {
	f := openTestFile(b, filepath.Join(b.TempDir(), "history"), DefaultSize)
	entries := randomEntries(rand.New(rand.NewPCG(1, 2)), 0)
	entries = append(entries, make([]Entry, 1000)...)
	now := testStart
	for b.Loop() {
		now = now.Add(Interval)
		if err := f.Append(now, entries); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadOfThousandTasks(b *testing.B) {
	f := openTestFile(b, filepath.Join(b.TempDir(), "history"), DefaultSize)
	entries := make([]Entry, 1000)
	for i := range entries {
		entries[i].Key = Key(i + 1)
	}
	now := testStart
	for range maxSamples {
		now = now.Add(Interval)
		if err := f.Append(now, entries); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if all, err := f.ReadSeries(NewPeriod(now, Retention, 360), map[string][]Key{"task": {17}}); err != nil || len(all) != 1 {
			b.Fatal(all, err)
		}
	}
}
