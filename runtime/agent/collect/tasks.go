package collect

import (
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// addAllocation adds the restarts and allocated resources of an allocation's tasks.
func (r *metricSetBuilder) addAllocation(alloc *api.Allocation) {
	if r.settings.OmitAllocationMetrics {
		return
	}
	for task, state := range alloc.TaskStates {
		r.Add("nomad.client.allocs.restart", float64(state.Restarts), r.newTaskLabels(alloc, task))
	}
	if alloc.ClientTerminalStatus() || alloc.AllocatedResources == nil {
		return
	}
	for task, given := range alloc.AllocatedResources.Tasks {
		labels := r.newTaskLabels(alloc, task)
		r.Add("nomad.client.allocs.cpu.allocated", float64(given.Cpu.CpuShares), labels)
		r.Add("nomad.client.allocs.memory.allocated", float64(given.Memory.MemoryMB)*(1<<20), labels)
		if most := given.Memory.MemoryMaxMB; most > 0 {
			r.Add("nomad.client.allocs.memory.max_allocated", float64(most)*(1<<20), labels)
		}
	}
}

func (r *metricSetBuilder) newTaskLabels(alloc *api.Allocation, task string) metrics.Labels {
	labels := r.hostLabel.With("alloc_id", alloc.ID, "namespace", alloc.Namespace, "job", alloc.JobID, "task_group", alloc.TaskGroup, "task", task)
	if r.settings.IncludeAllocMetadata {
		labels = labels.With(metadataLabelPairs(mergedTaskMetadata(alloc, task), r.settings.AllowedMetadataKeys)...)
	}
	return labels
}

// mergedTaskMetadata returns the merged metadata of a job, a group and a task, without a group or task missing in the job.
func mergedTaskMetadata(alloc *api.Allocation, task string) map[string]string {
	if alloc.Job == nil {
		return nil
	}
	group := alloc.Job.LookupTaskGroup(alloc.TaskGroup)
	if group == nil {
		return alloc.Job.Meta
	}
	i := slices.IndexFunc(group.Tasks, func(t *api.Task) bool { return t.Name == task })
	if i < 0 {
		return model.MergeMetaLaterWins(alloc.Job.Meta, group.Meta)
	}
	return model.MergeMetaLaterWins(alloc.Job.Meta, group.Meta, group.Tasks[i].Meta)
}

// Limits for the labels from a job's metadata.
const (
	maxMetadataLabels = 32
	maxMetadataName   = 128 // label name length in bytes
)

// metadataLabelPairs returns a list of label names and values, alternately, for the allowed keys in meta; if allowedKeys is
// empty, all keys are allowed. Keys are omitted if their label names are too long or already in use.
func metadataLabelPairs(meta map[string]string, allowedKeys []string) (alternatingNamesAndValues []string) {
	used := map[string]bool{"": true, "host": true, "alloc_id": true, "namespace": true, "job": true, "task_group": true, "task": true}
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		name := labelNameOfMetadataKey(key)
		if used[name] || len(name) > maxMetadataName || len(allowedKeys) > 0 && !slices.Contains(allowedKeys, key) {
			continue
		}
		used[name] = true
		if alternatingNamesAndValues = append(alternatingNamesAndValues, name, meta[key]); len(alternatingNamesAndValues) == 2*maxMetadataLabels {
			break
		}
	}
	return alternatingNamesAndValues
}

// labelNameOfMetadataKey turns a metadata key into a label name. Characters not allowed in label names become underscores. The
// result may be empty. Leading underscores are removed, because Prometheus reserves names with two of them.
func labelNameOfMetadataKey(key string) string {
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, key)
	if name = strings.TrimLeft(name, "_"); name != "" && name[0] <= '9' {
		name = "_" + name
	}
	return name
}

// addTaskUsage adds the task values listed as measured by its driver.
func (r *metricSetBuilder) addTaskUsage(u *taskUsage) {
	labels := r.newTaskLabels(u.alloc, u.task)
	for _, figure := range []struct {
		name     string
		measured []string
		field    string // value's name in the driver's list of measured values
		value    float64
	}{
		{"cpu.system", u.CPU.Measured, "System Mode", u.CPU.System},
		{"cpu.user", u.CPU.Measured, "User Mode", u.CPU.User},
		{"cpu.total_percent", u.CPU.Measured, "Percent", u.CPU.Percent},
		{"cpu.total_ticks", u.CPU.Measured, "Percent", u.CPU.TotalTicks}, // drivers compute the ticks from the percentage, and do not list them as measured
		{"cpu.total_ticks_count", u.CPU.Measured, "Percent", u.cpuMHzSeconds},
		{"cpu.throttled_periods", u.CPU.Measured, "Throttled Periods", float64(u.CPU.ThrottledPeriods)},
		{"cpu.throttled_time", u.CPU.Measured, "Throttled Time", float64(u.CPU.ThrottledTime)},
		{"memory.rss", u.Memory.Measured, "RSS", float64(u.Memory.RSS)},
		{"memory.cache", u.Memory.Measured, "Cache", float64(u.Memory.Cache)},
		{"memory.swap", u.Memory.Measured, "Swap", float64(u.Memory.Swap)},
		{"memory.usage", u.Memory.Measured, "Usage", float64(u.Memory.Usage)},
		{"memory.max_usage", u.Memory.Measured, "Max Usage", float64(u.Memory.MaxUsage)},
		{"memory.kernel_usage", u.Memory.Measured, "Kernel Usage", float64(u.Memory.KernelUsage)},
		{"memory.kernel_max_usage", u.Memory.Measured, "Kernel Max Usage", float64(u.Memory.KernelMaxUsage)},
	} {
		if slices.Contains(figure.measured, figure.field) {
			r.Add("nomad.client.allocs."+figure.name, figure.value, labels)
		}
	}
}
