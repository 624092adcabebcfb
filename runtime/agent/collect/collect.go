package collect

import (
	"context"
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
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Node is the part of the node whose metrics are collected. runtime/agent implements it.
type Node interface {
	// Alloc returns the runner of an allocation, nil if there is none.
	Alloc(id string) *allocrunner.Runner
	// HostStats returns the resource usage of the machine.
	HostStats(context.Context) hoststats.Stats
	// Plugins returns the plugins.
	Plugins() []supervisor.Plugin
	// Keeper and Logs return the clients of the helper processes, nil if there are none.
	Keeper() *keeper.Client
	Logs() *logs.Collector
}

// Collector collects the metrics of a node. All methods may be called concurrently.
type Collector struct {
	store    *store.Store
	node     Node
	nodeID   string
	settings atomic.Pointer[metrics.Settings]
	changed  atomic.Pointer[chan struct{}] // closed and replaced when the settings change

	mu    sync.Mutex // held while usage is sampled, so that concurrent requests share a sample
	usage usage
}

// usage is a sample of resource usage.
type usage struct {
	at    time.Time
	host  *hoststats.Stats // nil if the settings omit it
	tasks []taskUsage
}

// taskUsage is the resource usage of one task.
type taskUsage struct {
	alloc *api.Allocation
	task  string
	driver.Usage
}

// New returns a collector with the zero settings.
func New(s *store.Store, n Node, nodeID string) *Collector {
	c := &Collector{store: s, node: n, nodeID: nodeID}
	c.changed.Store(new(make(chan struct{})))
	c.SetSettings(metrics.Settings{})
	return c
}

// SetSettings changes the settings from the next call of Gather on.
func (c *Collector) SetSettings(s metrics.Settings) {
	c.settings.Store(&s)
	close(*c.changed.Swap(new(make(chan struct{}))))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.usage = usage{} // the earlier sample can lack what the settings select now
}

// settingsChanged returns a channel that is closed when the settings change.
func (c *Collector) settingsChanged() <-chan struct{} { return *c.changed.Load() }

// Settings returns the current settings, which must not be changed.
func (c *Collector) Settings() *metrics.Settings { return c.settings.Load() }

// Gather returns all metrics that the settings select. The states of jobs, allocations and tasks are the current
// ones; resource usage is sampled at most once per collection interval. Gather blocks while drivers sample
// tasks, two seconds at most.
func (c *Collector) Gather(ctx context.Context) []*dto.MetricFamily {
	settings := c.settings.Load()
	s := c.store.Snapshot()
	node := s.Node(nil, c.nodeID)
	if node == nil {
		node = &api.Node{ID: c.nodeID}
	}
	r := &reading{Set: metrics.NewSet(settings), settings: settings, host: metrics.NewLabels("host", node.Name)}
	r.addRuntime()
	r.addJobs(s)
	r.addEvaluations(s.Evaluations(nil, ""), time.Now())
	allocs := s.AllocationsByNode(nil, c.nodeID)
	r.addNode(node, s, allocs)
	for _, alloc := range allocs {
		r.addAllocation(alloc)
	}
	r.addPlugins(c.node.Plugins())
	r.addKeeper(c.node.Keeper())
	r.addLogCollector(ctx, c.node.Logs())
	if size := c.store.FileSize(); size > 0 {
		r.Add("nomad_lite_store_size_bytes", float64(size), nil)
	}
	r.AddInstruments(node.Name)
	u := c.sampleUsage(ctx, settings, allocs)
	if u.host != nil {
		r.addHost(node, u.host)
	}
	for i := range u.tasks {
		// The sample of a task that has ended since, or of an ended task of a running allocation, is no current usage.
		if alloc := s.Allocation(nil, u.tasks[i].alloc.ID); alloc != nil && isTaskRunning(alloc, u.tasks[i].task) {
			r.addTaskUsage(&u.tasks[i])
		}
	}
	return r.Families()
}

func isTaskRunning(alloc *api.Allocation, task string) bool {
	state := alloc.TaskStates[task]
	return !alloc.ClientTerminalStatus() && state != nil && state.State == model.TaskRunning
}

// sampleUsage returns the usage of the machine and of running tasks, from the last sample if that is recent.
func (c *Collector) sampleUsage(ctx context.Context, settings *metrics.Settings, allocs []*api.Allocation) usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usage.at.IsZero() && time.Since(c.usage.at) < settings.Interval() {
		return c.usage
	}
	u := usage{at: time.Now()}
	if !settings.OmitNodeMetrics {
		host := c.node.HostStats(ctx)
		u.host = &host
	}
	if !settings.OmitAllocationMetrics {
		u.tasks = c.taskUsages(ctx, allocs)
	}
	if ctx.Err() == nil { // otherwise the sample can be incomplete
		c.usage = u
	}
	return u
}

// taskUsages requests the usage of all tasks in parallel, and omits tasks without a timely reply.
func (c *Collector) taskUsages(ctx context.Context, allocs []*api.Allocation) []taskUsage {
	stats := make([]allocrunner.Stats, len(allocs))
	var statsWG sync.WaitGroup
	for i, alloc := range allocs {
		if runner := c.node.Alloc(alloc.ID); runner != nil && alloc.ClientStatus == api.AllocClientStatusRunning {
			statsWG.Go(func() { stats[i] = runner.Stats(ctx, "") })
		}
	}
	statsWG.Wait()
	var all []taskUsage
	for i, alloc := range allocs {
		for task, sample := range stats[i].Tasks {
			all = append(all, taskUsage{alloc, task, sample.Total})
		}
	}
	return all
}

// reading adds the values of one reading to a set.
type reading struct {
	*metrics.Set
	settings *metrics.Settings
	host     metrics.Labels // the label host
}

func (r *reading) addRuntime() {
	var memStats runtime.MemStats
	runtime.ReadMemStats(&memStats)
	r.Add("nomad.runtime.num_goroutines", float64(runtime.NumGoroutine()), r.host)
	r.Add("nomad.runtime.alloc_bytes", float64(memStats.Alloc), r.host)
	r.Add("nomad.runtime.sys_bytes", float64(memStats.Sys), r.host)
	r.Add("nomad.runtime.heap_objects", float64(memStats.HeapObjects), r.host)
	r.Add("nomad.runtime.malloc_count", float64(memStats.Mallocs), r.host)
	r.Add("nomad.runtime.free_count", float64(memStats.Frees), r.host)
	r.Add("nomad.runtime.total_gc_pause_ns", float64(memStats.PauseTotalNs), r.host)
	r.Add("nomad.runtime.total_gc_runs", float64(memStats.NumGC), r.host)
}
