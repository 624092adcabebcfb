package hoststats

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// Stats has the fields of a machine in Nomad's API.
type Stats struct {
	Timestamp        int64 // nanoseconds
	Uptime           uint64
	CPUTicksConsumed float64 // MHz
	Memory           *api.HostMemoryStats
	CPU              []*CPU
	DiskStats        []*api.HostDiskStats
	AllocDirStats    *api.HostDiskStats // nil if unknown
	DeviceStats      []*api.DeviceGroupStats
}

// CPU is one processor with the fields of the server; the client's type lacks some. All values are
// in percent except TotalTicks, which is in MHz.
type CPU struct {
	CPU                                          string
	User, System, Idle, TotalPercent, TotalTicks float64
}

// Sampler samples a machine. It may be used concurrently.
type Sampler struct {
	// Dir is the directory of the allocations.
	Dir string
	// MHz is the sum over all processors.
	MHz int

	mu       sync.Mutex
	at       time.Time // time of last
	last     []ticks   // nil before the first sample
	measured []*CPU    // between the last two samples
}

// The usage of a processor is the difference between two samples. Requests in quick succession get
// the same result. A request long after the last sample takes two new samples, so that the result
// covers a recent period.
const (
	shortest = 100 * time.Millisecond
	longest  = time.Minute
)

// Sample returns the current usage. Values that the system does not report are zero.
func (s *Sampler) Sample(ctx context.Context) Stats {
	stats := Stats{CPU: s.processors(ctx), DiskStats: []*api.HostDiskStats{}, DeviceStats: []*api.DeviceGroupStats{}}
	for _, c := range stats.CPU {
		stats.CPUTicksConsumed += c.TotalTicks
	}
	now := time.Now()
	stats.Timestamp = now.UnixNano()
	stats.Uptime = uptime()
	stats.Memory = memory(read("/proc/meminfo"))
	for _, d := range disks(read("/proc/self/mountinfo")) {
		if usage, ok := usageOf(d); ok {
			stats.DiskStats = append(stats.DiskStats, usage)
		}
	}
	if usage, ok := usageOf(Mount{Point: s.Dir}); ok {
		usage.Device, usage.Mountpoint = s.Dir, s.Dir
		stats.AllocDirStats = usage
	}
	return stats
}

// processors samples the processors. It waits and samples again if the last sample is too old.
func (s *Sampler) processors(ctx context.Context) []*CPU {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || time.Since(s.at) > longest {
		s.at, s.last = time.Now(), parseTicks(read("/proc/stat"))
		timer := time.NewTimer(shortest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	} else if time.Since(s.at) < shortest {
		return s.measured
	}
	now := parseTicks(read("/proc/stat"))
	s.measured = between(s.last, now, float64(s.MHz))
	s.at, s.last = time.Now(), now
	return s.measured
}

func usageOf(m Mount) (*api.HostDiskStats, bool) {
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

// read returns the content of a file of the kernel, "" if it cannot be read.
func read(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}
