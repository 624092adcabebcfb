package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// minSampleInterval is the shortest interval over which a rate is computed.
const minSampleInterval = 50 * time.Millisecond

// cpuSampler computes CPU usage in percent from counters of CPU time. Several callers of Stats may share a
// cpuSampler: a rate covers the time since the last sample of any caller.
type cpuSampler struct {
	mu             sync.Mutex
	sampledAt      time.Time
	lastTimesByPID map[int]cpuTime // by pid; key 0 has the total of the task
	lastRatesByPID map[int]driver.CPUUsage
}

// totalSampler computes the CPU usage of a whole task, as cpuSampler does for each process. It has an earlier sample of its
// own: a rate covers the time since the last sample without processes.
type totalSampler struct {
	mu        sync.Mutex
	sampledAt time.Time
	lastTime  cpuTime
	lastRate  driver.CPUUsage

	cgroups      []osprocess.Cgroup // cgroup of the task and its descendants, when they were listed last
	cgroupsReads int                // number of reads since then
}

// maxCgroupsReads is the number of samples with one list of cgroups. Few tasks make cgroups of their own.
const maxCgroupsReads = 6

// cpuTime is the CPU time that a process, or a whole task, has used since its start.
type cpuTime struct {
	user, system time.Duration
}

var (
	// The list omits "Total Ticks", which are set nevertheless: Nomad's `alloc status` prints the title of each field in the
	// list, but no value for a field that it does not know.
	measuredCPUFields    = []string{"System Mode", "User Mode", "Percent"}
	measuredMemoryFields = []string{"RSS"}

	measuredCgroupTotalFields = []string{"Usage"} // without the fields that need a file of their own, or one with many lines
)

// Stats samples the CPU time and memory of the process and its descendants. The
// total is their sum; with cgroups v2 the total is the kernel's count for the cgroup, which
// includes processes that have ended. If driver.IsTotalsOnly(ctx), the result has the total only.
func (p *ProcessWithoutExec) Stats(ctx context.Context) (driver.TaskStats, error) {
	totalsOnly := driver.IsTotalsOnly(ctx)
	if totalsOnly {
		if used, memory, ok := p.cgroup.readTotal(); ok {
			return p.totalSampler.newSample(time.Now(), used, memory), nil
		}
	}
	var pids []int
	var err error
	if p.cgroup != nil && totalsOnly {
		pids, err = p.totalSampler.readPIDs(p.cgroup.osCgroup())
	} else if p.cgroup != nil {
		pids, err = p.cgroup.osCgroup().PIDs()
	} else {
		pids, err = withDescendants(p.processID.PID)
	}
	if err != nil {
		return driver.TaskStats{}, err
	}
	var used map[int]cpuTime // nil if totalsOnly
	var memory map[int]driver.MemoryUsage
	if !totalsOnly {
		used, memory = map[int]cpuTime{}, map[int]driver.MemoryUsage{}
	}
	found := 0
	var totalMemory driver.MemoryUsage
	var sum cpuTime
	for _, pid := range pids {
		st, err := osprocess.ReadStat(pid)
		if err != nil || pid == p.processID.PID && st.StartTime != p.processID.StartTime {
			continue
		}
		t := cpuTime{user: osprocess.TicksToDuration(st.UserTime), system: osprocess.TicksToDuration(st.SystemTime)}
		found++
		sum.user += t.user
		sum.system += t.system
		m := driver.MemoryUsage{RSS: st.RSS * uint64(os.Getpagesize()), Measured: measuredMemoryFields}
		totalMemory.RSS += m.RSS
		if !totalsOnly {
			used[pid], memory[pid] = t, m
		}
	}
	if found == 0 {
		return driver.TaskStats{}, fmt.Errorf("process %d has ended", p.processID.PID)
	}
	totalMemory.Measured = measuredMemoryFields
	if totalsOnly {
		return p.totalSampler.newSample(time.Now(), sum, totalMemory), nil
	}
	used[0] = sum
	if p.cgroup != nil && hostCgroupHierarchy().cgroupVersion == 2 {
		p.cgroup.addCgroupTotals(&totalMemory, used)
	}

	stats := driver.TaskStats{Timestamp: time.Now(), ByPID: map[string]driver.Usage{}}
	rates := p.cpuSampler.computeRates(stats.Timestamp, used)
	stats.Total = driver.Usage{CPU: rates[0], Memory: totalMemory}
	for pid, m := range memory {
		stats.ByPID[strconv.Itoa(pid)] = driver.Usage{CPU: rates[pid], Memory: m}
	}
	return stats, nil
}

// readTotal returns the CPU time and the memory that the kernel counts for the cgroup v2, from two files in place of those
// of each process. ok is false if the kernel does not count both. c may be nil.
func (c *cgroup) readTotal() (used cpuTime, memory driver.MemoryUsage, ok bool) {
	if c == nil || hostCgroupHierarchy().cgroupVersion != 2 {
		return cpuTime{}, driver.MemoryUsage{}, false
	}
	memory.Measured = measuredCgroupTotalFields
	if memory.Usage, ok = c.readNumber("memory.current"); !ok {
		return cpuTime{}, driver.MemoryUsage{}, false
	}
	used, ok = c.readCPUTime()
	return used, memory, ok
}

