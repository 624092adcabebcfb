package process

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// The stock Nomad command "alloc status -stats" prints a title for each measured field, and values
// only for those that Nomad's own drivers measure.
func TestTotalTicksAreNotListedAsMeasured(t *testing.T) {
	var s cpuSampler
	start := time.Unix(1700000000, 0)
	s.computeRates(start, map[int]cpuTime{0: {}})
	got := s.computeRates(start.Add(time.Second), map[int]cpuTime{0: {user: 400 * time.Millisecond, system: 100 * time.Millisecond}})[0]
	if want := []string{"System Mode", "User Mode", "Percent"}; !slices.Equal(got.Measured, want) {
		t.Errorf("measured fields %q, want %q", got.Measured, want)
	}
	if got.Percent != 50 || got.TotalTicks != cpuFrequencyMHz()/2 {
		t.Errorf("%v %% and %v MHz of a core with %v MHz, want half of it", got.Percent, got.TotalTicks, cpuFrequencyMHz())
	}
}

// A sample of the total has the usage since the last such sample, whatever is sampled with processes in the meantime.
func TestTotalRateIsIndependentOfSamplesWithProcesses(t *testing.T) {
	self, err := osprocess.LookupID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p := &ProcessWithoutExec{processID: self}
	sample := func(ctx context.Context) driver.TaskStats {
		t.Helper()
		stats, err := p.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return stats
	}
	if first := sample(driver.WithTotalsOnly(t.Context())); first.Total.CPU.Percent != 0 || first.Total.Memory.RSS == 0 || len(first.ByPID) != 0 {
		t.Errorf("first sample: %+v", first)
	}
	sampledAt := p.totalSampler.sampledAt
	if stats := sample(t.Context()); len(stats.ByPID) == 0 || p.totalSampler.sampledAt != sampledAt {
		t.Errorf("sample with processes: %+v", stats)
	}
}

func TestTotalRate(t *testing.T) {
	var s totalSampler
	start := time.Unix(1700000000, 0)
	for _, tc := range []struct {
		after        time.Duration
		user, system time.Duration
		want         float64 // percent
	}{
		{0, 5 * time.Second, 0, 0},
		{10 * time.Second, 8 * time.Second, 2 * time.Second, 50},
		{10*time.Second + minSampleInterval/2, 9 * time.Second, 2 * time.Second, 50}, // too soon
		{20 * time.Second, 9 * time.Second, 2 * time.Second, 10},
	} {
		if got := s.computeRate(start.Add(tc.after), cpuTime{tc.user, tc.system}); got.Percent != tc.want || got.TotalTicks != TotalTicks(tc.want) {
			t.Errorf("after %v: %+v, want %v %%", tc.after, got, tc.want)
		}
	}
}

// A cgroup that a task makes is found after some samples.
func TestTotalFindsNewCgroups(t *testing.T) {
	top := t.TempDir()
	write := func(dir, pids string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pids), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var s totalSampler
	read := func(want ...int) {
		t.Helper()
		if pids, err := s.readPIDs(osprocess.Cgroup(top)); err != nil || !slices.Equal(pids, want) {
			t.Errorf("got %v, %v; want %v", pids, err, want)
		}
	}
	write(top, "5000001\n")
	read(5000001)
	write(filepath.Join(top, "nested"), "5000003\n")
	write(top, "5000001\n5000002\n")
	for range maxCgroupsReads - 1 {
		read(5000001, 5000002)
	}
	read(5000001, 5000002, 5000003)
}

// With cgroups v2, the total is the count of the kernel for the cgroup.
func TestTotalOfCgroup(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"cpu.stat": "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n", "memory.current": "4096\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := &cgroup{path: dir}
	if used, ok := c.readCPUTime(); !ok || used != (cpuTime{user: 2 * time.Second, system: time.Second}) {
		t.Errorf("CPU time %+v, %t", used, ok)
	}
	if err := os.WriteFile(filepath.Join(dir, "cpu.stat"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if used, ok := c.readCPUTime(); ok {
		t.Errorf("CPU time of a cgroup without the count: %+v", used)
	}
}

func BenchmarkStatsOfTotal(b *testing.B) {
	c := exec.Command("sleep", "3600")
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	id, err := osprocess.LookupID(c.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	p := &ProcessWithoutExec{processID: id}
	ctx := driver.WithTotalsOnly(b.Context())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Stats(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
