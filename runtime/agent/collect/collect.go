package collect

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"
	dto "github.com/prometheus/client_model/go"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/healthtracker"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Sources are the parts of an agent whose metrics are collected.
type Sources struct {
	Allocs     healthtracker.Allocs
	HostStats  func(context.Context) hoststats.Stats // the machine's resource usage
	Plugins    func() []supervisor.PluginStatus
	Conditions *conditions.Tracker
	// Keeper and LogCollector are the clients of keeper and log collector, or nil if these do not run.
	Keeper       *keeper.Client
	LogCollector *logs.CollectorClient
}

// MetricsCollector collects a node's metrics. All methods may be called concurrently.
type MetricsCollector struct {
	store          *store.Store
	sources        Sources
	nodeID         string
	health         *healthtracker.Tracker
	settings       atomic.Pointer[metrics.Settings]
	settingsChange atomic.Pointer[chan struct{}] // closed and replaced when the settings change

	mu        sync.Mutex // sampleUsage holds mu while it samples, so that concurrent requests share a sample
	lastUsage usageSample
	cpuByTask map[taskKey]cpuCount // running tasks with a sample
}

// taskKey identifies an allocation's task.
type taskKey struct{ allocID, task string }

// cpuCount is a task's CPU use since its first sample.
type cpuCount struct {
	mhzSeconds float64
	sampledAt  time.Time // last sample's time
}

// usageSample is a resource usage sample.
type usageSample struct {
	sampledAt  time.Time
	host       *hoststats.Stats // nil if the settings omit it
	taskUsages []taskUsage
}

// taskUsage is one task's resource usage.
type taskUsage struct {
	alloc *api.Allocation
	task  string
	driver.Usage
	cpuMHzSeconds float64 // CPU use since the task's first sample
}

// New returns a collector with the zero settings.
func New(s *store.Store, sources Sources, nodeID string) *MetricsCollector {
	c := &MetricsCollector{store: s, sources: sources, nodeID: nodeID, health: healthtracker.New(healthtracker.ForChecks(sources.Allocs, nodeID))}
	c.settingsChange.Store(new(make(chan struct{})))
	c.SetSettings(metrics.Settings{})
	return c
}

// SetSettings changes the settings from the next Gather call on.
func (c *MetricsCollector) SetSettings(s metrics.Settings) {
	c.settings.Store(&s)
	close(*c.settingsChange.Swap(new(make(chan struct{}))))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastUsage = usageSample{} // the earlier sample may lack usage selected by the new settings
}

// settingsChanged returns a channel that is closed when the settings change.
func (c *MetricsCollector) settingsChanged() <-chan struct{} { return *c.settingsChange.Load() }

// Settings returns the current settings, which must not be changed.
func (c *MetricsCollector) Settings() *metrics.Settings { return c.settings.Load() }

// Gather returns all metrics selected by the settings, with the current states of jobs, allocations and tasks. It samples
// resource usage at most once per collection interval. Gather blocks while drivers sample tasks, two seconds at most.
func (c *MetricsCollector) Gather(ctx context.Context) []*dto.MetricFamily {
	settings := c.settings.Load()
	s := c.store.Snapshot()
	node := s.Node(nil, c.nodeID)
	if node == nil {
		node = &api.Node{ID: c.nodeID}
	}
	r := &metricSetBuilder{Set: metrics.NewSet(settings), settings: settings, hostLabel: metrics.NewLabels("host", node.Name)}
	r.addGoRuntime()
	r.addJobs(s)
	r.addJobHealth(c.health, s)
	evals := s.Evaluations(nil, "")
	r.addEvaluations(evals, time.Now())
	r.addBlockedResources(s, node, evals)
	allocs := s.WithoutEndedEvents().AllocationsByNode(nil, c.nodeID)
	r.addNode(node, s, allocs)
	for _, alloc := range allocs {
		r.addAllocation(alloc)
	}
	plugins := c.sources.Plugins()
	r.addConditions(c.sources.Conditions.Report())
	r.addPlugins(plugins)
	r.addOperations(plugins)
	r.addKeeper(c.sources.Keeper)
	r.addLogCollector(ctx, c.sources.LogCollector)
	if size := c.store.FileSizeBytes(); size > 0 {
		r.Add("nomad_lite_store_size_bytes", float64(size), nil)
	}
	r.AddInstruments(node.Name)
	u := c.sampleUsage(ctx, settings, allocs)
	if u.host != nil {
		r.addHost(node, u.host)
	}
	for i := range u.taskUsages {
		// The task may have ended since the sample, and drivers also report an ended task's usage in a running allocation.
		if alloc := s.Allocation(nil, u.taskUsages[i].alloc.ID); alloc != nil && isTaskRunning(alloc, u.taskUsages[i].task) {
			r.addTaskUsage(&u.taskUsages[i])
		}
	}
	return r.Families()
}

