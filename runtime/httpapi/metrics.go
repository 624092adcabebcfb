package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/hoststats"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Telemetry selects metrics that are not served. With the zero value all are served.
type Telemetry struct {
	OmitPrometheusFormat  bool // no Prometheus format
	OmitNodeMetrics       bool // no metrics of the machine
	OmitAllocationMetrics bool // no metrics of single allocations
}

// SetTelemetry changes which metrics are served, from the next request on.
func (a *API) SetTelemetry(t Telemetry) { a.telemetry.Store(&t) }

// metric is one value with the name and the labels of Nomad's metrics.
type metric struct {
	name      string
	labels    map[string]string
	value     float64
	isCounter bool // the metric is a counter, which never decreases
}

// metricsHandler serves the metrics of the agent, of the machine and of allocations.
type metricsHandler struct {
	agent     *localAgent
	store     *store.Store
	node      Node
	telemetry *atomic.Pointer[Telemetry]
}

// read collects the metrics of a request. Values are not cached between requests.
func (h *metricsHandler) read(r *request) (any, error) {
	t := h.telemetry.Load()
	switch format := r.query.Get("format"); format {
	case "prometheus":
		if t.OmitPrometheusFormat {
			return nil, &statusError{http.StatusUnsupportedMediaType, "Prometheus is not enabled"}
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(metricCollector(h.collectMetrics(r.Context(), t)))
		// The package promhttp is not used because it would add 0.3 MB to the binary: see DESIGN.md.
		families, err := prometheus.Gatherers{prometheus.DefaultGatherer, registry}.Gather()
		if len(families) == 0 {
			return nil, err
		}
		r.replyWritten = true
		r.setWriteDeadline()
		format, names := expfmt.NegotiateAccept(r.Header, expfmt.DefaultAcceptedFormats()...), r.query["name[]"]
		r.w.Header().Set("Content-Type", string(format))
		encoder := expfmt.NewEncoder(r.w, format)
		for _, family := range families {
			if len(names) == 0 || slices.Contains(names, family.GetName()) {
				_ = encoder.Encode(family) // errors are ignored: the client may have disconnected, and other metric families can still be encoded
			}
		}
		return nil, nil
	case "":
		return newMetricsSummary(h.collectMetrics(r.Context(), t), time.Now()), nil
	default:
		return nil, badRequest("format must be prometheus, or be left out")
	}
}

// metricCollector passes metrics to the Prometheus library.
type metricCollector []*metric

// Describe sends no descriptions, which are unknown because the metrics depend on the jobs.
func (metricCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s metricCollector) Collect(metrics chan<- prometheus.Metric) {
	for _, one := range s {
		names, values := make([]string, 0, len(one.labels)), make([]string, 0, len(one.labels))
		for name, value := range one.labels {
			names, values = append(names, name), append(values, strings.ToValidUTF8(value, "?"))
		}
		kind := prometheus.GaugeValue
		if one.isCounter {
			kind = prometheus.CounterValue
		}
		name := strings.NewReplacer(".", "_", "-", "_").Replace(one.name)
		metrics <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, one.name, names, nil), kind, one.value, values...)
	}
}

// newMetricsSummary returns the samples in the format of Nomad's command line.
func newMetricsSummary(samples []*metric, now time.Time) api.MetricsSummary {
	s := api.MetricsSummary{
		Timestamp: now.UTC().Truncate(time.Second).Format("2006-01-02 15:04:05 -0700 MST"),
		Gauges:    []api.GaugeValue{}, Points: []api.PointValue{}, Counters: []api.SampledValue{}, Samples: []api.SampledValue{},
	}
	for _, one := range samples {
		if !one.isCounter {
			s.Gauges = append(s.Gauges, api.GaugeValue{Name: one.name, Value: float32(one.value), DisplayLabels: one.labels})
			continue
		}
		s.Counters = append(s.Counters, api.SampledValue{
			Name: one.name, DisplayLabels: one.labels, Mean: one.value,
			AggregateSample: &api.AggregateSample{Count: 1, Sum: one.value, Min: one.value, Max: one.value},
		})
	}
	return s
}

// collectMetrics returns all samples, by name.
func (h *metricsHandler) collectMetrics(ctx context.Context, t *Telemetry) []*metric {
	n := h.agent.currentNode()
	m := metricSet{host: n.Name}
	m.addAgent()
	s := h.store.Snapshot()
	for _, j := range s.Jobs(nil, "*", "") {
		m.addJob(j, newJobSummary(s, nil, j))
	}
	m.addJobStatuses()
	allocs := s.AllocationsByNode(nil, n.ID)
	m.addNode(n, allocs)
	if !t.OmitNodeMetrics {
		m.addHost(h.node.HostStats(ctx))
	}
	if !t.OmitAllocationMetrics {
		for _, alloc := range allocs {
			m.addAllocation(alloc)
		}
		m.addTaskUsages(h.taskUsages(ctx, allocs))
	}
	slices.SortStableFunc(m.metrics, func(a, b *metric) int { return strings.Compare(a.name, b.name) })
	return m.metrics
}

