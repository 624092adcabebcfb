package collector

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// newTestStream returns a stream over a FIFO, and the FIFO's other end.
func newTestStream(t *testing.T, limits collectorwire.StreamLimits) (s *stream, w *os.File, dir string, tl *spliceTools) {
	t.Helper()
	dir = t.TempDir()
	d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, ".web.stdout.fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(fifo, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err = os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tl, err = newSpliceTools()
	if err != nil {
		t.Fatal(err)
	}
	s = &stream{key: collectorwire.StreamKey{AllocID: "a1", Task: "web", Stream: collectorwire.Stdout}, limits: limits, fifoFD: fd, logDirFD: d, fileFD: -1}
	t.Cleanup(func() { s.close(); w.Close(); tl.close() })
	return s, w, dir, tl
}

// feedStream writes pieces, each of which is collected before the next one is written.
func feedStream(t *testing.T, s *stream, w *os.File, tl *spliceTools, pieces ...string) {
	t.Helper()
	for _, piece := range pieces {
		for len(piece) > 0 {
			n := min(len(piece), 64<<10)
			if _, err := w.WriteString(piece[:n]); err != nil {
				t.Fatal(err)
			}
			for s.drainFIFO(tl, time.Now(), maxDrainBytes) {
			}
			if s.writeFailure.lastErr != nil {
				t.Fatal(s.writeFailure.lastErr)
			}
			piece = piece[n:]
		}
	}
}

// readLogFiles returns each file's content, oldest first.
func readLogFiles(t *testing.T, s *stream, dir string) []string {
	t.Helper()
	list, err := collectorwire.ListFileIndexes(s.logDirFD, s.key.FilePrefix())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, index := range list {
		b, err := os.ReadFile(filepath.Join(dir, logfile.Name(s.key.FilePrefix(), index)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(b))
	}
	return all
}

func TestRotation(t *testing.T) {
	t.Parallel()
	const maxFileSize = 100 << 10
	x := func(n int) string { return strings.Repeat("x", n) }
	row := x(999) + "\n" // a thousand bytes
	tests := []struct {
		name   string
		limit  int64
		pieces []string
		want   []int // file sizes
	}{
		{"nothing is written: one empty file", maxFileSize, nil, []int{0}},
		{"a file that is filled to the last byte is not followed by an empty one", maxFileSize, []string{x(maxFileSize-1) + "\n"}, []int{maxFileSize}},
		{"one byte more begins the next file", maxFileSize, []string{x(maxFileSize-1) + "\n", "y"}, []int{maxFileSize, 1}},
		{"a line that does not fit moves to the next file", maxFileSize, []string{strings.Repeat(row, 102), row}, []int{102_000, 1000}},
		{"a line that does not fit is found in the middle of a write", maxFileSize, []string{strings.Repeat(row, 60), strings.Repeat(row, 60)}, []int{102_000, 18_000}},
		{"a write that ends within a line near the end begins the next file early", maxFileSize, []string{strings.Repeat(row, 60), strings.Repeat(row, 40) + x(500), x(499) + "\n"}, []int{100_000, 1000}},
		{"a line that ends with the file stays in it", maxFileSize, []string{strings.Repeat(row, 102) + x(399) + "\n", "z\n"}, []int{maxFileSize, 2}},
		{"a line written in pieces near the end is kept whole", maxFileSize, []string{strings.Repeat(row, 80), x(500), x(499) + "\n"}, []int{80_000, 1000}},
		{"a line written in pieces far from the end stays where it is", maxFileSize, []string{strings.Repeat(row, 40), x(500), x(499) + "\n"}, []int{41_000}},
		{"a line of 32 KiB that began in time is kept whole", maxFileSize, []string{strings.Repeat(row, 69), x(32<<10-1) + "\n"}, []int{69_000 + 32<<10}},
		{"a line just shorter than 32 KiB at the worst place is kept whole", maxFileSize, []string{strings.Repeat(row, 70), x(32<<10-2) + "\n"}, []int{70_000, 32<<10 - 1}},
		{"no line end at all: files are filled to the limit", maxFileSize, []string{x(3*maxFileSize + 7)}, []int{maxFileSize, maxFileSize, maxFileSize, 7}},
		{"NUL bytes are bytes", maxFileSize, []string{strings.Repeat("\x00", maxFileSize+1)}, []int{maxFileSize, 1}},
		{"a file smaller than a line takes what fits", 10, []string{x(25) + "\n"}, []int{10, 10, 6}},
		{"small files hold whole lines", 10, []string{"aaaa\nbbbb\ncc\n", "dddddddd\n"}, []int{10, 3, 9}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 100, MaxFileBytes: tt.limit})
			if err := s.openNewestOrNewFile(); err != nil {
				t.Fatal(err)
			}
			feedStream(t, s, w, tl, tt.pieces...)
			files := readLogFiles(t, s, dir)
			var fileSizes []int
			for _, f := range files {
				fileSizes = append(fileSizes, len(f))
			}
			if got, want := fileSizes, tt.want; !equal(got, want) {
				t.Errorf("sizes %v, want %v", got, want)
			}
			if strings.Join(files, "") != strings.Join(tt.pieces, "") {
				t.Error("the files together are not what was written")
			}
		})
	}
}

