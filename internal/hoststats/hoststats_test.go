package hoststats

import (
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

func TestProcessors(t *testing.T) {
	before := parseStat("cpu  9 9 9 9\ncpu0 100 0 50 800 50 0 0 0 0 0\ncpu1 0 0 0 1000\nintr 5\n")
	now := parseStat("cpu0 120 10 60 850 55 3 2 0 0 0\ncpu1 0 0 0 1000\ncpu2 5 5 5 5\n")
	got := cpuUsageBetween(before, now, 6000)
	want := []CPU{
		{CPU: "cpu0", User: 30, System: 15, Idle: 55, TotalPercent: 45, TotalTicks: 900, Measured: true},
		{CPU: "cpu1", Idle: 100},
		{CPU: "cpu2", Idle: 100},
	}
	if len(got) != len(want) {
		t.Fatalf("%d processors", len(got))
	}
	for i := range want {
		if *got[i] != want[i] {
			t.Errorf("%+v, want %+v", *got[i], want[i])
		}
	}
	if got := cpuUsageBetween(nil, nil, 1); len(got) != 0 {
		t.Errorf("without processors: %v", got)
	}
}

func TestMemory(t *testing.T) {
	got := parseMeminfo("MemTotal:  1000 kB\nMemFree: 300 kB\nMemAvailable:    700 kB\nBuffers: 50 kB\nCached: 100 kB\nSReclaimable: 50 kB\nodd\n")
	want := api.HostMemoryStats{Total: 1000 << 10, Available: 700 << 10, Used: 500 << 10, Free: 300 << 10}
	if *got != want {
		t.Errorf("%+v, want %+v", *got, want)
	}
	if got := parseMeminfo(""); *got != (api.HostMemoryStats{}) {
		t.Errorf("of nothing: %+v", *got)
	}
}

func TestDisks(t *testing.T) {
	got := diskMounts(`22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
24 22 8:2 / /mnt/two\040words rw shared:1 - xfs /dev/sdb rw
25 22 8:1 /x /x rw - ext4 /dev/sda1 rw
`)
	want := []Mount{{"/dev/sda1", "/"}, {"/dev/sdb", "/mnt/two words"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestSample(t *testing.T) {
	s := &Sampler{Dir: t.TempDir(), MHz: 2000}
	first := s.Sample(t.Context())
	if len(first.CPU) == 0 || first.Memory.Total == 0 || first.Memory.Used > first.Memory.Total || first.Uptime == 0 ||
		first.AllocDirStats == nil || first.AllocDirStats.Size == 0 || first.Timestamp == 0 || first.CPUTicksConsumed < 0 {
		t.Errorf("%+v, memory %+v", first, first.Memory)
	}
	if brief := s.SampleWithoutDisks(t.Context()); len(brief.CPU) == 0 || brief.Memory.Total == 0 || brief.AllocDirStats == nil || len(brief.DiskStats) > 0 {
		t.Errorf("without disks: %+v", brief)
	}
	at := s.lastTime
	if s.Sample(t.Context()); !s.lastTime.Equal(at) && time.Since(at) < minSampleInterval {
		t.Error("two questions in a moment are two looks")
	}
}

func BenchmarkSample(b *testing.B) {
	s := &Sampler{Dir: b.TempDir(), MHz: 2000}
	s.Sample(b.Context())
	for b.Loop() {
		s.Sample(b.Context())
	}
}