// readCPUTime returns the CPU time of the cgroup v2; ok is false if the kernel does not count it.
func (c *cgroup) readCPUTime() (used cpuTime, ok bool) {
	var buf [1024]byte
	text, err := osprocess.ReadSmallFile(filepath.Join(c.path, "cpu.stat"), buf[:])
	if err != nil {
		return cpuTime{}, false
	}
	counter := func(key string) time.Duration {
		return time.Duration(parseCounter(text, key)) * time.Microsecond
	}
	return cpuTime{user: counter("user_usec"), system: counter("system_usec")}, counter("usage_usec") > 0
}

// addCgroupTotals reads the whole task's memory and CPU time from its cgroup v2. It sets the fields of memory, and used[0] to the CPU
// time.
func (c *cgroup) addCgroupTotals(memory *driver.MemoryUsage, used map[int]cpuTime) {
	if total, ok := c.readCPUTime(); ok {
		used[0] = total
	}
	current, ok := c.readNumber("memory.current")
	if !ok {
		return
	}
	memory.Usage = current
	memory.Cache = c.readCounter("memory.stat", "file")
	memory.KernelUsage = c.readCounter("memory.stat", "kernel")
	memory.Measured = append([]string{"Cache", "Usage", "Kernel Usage"}, measuredMemoryFields...)
	if swap, ok := c.readNumber("memory.swap.current"); ok {
		memory.Swap = swap
		memory.Measured = append(memory.Measured, "Swap")
	}
	if peak, ok := c.readNumber("memory.peak"); ok {
		memory.MaxUsage = peak
		memory.Measured = append(memory.Measured, "Max Usage")
	}
}

// computeRates returns the CPU usage since the previous sample, by pid as in used. The first sample has the usage 0.
func (c *cpuSampler) computeRates(now time.Time, used map[int]cpuTime) map[int]driver.CPUUsage {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := now.Sub(c.sampledAt)
	if c.lastTimesByPID != nil && passed < minSampleInterval {
		return c.lastRatesByPID
	}
	rate := make(map[int]driver.CPUUsage, len(used))
	for pid, t := range used {
		u := driver.CPUUsage{Measured: measuredCPUFields}
		// For a process that is new in this sample, all of its CPU time counts.
		if before, ok := c.lastTimesByPID[pid]; c.lastTimesByPID != nil && (ok || pid != 0) {
			u.User = cpuPercent(t.user-before.user, passed)
			u.System = cpuPercent(t.system-before.system, passed)
			u.Percent = u.User + u.System
			u.TotalTicks = TotalTicks(u.Percent)
		}
		rate[pid] = u
	}
	c.sampledAt, c.lastTimesByPID, c.lastRatesByPID = now, used, rate
	return rate
}

// readPIDs returns the processes in a cgroup and its descendants. It lists the descendants once in maxCgroupsReads calls.
func (c *totalSampler) readPIDs(top osprocess.Cgroup) ([]int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cgroups == nil || c.cgroupsReads == maxCgroupsReads {
		tree, err := top.Tree()
		if err != nil {
			return nil, err
		}
		c.cgroups, c.cgroupsReads = tree, 0
	}
	c.cgroupsReads++
	return osprocess.PIDsInCgroups(c.cgroups)
}

// newSample returns a sample of a whole task.
func (c *totalSampler) newSample(now time.Time, used cpuTime, memory driver.MemoryUsage) driver.TaskStats {
	return driver.TaskStats{Timestamp: now, Total: driver.Usage{CPU: c.computeRate(now, used), Memory: memory}}
}

// computeRate returns the CPU usage since the previous sample. The first sample has the usage 0.
func (c *totalSampler) computeRate(now time.Time, used cpuTime) driver.CPUUsage {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := now.Sub(c.sampledAt)
	if !c.sampledAt.IsZero() && passed < minSampleInterval {
		return c.lastRate
	}
	rate := driver.CPUUsage{Measured: measuredCPUFields}
	if !c.sampledAt.IsZero() {
		rate.User, rate.System = cpuPercent(used.user-c.lastTime.user, passed), cpuPercent(used.system-c.lastTime.system, passed)
		rate.Percent = rate.User + rate.System
		rate.TotalTicks = TotalTicks(rate.Percent)
	}
	c.sampledAt, c.lastTime, c.lastRate = now, used, rate
	return rate
}

// cpuPercent returns the CPU usage in percent of one core. It is not negative:
// the total CPU time of a group of processes falls when one of them exits.
func cpuPercent(used, passed time.Duration) float64 {
	return max(0, 100*float64(used)/float64(passed))
}

// TotalTicks returns the CPU usage in MHz for a usage in percent of one core. It is 0 if the
// speed of a core is unknown.
func TotalTicks(percent float64) float64 { return percent / 100 * cpuFrequencyMHz() }

// cpuFrequencyMHz returns the maximum clock frequency of a core, or 0 if it is unknown.
var cpuFrequencyMHz = sync.OnceValue(func() float64 {
	if text, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"); err == nil {
		if khz, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err == nil {
			return khz / 1000
		}
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == "cpu MHz" {
			mhz, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return mhz
		}
	}
	return 0
})