func isTaskRunning(alloc *api.Allocation, task string) bool {
	state := alloc.TaskStates[task]
	return !alloc.ClientTerminalStatus() && state != nil && state.State == model.TaskRunning
}

// sampleUsage returns the usage of the machine and running tasks, from the last sample if it is recent.
func (c *MetricsCollector) sampleUsage(ctx context.Context, settings *metrics.Settings, allocs []*api.Allocation) usageSample {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lastUsage.sampledAt.IsZero() && time.Since(c.lastUsage.sampledAt) < settings.Interval() {
		return c.lastUsage
	}
	u := usageSample{sampledAt: time.Now()}
	if !settings.OmitNodeMetrics {
		host := c.sources.HostStats(ctx)
		u.host = &host
	}
	if !settings.OmitAllocationMetrics {
		u.taskUsages = c.sampleTaskUsages(ctx, allocs)
		c.countCPU(&u, allocs)
	}
	if ctx.Err() == nil { // the sample can be incomplete if ctx has ended
		c.lastUsage = u
	}
	return u
}

// countCPU adds each task's CPU use since its last sample to its count, and drops tasks not running. Drivers report no sum, so
// the use at a sample's time counts for the time since the sample before.
func (c *MetricsCollector) countCPU(u *usageSample, allocs []*api.Allocation) {
	counts := make(map[taskKey]cpuCount, len(u.taskUsages))
	for _, alloc := range allocs {
		for task := range alloc.TaskStates {
			key := taskKey{alloc.ID, task}
			if count, ok := c.cpuByTask[key]; ok && isTaskRunning(alloc, task) {
				counts[key] = count // also without a sample: its driver may have been too slow
			}
		}
	}
	for i := range u.taskUsages {
		t := &u.taskUsages[i]
		key := taskKey{t.alloc.ID, t.task}
		count, ok := counts[key]
		if ticks := t.CPU.TotalTicks; ok && ticks > 0 && !math.IsInf(ticks, 0) { // a driver can report NaN
			count.mhzSeconds += ticks * u.sampledAt.Sub(count.sampledAt).Seconds()
		}
		count.sampledAt = u.sampledAt
		counts[key], t.cpuMHzSeconds = count, count.mhzSeconds
	}
	c.cpuByTask = counts
}

// sampleTaskUsages requests all tasks' usage in parallel, and omits tasks without a timely reply.
func (c *MetricsCollector) sampleTaskUsages(ctx context.Context, allocs []*api.Allocation) []taskUsage {
	stats := make([]allocrunner.Stats, len(allocs))
	var statsWG sync.WaitGroup
	for i, alloc := range allocs {
		if runner := c.sources.Allocs.AllocRunner(alloc.ID); runner != nil && alloc.ClientStatus == api.AllocClientStatusRunning {
			statsWG.Go(func() { stats[i] = runner.Stats(ctx, "") })
		}
	}
	statsWG.Wait()
	var all []taskUsage
	for i, alloc := range allocs {
		for task, sample := range stats[i].SampleByTask {
			all = append(all, taskUsage{alloc: alloc, task: task, Usage: sample.Total})
		}
	}
	return all
}

// metricSetBuilder adds the values of all metrics at one time to a metrics.Set.
type metricSetBuilder struct {
	*metrics.Set
	settings  *metrics.Settings
	hostLabel metrics.Labels // the label "host" with the node name as value
}

func (r *metricSetBuilder) addGoRuntime() {
	var memStats runtime.MemStats
	runtime.ReadMemStats(&memStats)
	r.Add("nomad.runtime.num_goroutines", float64(runtime.NumGoroutine()), r.hostLabel)
	r.Add("nomad.runtime.alloc_bytes", float64(memStats.Alloc), r.hostLabel)
	r.Add("nomad.runtime.sys_bytes", float64(memStats.Sys), r.hostLabel)
	r.Add("nomad.runtime.heap_objects", float64(memStats.HeapObjects), r.hostLabel)
	r.Add("nomad.runtime.malloc_count", float64(memStats.Mallocs), r.hostLabel)
	r.Add("nomad.runtime.free_count", float64(memStats.Frees), r.hostLabel)
	r.Add("nomad.runtime.total_gc_pause_ns", float64(memStats.PauseTotalNs), r.hostLabel)
	r.Add("nomad.runtime.total_gc_runs", float64(memStats.NumGC), r.hostLabel)
}
