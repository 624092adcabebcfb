package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// Stats takes one sample from the engine.
func (t *task) Stats(ctx context.Context) (driver.TaskStats, error) {
	response, err := t.engine.client().ContainerStats(ctx, t.state.ContainerID, client.ContainerStatsOptions{})
	if err != nil {
		return driver.TaskStats{}, markRecoverableUnlessRefused(fmt.Errorf("statistics of the container %s: %w", t.state.ContainerName, err))
	}
	defer response.Body.Close()
	var s container.StatsResponse
	if err := json.NewDecoder(response.Body).Decode(&s); err != nil {
		return driver.TaskStats{}, fmt.Errorf("statistics of the container %s: %w", t.state.ContainerName, err)
	}
	now := time.Now()
	read := s.Read // time of the counters, which can be much earlier than the reply of the engine
	if read.IsZero() {
		read = now
	}
	return driver.TaskStats{Timestamp: now, Total: driver.Usage{CPU: t.cpuSampler.sample(read, s.CPUStats), Memory: convertMemoryStats(s.MemoryStats)}}, nil
}

// sample returns the CPU usage since the last sample, which is 0 for the first.
func (c *cpuSampler) sample(countersReadAt time.Time, s container.CPUStats) driver.CPUUsage {
	c.mu.Lock()
	defer c.mu.Unlock()
	usage := driver.CPUUsage{
		ThrottledPeriods: s.ThrottlingData.ThrottledPeriods,
		ThrottledTime:    s.ThrottlingData.ThrottledTime,
		Measured:         []string{"System Mode", "User Mode", "Percent", "Throttled Periods", "Throttled Time"},
	}
	if elapsed := float64(countersReadAt.Sub(c.lastSampleTime)); !c.lastSampleTime.IsZero() && elapsed > 0 {
		percent := func(now, before uint64) float64 {
			if now < before {
				return 0
			}
			return 100 * float64(now-before) / elapsed
		}
		usage.Percent = percent(s.CPUUsage.TotalUsage, c.lastUsage.TotalUsage)
		usage.TotalTicks = process.TotalTicks(usage.Percent)
		usage.System = percent(s.CPUUsage.UsageInKernelmode, c.lastUsage.UsageInKernelmode)
		usage.User = percent(s.CPUUsage.UsageInUsermode, c.lastUsage.UsageInUsermode)
	}
	c.lastUsage, c.lastSampleTime = s.CPUUsage, countersReadAt
	return usage
}

// convertMemoryStats converts the counters of cgroups v1 or v2.
func convertMemoryStats(s container.MemoryStats) driver.MemoryUsage {
	usage := driver.MemoryUsage{Usage: s.Usage, Measured: []string{"Usage"}}
	for _, field := range []struct {
		name   string
		dst    *uint64
		v1, v2 string
	}{
		{"RSS", &usage.RSS, "total_rss", "anon"},
		{"Cache", &usage.Cache, "total_cache", "file"},
		{"Swap", &usage.Swap, "total_swap", "swap"},
	} {
		value, ok := s.Stats[field.v1]
		if !ok {
			value, ok = s.Stats[field.v2]
		}
		if ok {
			*field.dst = value
			usage.Measured = append(usage.Measured, field.name)
		}
	}
	if s.MaxUsage > 0 { // cgroups v2 has no such counter
		usage.MaxUsage = s.MaxUsage
		usage.Measured = append(usage.Measured, "Max Usage")
	}
	return usage
}