// metricSet has the metrics that are collected for one request.
type metricSet struct {
	host      string
	metrics   []*metric
	jobCounts struct{ pending, running, dead int }
}

// addGauge adds a gauge.
func (m *metricSet) addGauge(name string, value float64, labels map[string]string) {
	m.metrics = append(m.metrics, &metric{name: "nomad." + name, labels: labels, value: value})
}

func (m *metricSet) addAgent() {
	var memStats runtime.MemStats
	runtime.ReadMemStats(&memStats)
	labels := map[string]string{"host": m.host}
	m.addGauge("runtime.num_goroutines", float64(runtime.NumGoroutine()), labels)
	m.addGauge("runtime.alloc_bytes", float64(memStats.Alloc), labels)
	m.addGauge("runtime.sys_bytes", float64(memStats.Sys), labels)
	m.addGauge("runtime.heap_objects", float64(memStats.HeapObjects), labels)
	m.addGauge("runtime.malloc_count", float64(memStats.Mallocs), labels)
	m.addGauge("runtime.free_count", float64(memStats.Frees), labels)
	m.addGauge("runtime.total_gc_pause_ns", float64(memStats.PauseTotalNs), labels)
	m.addGauge("runtime.total_gc_runs", float64(memStats.NumGC), labels)
}

func (m *metricSet) addJob(j *api.Job, sum *api.JobSummary) {
	switch val(j.Status) {
	case model.JobPending:
		m.jobCounts.pending++
	case model.JobRunning:
		m.jobCounts.running++
	default:
		m.jobCounts.dead++
	}
	for group, counts := range sum.Summary {
		labels := map[string]string{"host": m.host, "job": sum.JobID, "namespace": sum.Namespace, "task_group": group}
		if val(j.ParentID) != "" {
			labels["parent_id"] = *j.ParentID
		}
		for _, c := range []struct {
			name  string
			count int
		}{
			{"queued", counts.Queued}, {"starting", counts.Starting}, {"running", counts.Running}, {"complete", counts.Complete},
			{"failed", counts.Failed}, {"lost", counts.Lost}, {"unknown", counts.Unknown},
		} {
			m.addGauge("nomad.job_summary."+c.name, float64(c.count), labels)
		}
	}
}

func (m *metricSet) addJobStatuses() {
	labels := map[string]string{"host": m.host}
	m.addGauge("nomad.job_status.pending", float64(m.jobCounts.pending), labels)
	m.addGauge("nomad.job_status.running", float64(m.jobCounts.running), labels)
	m.addGauge("nomad.job_status.dead", float64(m.jobCounts.dead), labels)
}

// addNode adds the resources of the node, the resources that are allocated, and the states of the node's
// allocations.
func (m *metricSet) addNode(n *api.Node, allocs []*api.Allocation) {
	labels := map[string]string{
		"host": m.host, "node_id": n.ID, "datacenter": n.Datacenter, "node_class": cmp.Or(n.NodeClass, "none"), "node_pool": n.NodePool,
		"node_status": n.Status, "node_scheduling_eligibility": n.SchedulingEligibility,
	}
	var cpu, allocatedMemory, allocatedDisk int64
	var pendingAllocs, runningAllocs, terminalAllocs int
	for _, alloc := range allocs {
		if alloc.ClientTerminalStatus() {
			terminalAllocs++
			continue
		}
		if alloc.ClientStatus == api.AllocClientStatusRunning {
			runningAllocs++
		} else {
			pendingAllocs++
		}
		if given := alloc.AllocatedResources; given != nil {
			allocatedDisk += given.Shared.DiskMB
			for _, task := range given.Tasks {
				cpu += task.Cpu.CpuShares
				allocatedMemory += task.Memory.MemoryMB
			}
		}
	}
	m.addGauge("client.allocations.pending", float64(pendingAllocs), labels)
	m.addGauge("client.allocations.running", float64(runningAllocs), labels)
	m.addGauge("client.allocations.terminal", float64(terminalAllocs), labels)
	m.addGauge("client.allocated.cpu", float64(cpu), labels)
	m.addGauge("client.allocated.memory", float64(allocatedMemory), labels)
	m.addGauge("client.allocated.disk", float64(allocatedDisk), labels)
	if has, kept := n.NodeResources, n.ReservedResources; has != nil && kept != nil {
		m.addGauge("client.unallocated.cpu", float64(has.Cpu.CpuShares-int64(kept.Cpu.CpuShares)-cpu), labels)
		m.addGauge("client.unallocated.memory", float64(has.Memory.MemoryMB-int64(kept.Memory.MemoryMB)-allocatedMemory), labels)
		m.addGauge("client.unallocated.disk", float64(has.Disk.DiskMB-int64(kept.Disk.DiskMB)-allocatedDisk), labels)
	}
}

