package systemtest

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// BuildReleasedProgram builds nomad-lite in a directory as it is released, and returns its path.
func BuildReleasedProgram(dir string) (path string, err error) {
	path = filepath.Join(dir, "nomad-lite")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, filepath.Join(RepositoryDir(), "cmd/nomad-lite")).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
}

// MeasurementTimeout limits how long many tasks can take to start or to stop on a slow machine.
const MeasurementTimeout = 5 * time.Minute

// WaitJobStatus waits until all allocations of the group "g" of a job have a status, running or complete, and returns the time
// that this took.
func WaitJobStatus(t testing.TB, client *api.Client, id string, count int, status string) time.Duration {
	t.Helper()
	began, index := time.Now(), uint64(0)
	for {
		summary, meta, err := client.Jobs().Summary(id, &api.QueryOptions{WaitIndex: index, WaitTime: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		g := summary.Summary["g"]
		if status == api.AllocClientStatusRunning && g.Running == count || status == api.AllocClientStatusComplete && g.Complete == count {
			return time.Since(began)
		}
		if time.Since(began) > MeasurementTimeout {
			t.Fatalf("after %v: %+v", MeasurementTimeout, g)
		}
		index = meta.LastIndex
	}
}

// ReadMemoryKiB returns the memory of a process that the kernel cannot drop, in KiB: its share of anonymous and shared memory, without
// the pages of files.
func ReadMemoryKiB(t testing.TB, pid int) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	return ParseMemoryKiB(t, text)
}

// ParseMemoryKiB is like ReadMemoryKiB for the content of the file smaps_rollup of a process.
func ParseMemoryKiB(t testing.TB, smapsRollup []byte) (kib int) {
	t.Helper()
	for _, match := range regexp.MustCompile(`(?m)^Pss_(Anon|Shmem): +([0-9]+) kB`).FindAllSubmatch(smapsRollup, -1) {
		n, err := strconv.Atoi(string(match[2]))
		if err != nil {
			t.Fatal(err)
		}
		kib += n
	}
	return kib
}

// WaitTimestamps waits until a file has count lines, and returns the timestamps in them.
func WaitTimestamps(t testing.TB, file string, count int) (timestamps []time.Time) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(file)
		if lines := bytes.SplitAfter(text, []byte("\n")); len(lines) > count {
			for _, line := range lines[:count] {
				timestamps = append(timestamps, ParseTimestamp(t, line))
			}
			return timestamps
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has\n%s", file, text)
		}
	}
}

// ParseTimestamp parses the output of date +%s%N.
func ParseTimestamp(t testing.TB, out []byte) time.Time {
	t.Helper()
	digits := regexp.MustCompile(`[0-9]{19}`).FindAll(out, -1)
	if len(digits) == 0 {
		t.Fatalf("no time in %q", out)
	}
	ns, err := strconv.ParseInt(string(digits[len(digits)-1]), 10, 64)
	if err != nil {
		t.Fatalf("no time in %q", out)
	}
	return time.Unix(0, ns)
}

// Median sorts values and returns their median.
func Median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

// Milliseconds returns a duration in milliseconds.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
