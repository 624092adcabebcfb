package collector

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/logfile"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// describeArrivalTimes formats arrival times as "offset@milliseconds".
func describeArrivalTimes(times []logfile.ArrivalTime) string {
	var all []string
	for _, at := range times {
		all = append(all, fmt.Sprintf("%d@%d", at.Offset, at.Time.UnixMilli()))
	}
	return strings.Join(all, " ")
}

// arrivalTimesOf returns a log file's stored arrival times.
func arrivalTimesOf(t *testing.T, dir, logFile string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, logfile.ArrivalTimesFile(logFile)))
	if err != nil {
		return ""
	}
	return describeArrivalTimes(logfile.ParseArrivalTimes(content))
}

func TestStreamStoresArrivalTimes(t *testing.T) {
	t.Parallel()
	s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 2, MaxFileBytes: 100})
	arrive := func(milliseconds int64, text string) {
		t.Helper()
		feedStream(t, s, w, tl, text)
		s.storeArrivalTimes(time.UnixMilli(milliseconds))
	}
	check := func(logFile, want string) {
		t.Helper()
		if got := arrivalTimesOf(t, dir, logFile); got != want {
			t.Errorf("%s: got %q, want %q", logFile, got, want)
		}
	}
	const row = "123456789\n"
	arrive(1000, row)
	arrive(1000, row) // has the previous line's time
	arrive(1001, row)
	check("web.stdout.0", "0@1000 20@1001")
	s.storeArrivalTimes(time.UnixMilli(1500))
	check("web.stdout.0", "0@1000 20@1001")

	arrive(2000, strings.Repeat(row, 8)) // one of these rows does not fit
	check("web.stdout.0", "0@1000 20@1001 30@2000")
	check("web.stdout.1", "0@2000")
	arrive(3000, strings.Repeat(row, 10))
	if _, err := os.Stat(filepath.Join(dir, logfile.ArrivalTimesFile("web.stdout.0"))); !os.IsNotExist(err) {
		t.Errorf("the times of a removed log file: %v", err)
	}
	check("web.stdout.2", "0@3000")

	// Another process continues.
	_ = unix.Close(s.fileFD)
	s.fileFD, s.lastArrival, s.lastArrivalFileIndex = -1, logfile.ArrivalTime{}, 0
	arrive(4000, row)
	check("web.stdout.2", "0@3000 10@4000")

	// The times stay within their part of the disk space, and so do not reject output.
	for i := range int64(8) {
		arrive(5000+i, "x")
	}
	info, err := os.Stat(filepath.Join(dir, logfile.ArrivalTimesFile("web.stdout.2")))
	if err != nil || info.Size() > 25 {
		t.Errorf("arrival times of a file of 100 bytes: %v, %v", info, err)
	}
	if output := strings.Join(readLogFiles(t, s, dir), ""); !strings.HasSuffix(output, row+"xxxxxxxx") {
		t.Errorf("output: %q", output)
	}
}

// A task can put files under the arrival time file names; they are not written to.
func TestForeignArrivalTimesAreNotWrittenTo(t *testing.T) {
	t.Parallel()
	s, w, dir, tl := newTestStream(t, collectorwire.StreamLimits{MaxFiles: 2, MaxFileBytes: 1000})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, logfile.ArrivalTimesFile("web.stdout.0"))); err != nil {
		t.Fatal(err)
	}
	feedStream(t, s, w, tl, "line\n")
	s.storeArrivalTimes(time.Now())
	if content, err := os.ReadFile(secret); err != nil || len(content) > 0 {
		t.Errorf("the linked file has %q, %v", content, err)
	}
}