// addHost adds the resource usage of the machine.
func (m *metricSet) addHost(s hoststats.Stats) {
	labels := map[string]string{"host": m.host}
	m.addGauge("client.uptime", float64(s.Uptime), labels)
	m.addGauge("client.host.cpu.total_ticks_count", s.CPUTicksConsumed, labels)
	for _, c := range s.CPU {
		one := map[string]string{"host": m.host, "cpu": c.CPU}
		m.addGauge("client.host.cpu.user", c.User, one)
		m.addGauge("client.host.cpu.system", c.System, one)
		m.addGauge("client.host.cpu.idle", c.Idle, one)
		m.addGauge("client.host.cpu.total_percent", c.TotalPercent, one)
		m.addGauge("client.host.cpu.total_ticks", c.TotalTicks, one)
	}
	if memory := s.Memory; memory != nil {
		m.addGauge("client.host.memory.total", float64(memory.Total), labels)
		m.addGauge("client.host.memory.available", float64(memory.Available), labels)
		m.addGauge("client.host.memory.used", float64(memory.Used), labels)
		m.addGauge("client.host.memory.free", float64(memory.Free), labels)
	}
	for _, d := range s.DiskStats {
		one := map[string]string{"host": m.host, "disk": d.Device}
		m.addGauge("client.host.disk.size", float64(d.Size), one)
		m.addGauge("client.host.disk.used", float64(d.Used), one)
		m.addGauge("client.host.disk.available", float64(d.Available), one)
		m.addGauge("client.host.disk.used_percent", d.UsedPercent, one)
		m.addGauge("client.host.disk.inodes_percent", d.InodesUsedPercent, one)
	}
}

// addAllocation adds the restarts and the allocated resources of an allocation's tasks.
func (m *metricSet) addAllocation(alloc *api.Allocation) {
	for task, state := range alloc.TaskStates {
		m.metrics = append(m.metrics, &metric{
			name: "nomad.client.allocs.restart", labels: m.taskLabels(alloc, task), value: float64(state.Restarts), isCounter: true,
		})
	}
	if alloc.ClientTerminalStatus() || alloc.AllocatedResources == nil {
		return
	}
	for task, given := range alloc.AllocatedResources.Tasks {
		labels := m.taskLabels(alloc, task)
		m.addGauge("client.allocs.cpu.allocated", float64(given.Cpu.CpuShares), labels)
		m.addGauge("client.allocs.memory.allocated", float64(given.Memory.MemoryMB)*(1<<20), labels)
		if most := given.Memory.MemoryMaxMB; most > 0 {
			m.addGauge("client.allocs.memory.max_allocated", float64(most)*(1<<20), labels)
		}
	}
}

func (m *metricSet) taskLabels(alloc *api.Allocation, task string) map[string]string {
	return map[string]string{
		"host": m.host, "alloc_id": alloc.ID, "namespace": alloc.Namespace, "job": alloc.JobID, "task_group": alloc.TaskGroup, "task": task,
	}
}

// taskUsage is the resource usage of one task.
type taskUsage struct {
	alloc *api.Allocation
	task  string
	driver.Usage
}

// taskUsages requests the usage of all tasks in parallel, and omits tasks without a timely reply.
func (h *metricsHandler) taskUsages(ctx context.Context, allocs []*api.Allocation) []taskUsage {
	stats := make([]allocrunner.Stats, len(allocs))
	var statsWG sync.WaitGroup
	for i, alloc := range allocs {
		if runner := h.node.Alloc(alloc.ID); runner != nil && alloc.ClientStatus == api.AllocClientStatusRunning {
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

func (m *metricSet) addTaskUsages(all []taskUsage) {
	for _, u := range all {
		labels := m.taskLabels(u.alloc, u.task)
		for _, figure := range []struct {
			name  string
			value float64
		}{
			{"cpu.system", u.CPU.System},
			{"cpu.user", u.CPU.User},
			{"cpu.total_percent", u.CPU.Percent},
			{"cpu.total_ticks", u.CPU.TotalTicks},
			{"cpu.throttled_periods", float64(u.CPU.ThrottledPeriods)},
			{"cpu.throttled_time", float64(u.CPU.ThrottledTime)},
			{"memory.rss", float64(u.Memory.RSS)},
			{"memory.cache", float64(u.Memory.Cache)},
			{"memory.swap", float64(u.Memory.Swap)},
			{"memory.usage", float64(u.Memory.Usage)},
			{"memory.max_usage", float64(u.Memory.MaxUsage)},
			{"memory.kernel_usage", float64(u.Memory.KernelUsage)},
			{"memory.kernel_max_usage", float64(u.Memory.KernelMaxUsage)},
		} {
			m.addGauge("client.allocs."+figure.name, figure.value, labels)
		}
	}
}
