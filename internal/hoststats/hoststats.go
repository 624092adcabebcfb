package hoststats

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// Stats has the resource usage of the machine, in the format of Nomad's API.
type Stats struct {
	Timestamp        int64   // nanoseconds since 1970
	Uptime           uint64  // seconds
	CPUTicksConsumed float64 // use of all processors, in MHz
	// CPUTicksTotal is the use of the processors since the boot, in MHz times seconds; 0 if unknown.
	CPUTicksTotal float64 `json:"-"`
	Memory        *api.HostMemoryStats
	CPU           []*CPU
	DiskStats     []*api.HostDiskStats
	AllocDirStats *api.HostDiskStats      // nil if unknown
	DeviceStats   []*api.DeviceGroupStats // empty in the result of Sampler
}

// CPU is the usage of one processor, with all fields of Nomad's API, which the type of package api lacks in part. All
// values are in percent, except TotalTicks, which is in MHz.
type CPU struct {
	CPU                                          string
	User, System, Idle, TotalPercent, TotalTicks float64
	Measured                                     bool `json:"-"` // false if the processor has no earlier sample; then it seems idle
}

// Sampler samples a machine. It may be used concurrently.
type Sampler struct {
	// Dir is the directory of the allocations.
	Dir string
	// MHz is the sum of the frequencies of all processors.
	MHz int

	mu        sync.Mutex
	lastTime  time.Time  // time of lastTicks
	lastTicks []cpuTicks // processor times at the last sample; nil before the first one
	usage     []*CPU     // processor usage between the last two samples
}

// The usage of a processor is the difference between two samples. Requests in quick succession get
// the same result. A request long after the last sample takes two new samples, so that the result
// covers a recent period.
const (
	minSampleInterval = 100 * time.Millisecond
	maxSampleInterval = time.Minute
)

// Sample returns the current usage. Values that the system does not report are zero.
func (s *Sampler) Sample(ctx context.Context) Stats {
	stats := s.SampleWithoutDisks(ctx)
	for _, d := range diskMounts(readFileOrEmpty("/proc/self/mountinfo")) {
		if usage, ok := diskUsage(d); ok {
			stats.DiskStats = append(stats.DiskStats, usage)
		}
	}
	return stats
}

// SampleWithoutDisks is Sample without DiskStats. It does not read the table of mounts, which has several lines for each task.
func (s *Sampler) SampleWithoutDisks(ctx context.Context) Stats {
	stats := Stats{CPU: s.sampleCPUs(ctx), DiskStats: []*api.HostDiskStats{}, DeviceStats: []*api.DeviceGroupStats{}}
	for _, c := range stats.CPU {
		stats.CPUTicksConsumed += c.TotalTicks
	}
	stats.CPUTicksTotal = s.ticksSinceBoot()
	stats.Timestamp = time.Now().UnixNano()
	stats.Uptime = uptime()
	stats.Memory = Memory()
	if usage, ok := diskUsage(Mount{Point: s.Dir}); ok {
		usage.Device, usage.Mountpoint = s.Dir, s.Dir
		stats.AllocDirStats = usage
	}
	return stats
}

// sampleCPUs samples the processors. It waits and samples again if the last sample is too old.
func (s *Sampler) sampleCPUs(ctx context.Context) []*CPU {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastTicks == nil || time.Since(s.lastTime) > maxSampleInterval {
		s.lastTime, s.lastTicks = time.Now(), parseStat(readFileOrEmpty("/proc/stat"))
		timer := time.NewTimer(minSampleInterval)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	} else if time.Since(s.lastTime) < minSampleInterval {
		return s.usage
	}
	now := parseStat(readFileOrEmpty("/proc/stat"))
	s.usage = cpuUsageBetween(s.lastTicks, now, float64(s.MHz))
	s.lastTime, s.lastTicks = time.Now(), now
	return s.usage
}

// ticksSinceBoot returns the use of all processors between boot and the last sample, in MHz times seconds.
func (s *Sampler) ticksSinceBoot() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	busy := 0.0
	for _, t := range s.lastTicks {
		busy += t.total - t.idle
	}
	return busy / clockTicksPerSecond * float64(s.MHz) / max(1, float64(len(s.lastTicks)))
}

// clockTicksPerSecond is the number of units of the times in /proc/stat per second. It is the same on all architectures
// of Linux that Go supports.
const clockTicksPerSecond = 100

func diskUsage(m Mount) (*api.HostDiskStats, bool) {
	var st unix.Statfs_t
	if unix.Statfs(m.Point, &st) != nil || st.Blocks == 0 {
		return nil, false
	}
	block := uint64(st.Bsize)
	if st.Frsize > 0 {
		block = uint64(st.Frsize)
	}
	d := &api.HostDiskStats{
		Device: m.Device, Mountpoint: m.Point,
		Size: st.Blocks * block, Used: (st.Blocks - st.Bfree) * block, Available: st.Bavail * block,
	}
	if all := d.Used + d.Available; all > 0 {
		d.UsedPercent = 100 * float64(d.Used) / float64(all)
	}
	if st.Files > 0 {
		d.InodesUsedPercent = 100 * float64(st.Files-st.Ffree) / float64(st.Files)
	}
	return d, true
}

// uptime returns the uptime in seconds.
func uptime() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Uptime)
}

// readFileOrEmpty returns the content of a file of the kernel, "" if it cannot be read.
func readFileOrEmpty(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}