// A file that was truncated by hand continues at its end, without a gap of NULs, and still rotates
// at its limit.
func TestTruncatedFile(t *testing.T) {
	t.Parallel()
	for _, copies := range []bool{false, true} {
		t.Run(fmt.Sprint("copies ", copies), func(t *testing.T) {
			s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 100, MaxFileBytes: 100 << 10})
			if err := s.openNewestOrNewFile(); err != nil {
				t.Fatal(err)
			}
			s.fsCannotSplice = copies
			row := strings.Repeat("x", 999) + "\n"
			feedStream(t, s, w, tl, strings.Repeat(row, 50))
			file := filepath.Join(dir, "web.stdout.0")
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
			feedStream(t, s, w, tl, "one\n")
			if err := os.Truncate(file, 3); err != nil { // removes a line's end
				t.Fatal(err)
			}
			s.recordFailure(unix.ENOSPC, time.Now().Add(-time.Hour))
			s.writeFailure.droppedBytesWithoutMarker = 7
			feedStream(t, s, w, tl, "two\n")
			text := "one\n[nomad-lite: 7 bytes of output lost: no space left on device]\ntwo\n"
			if got := readLogFiles(t, s, dir); !slices.Equal(got, []string{text}) {
				t.Errorf("got %.200q", got)
			}
			feedStream(t, s, w, tl, strings.Repeat(row, 103))
			var fileSizes []int
			for _, f := range readLogFiles(t, s, dir) {
				fileSizes = append(fileSizes, len(f))
			}
			if !equal(fileSizes, []int{102_000 + len(text), 1000}) {
				t.Errorf("sizes %v", fileSizes)
			}
		})
	}
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Lines shorter than 32 KiB are not split, for any lengths and for any distribution over writes,
// also when the process is replaced in between.
func TestShortLinesAreNeverSplit(t *testing.T) {
	t.Parallel()
	seed := time.Now().UnixNano()
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	const maxFileSize = 128 << 10
	s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 1000, MaxFileBytes: maxFileSize})
	var outputText bytes.Buffer
	for outputText.Len() < 4<<20 {
		n := r.IntN(200)
		if r.IntN(10) == 0 {
			n = r.IntN(wholeLineTailSize - 1)
		}
		outputText.WriteString(strings.Repeat(string(rune('a'+r.IntN(26))), n) + "\n")
	}
	all := outputText.String()
	for left := all; len(left) > 0; {
		n := min(len(left), 1+r.IntN(40<<10))
		feedStream(t, s, w, tl, left[:n])
		left = left[n:]
		if r.IntN(5) == 0 { // gives the stream the state that a new process has
			unix.Close(s.fileFD)
			*s = stream{key: s.key, limits: s.limits, fifoFD: s.fifoFD, logDirFD: s.logDirFD, fileFD: -1}
		}
	}
	files := readLogFiles(t, s, dir)
	if strings.Join(files, "") != all {
		t.Errorf("the files together are not what was written (seed %d)", seed)
	}
	for i, f := range files {
		if len(f) > maxFileSize {
			t.Errorf("file %d has %d bytes, the limit is %d (seed %d)", i, len(f), maxFileSize, seed)
		}
		if i < len(files)-1 && !strings.HasSuffix(f, "\n") {
			t.Errorf("file %d ends in the middle of a line (seed %d)", i, seed)
		}
		if i < len(files)-1 && len(f) < maxFileSize-wholeLineTailSize {
			t.Errorf("file %d has only %d bytes (seed %d)", i, len(f), seed)
		}
	}
}

