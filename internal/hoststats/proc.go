package hoststats

import (
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// cpuTicks are the times of one processor since boot, in clock ticks.
type cpuTicks struct {
	name                      string
	user, system, idle, total float64
}

// parseStat parses /proc/stat.
func parseStat(text string) []cpuTicks {
	var all []cpuTicks
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasPrefix(f[0], "cpu") || f[0] == "cpu" {
			continue
		}
		// Fields: user nice system idle iowait irq softirq steal; guest time is included in user.
		var n [8]float64
		t := cpuTicks{name: f[0]}
		for i := range min(len(n), len(f)-1) {
			n[i], _ = strconv.ParseFloat(f[i+1], 64)
			t.total += n[i]
		}
		t.user, t.system, t.idle = n[0]+n[1], n[2]+n[5]+n[6], n[3]+n[4]
		all = append(all, t)
	}
	return all
}

// cpuUsageBetween returns the difference of two samples. A processor without an earlier sample has no
// usage.
func cpuUsageBetween(before, now []cpuTicks, mhz float64) []*CPU {
	known := make(map[string]cpuTicks, len(before))
	for _, t := range before {
		known[t.name] = t
	}
	cpus := make([]*CPU, len(now))
	for i, t := range now {
		c := &CPU{CPU: t.name, Idle: 100}
		cpus[i] = c
		b, ok := known[t.name]
		total := t.total - b.total
		if !ok || total <= 0 {
			continue
		}
		percent := func(after, before float64) float64 { return min(max(100*(after-before)/total, 0), 100) }
		c.User, c.System, c.Idle = percent(t.user, b.user), percent(t.system, b.system), percent(t.idle, b.idle)
		c.TotalPercent, c.Measured = 100-c.Idle, true
		c.TotalTicks = c.TotalPercent / 100 * mhz / float64(len(now))
	}
	return cpus
}

// Memory returns the memory of the machine. The fields are zero if it cannot be read.
func Memory() *api.HostMemoryStats { return parseMeminfo(readFileOrEmpty("/proc/meminfo")) }

// parseMeminfo parses /proc/meminfo.
func parseMeminfo(text string) *api.HostMemoryStats {
	values := make(map[string]uint64)
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if f := strings.Fields(rest); len(f) > 0 {
			n, _ := strconv.ParseUint(f[0], 10, 64)
			values[name] = n << 10
		}
	}
	m := &api.HostMemoryStats{Total: values["MemTotal"], Available: values["MemAvailable"], Free: values["MemFree"]}
	m.Used = m.Total - min(m.Total, m.Free+values["Buffers"]+values["Cached"]+values["SReclaimable"])
	return m
}

// Mount is one line of a mount table.
type Mount struct{ Device, Point string }

// ParseMounts parses a mount table (mountinfo).
func ParseMounts(table string) []Mount {
	var all []Mount
	for line := range strings.Lines(table) {
		before, after, ok := strings.Cut(line, " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if ok && len(fields) >= 5 && len(source) >= 2 {
			all = append(all, Mount{mountUnescaper.Replace(source[1]), mountUnescaper.Replace(fields[4])})
		}
	}
	return all
}

// mountUnescaper decodes the kernel's escapes for blanks in the mount table.
var mountUnescaper = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// diskMounts returns the mounts of devices, each at its first mount point.
func diskMounts(table string) []Mount {
	seen := make(map[string]bool)
	return slices.DeleteFunc(ParseMounts(table), func(m Mount) bool {
		again := seen[m.Device]
		seen[m.Device] = true
		return again || !strings.HasPrefix(m.Device, "/dev/")
	})
}
