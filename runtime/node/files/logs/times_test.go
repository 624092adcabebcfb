package logs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// describeArrivalTimes formats arrival times as "offset@milliseconds".
func describeArrivalTimes(times []ArrivalTime) string {
	var all []string
	for _, at := range times {
		all = append(all, fmt.Sprintf("%d@%d", at.Offset, at.Time.UnixMilli()))
	}
	return strings.Join(all, " ")
}

func TestArrivalTimes(t *testing.T) {
	t.Parallel()
	at := func(offset, milliseconds int64) ArrivalTime {
		return ArrivalTime{Offset: offset, Time: time.UnixMilli(milliseconds)}
	}
	encode := func(times ...ArrivalTime) []byte {
		var b []byte
		var previous ArrivalTime
		for _, next := range times {
			b = appendArrivalTime(b, previous, next)
			previous = next
		}
		return b
	}
	const start = 1_700_000_000_000
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":                        {nil, ""},
		"from the start on":            {encode(at(0, start), at(40, start+1), at(5_000_000_000, start+9_000_000)), "0@1700000000000 40@1700000000001 5000000000@1700009000000"},
		"continued by another process": {append(encode(at(0, start)), encode(at(40, start+1))...), "0@1700000000000 40@1700000000001"},
		"a clock that was set back":    {encode(at(0, start), at(40, start-5)), "0@1700000000000 40@1699999999995"},
		"a truncated log file":         {encode(at(0, start), at(40, start+1), at(10, start+2)), "0@1700000000000 10@1700000000002"},
		"a partial record at the end":  {append(encode(at(0, start)), 0x85), "0@1700000000000"},
		"a partial record, continued":  {append(append(encode(at(0, start)), 0x85, 0x01, 0x85), encode(at(40, start+1))...), "0@1700000000000 40@1700000000001"},
		"a start without zero":         {append([]byte{5, 5}, encode(at(0, start))...), "0@1700000000000"},
		"values that no process stores": {append(append([]byte{0}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x01),
			encode(at(0, start))...), "0@1700000000000"},
	} {
		if got := describeArrivalTimes(ParseArrivalTimes(test.content)); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
	times := []ArrivalTime{at(5, 1), at(9, 2)}
	for offset, want := range map[int64]int64{4: -1, 5: 1, 8: 1, 9: 2, 1000: 2} {
		got := int64(-1)
		if found, ok := FindArrivalTime(times, offset); ok {
			got = found.UnixMilli()
		}
		if got != want {
			t.Errorf("byte %d arrived at %d, want %d", offset, got, want)
		}
	}
}

func FuzzParseArrivalTimes(f *testing.F) {
	f.Add([]byte{0, 5, 1, 7, 9})
	f.Fuzz(func(t *testing.T, content []byte) {
		times := ParseArrivalTimes(content)
		if !slices.IsSortedFunc(times, func(a, b ArrivalTime) int { return int(a.Offset - b.Offset) }) || len(times) > 0 && times[0].Offset < 0 {
			t.Errorf("offsets are not sorted: %v", times)
		}
	})
}

// arrivalTimesOf returns the stored arrival times of a log file.
func arrivalTimesOf(t *testing.T, dir, logFile string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, ArrivalTimesFile(logFile)))
	if err != nil {
		return ""
	}
	return describeArrivalTimes(ParseArrivalTimes(content))
}

func TestStreamStoresArrivalTimes(t *testing.T) {
	t.Parallel()
	s, w, dir, tl := newTestStream(t, Limits{MaxFiles: 2, MaxFileSize: 100})
	arrive := func(milliseconds int64, text string) {
		t.Helper()
		feedStream(t, s, w, tl, text)
		s.recordArrivalTimes(time.UnixMilli(milliseconds))
	}
	check := func(logFile, want string) {
		t.Helper()
		if got := arrivalTimesOf(t, dir, logFile); got != want {
			t.Errorf("%s: got %q, want %q", logFile, got, want)
		}
	}
	const row = "123456789\n"
	arrive(1000, row)
	arrive(1000, row) // has the time of the line before
	arrive(1001, row)
	check("web.stdout.0", "0@1000 20@1001")
	s.recordArrivalTimes(time.UnixMilli(1500))
	check("web.stdout.0", "0@1000 20@1001")

	arrive(2000, strings.Repeat(row, 8)) // one row of it does not fit
	check("web.stdout.0", "0@1000 20@1001 30@2000")
	check("web.stdout.1", "0@2000")
	arrive(3000, strings.Repeat(row, 10))
	if _, err := os.Stat(filepath.Join(dir, ArrivalTimesFile("web.stdout.0"))); !os.IsNotExist(err) {
		t.Errorf("the times of a removed log file: %v", err)
	}
	check("web.stdout.2", "0@3000")

	// Another process continues.
	_ = unix.Close(s.fileFD)
	s.fileFD, s.lastArrival, s.lastArrivalFile = -1, ArrivalTime{}, 0
	arrive(4000, row)
	check("web.stdout.2", "0@3000 10@4000")

	// The times stay within their part of the disk space, and so do not reject output.
	for i := range int64(8) {
		arrive(5000+i, "x")
	}
	info, err := os.Stat(filepath.Join(dir, ArrivalTimesFile("web.stdout.2")))
	if err != nil || info.Size() > 25 {
		t.Errorf("arrival times of a file of 100 bytes: %v, %v", info, err)
	}
	if output := strings.Join(readLogFiles(t, s, dir), ""); !strings.HasSuffix(output, row+"xxxxxxxx") {
		t.Errorf("output: %q", output)
	}
}

// A task can put files under the names of the arrival times; they are not written to.
func TestForeignArrivalTimesAreNotWrittenTo(t *testing.T) {
	t.Parallel()
	s, w, dir, tl := newTestStream(t, Limits{MaxFiles: 2, MaxFileSize: 1000})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, ArrivalTimesFile("web.stdout.0"))); err != nil {
		t.Fatal(err)
	}
	feedStream(t, s, w, tl, "line\n")
	s.recordArrivalTimes(time.Now())
	if content, err := os.ReadFile(secret); err != nil || len(content) > 0 {
		t.Errorf("the linked file has %q, %v", content, err)
	}
}