func TestNewestFilesAreKept(t *testing.T) {
	t.Parallel()
	s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 3, MaxFileBytes: 10})
	for _, stray := range []string{"web.stdout.x", "web.stderr.0", "web.stdout.01", "web.stdout.99999999999999999999"} {
		if err := os.WriteFile(filepath.Join(dir, stray), []byte("stays"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	feedStream(t, s, w, tl, "0\n", "111111111\n", "222222222\n", "333333333\n", "4\n")
	if got := strings.Join(readLogFiles(t, s, dir), "|"); got != "222222222\n|333333333\n|4\n" {
		t.Errorf("files hold %q", got)
	}
	// A new process continues in the same file.
	unix.Close(s.fileFD)
	*s = stream{key: s.key, limits: collectorwire.StreamLimits{MaxFiles: 2, MaxFileBytes: 10}, fifoFD: s.fifoFD, logDirFD: s.logDirFD, fileFD: -1}
	feedStream(t, s, w, tl, "4\n", "555555555\n")
	if got := strings.Join(readLogFiles(t, s, dir), "|"); got != "4\n4\n|555555555\n" {
		t.Errorf("files hold %q", got)
	}
	if s.fileIndex != 5 {
		t.Errorf("newest file is %d, want 5", s.fileIndex)
	}
}

// Other files under the name of a log file are neither followed nor written to.
func TestForeignFilesAreNotWrittenTo(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		place func(target, path string) error
	}{
		{"a symbolic link", os.Symlink},
		{"a dangling symbolic link", func(target, path string) error { return os.Symlink(target+"2", path) }},
		{"a hard link", os.Link},
		{"a directory", func(_, path string) error { return os.Mkdir(path, 0o755) }},
		{"a FIFO", func(_, path string) error { return unix.Mkfifo(path, 0o644) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
			target := filepath.Join(t.TempDir(), "passwd")
			if err := os.WriteFile(target, []byte("root"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := tt.place(target, filepath.Join(dir, "web.stdout.7")); err != nil {
				t.Fatal(err)
			}
			feedStream(t, s, w, tl, "hello\n")
			b, err := os.ReadFile(filepath.Join(dir, "web.stdout.8"))
			if err != nil || string(b) != "hello\n" {
				t.Errorf("the next file holds %q, %v", b, err)
			}
			if b, _ := os.ReadFile(target); string(b) != "root" {
				t.Errorf("the target holds %q", b)
			}
			if _, err := os.Stat(target + "2"); !errors.Is(err, os.ErrNotExist) {
				t.Error("the target of the link was made")
			}
		})
	}
}

func TestFilesOfTaskWithLogFileNames(t *testing.T) {
	t.Parallel()
	s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 1000, MaxFileBytes: 10})
	feedStream(t, s, w, tl, "000000000\n")
	for i := 1; i < 100; i++ {
		if err := os.WriteFile(filepath.Join(dir, logfile.Name("web.stdout.", int64(i))), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	feedStream(t, s, w, tl, "next\n")
	if s.fileIndex != 100 {
		t.Errorf("went on in file %d, want 100", s.fileIndex)
	}
}

func TestFileSystemWithoutSplice(t *testing.T) {
	t.Parallel()
	s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 100, MaxFileBytes: 100 << 10})
	s.fsCannotSplice = true
	text := strings.Repeat(strings.Repeat("y", 700)+"\n", 1000)
	feedStream(t, s, w, tl, text)
	if strings.Join(readLogFiles(t, s, dir), "") != text {
		t.Error("the files together are not what was written")
	}
}

// On a full disk the task blocks for a while, then output is dropped, and a line has the number of
// lost bytes when space is free again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 3, MaxFileBytes: 20})
	now := time.Now()
	feedStream(t, s, w, tl, "before\n", "half")
	full := s.logDirFD
	s.logDirFD = -1 // no new file can be made
	step := func(wantDropping bool, wantDropped int64) {
		t.Helper()
		s.drainFIFO(tl, now, maxDrainBytes)
		if s.writeFailure.lastErr == nil || s.writeFailure.isDropping != wantDropping || s.lastFailureDroppedBytes != wantDropped {
			t.Fatalf("after the failure: %+v, lost %d; want dropping %v, lost %d", s.writeFailure, s.lastFailureDroppedBytes, wantDropping, wantDropped)
		}
	}
	if _, err := w.WriteString(" of a line that is longer than the file\n"); err != nil {
		t.Fatal(err)
	}
	step(false, 0) // fills the file first
	now = now.Add(blockedRetryDelay)
	step(false, 0)
	now = now.Add(blockBeforeDropTimeout)
	step(true, 24)
	now = now.Add(time.Millisecond)
	if _, err := w.WriteString("gone\n"); err != nil {
		t.Fatal(err)
	}
	step(true, 29)

	s.logDirFD = full
	s.drainFIFO(tl, now.Add(time.Millisecond), maxDrainBytes)
	if s.writeFailure.lastErr == nil {
		t.Error("tried again before it was time")
	}
	now = now.Add(droppingRetryDelay)
	if _, err := w.WriteString("after\n"); err != nil {
		t.Fatal(err)
	}
	s.drainFIFO(tl, now, maxDrainBytes)
	if s.writeFailure.lastErr != nil || s.lastFailureDroppedBytes != 29 {
		t.Errorf("still failing: %+v, lost %d", s.writeFailure, s.lastFailureDroppedBytes)
	}
	want := "before\nhalf of a line that \n[nomad-lite: 29 bytes of output lost: "
	got := strings.Join(readLogFiles(t, s, dir), "")
	if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "]\nafter\n") {
		t.Errorf("files hold %q", got)
	}
}
