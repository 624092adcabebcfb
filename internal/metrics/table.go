package metrics

import (
	"slices"
	"strings"
	"sync"
)

// Kind is the type of a metric.
type Kind int

const (
	Gauge   Kind = iota
	Counter      // a value that only decreases when the process that counts is restarted
	Histogram
)

func (k Kind) String() string { return [...]string{"gauge", "counter", "histogram"}[k] }

// Definition describes a metric.
type Definition struct {
	Name   string // name with dots for a metric that Nomad has too, and with the prefix nomad_lite_ for any other metric
	Kind   Kind
	Help   string   // description in one sentence, with the unit
	Unit   string   // unit in the notation of UCUM; empty for a number without unit
	Labels []string // names of the labels, sorted; a value omits a label whose value is unknown

	group   group
	buckets []float64 // upper limits of a histogram's buckets
}

// PrometheusName returns the name in Prometheus' formats.
func (d *Definition) PrometheusName() string {
	return strings.ReplaceAll(d.Name, ".", "_")
}

// FindByPrometheusName returns the definition with a name in Prometheus' formats, nil if there is none.
func FindByPrometheusName(name string) *Definition { return byPrometheusName()[name] }

// eventLabels returns the names of the labels whose values are arguments of Observe and Add: all except host, which is
// the same for all events.
func (d *Definition) eventLabels() []string {
	return slices.DeleteFunc(slices.Clone(d.Labels), func(name string) bool { return name == hostLabelName })
}

// group is a set of metrics that one field of Settings can omit.
type group int

const (
	agentGroup group = iota // metrics that are never omitted
	nodeGroup
	allocationGroup
)

const hostLabelName = "host"

// Label sets of the table.
var (
	hostLabel  = []string{hostLabelName}
	nodeLabels = []string{"datacenter", "host", "node_class", "node_id", "node_pool", "node_scheduling_eligibility", "node_status"}
	cpuLabels  = []string{"cpu", "datacenter", "host", "node_class", "node_id", "node_pool", "node_scheduling_eligibility", "node_status"}
	diskLabels = []string{"datacenter", "disk", "host", "node_class", "node_id", "node_pool", "node_scheduling_eligibility", "node_status"}
	jobLabels  = []string{"host", "job", "namespace", "parent_id", "task_group"}
	hookLabels = []string{"hook", "hook_point"}

	blockedLabels    = []string{"datacenter", "host", "node_class", "node_pool"}
	blockedJobLabels = []string{"host", "job", "namespace"}
	callLabels       = []string{"class", "plugin"}
	helperLabels     = []string{"helper"}
	eventLabels      = []string{"host", "job", "namespace", "task", "task_group"}
	taskLabels       = []string{"alloc_id", "host", "job", "namespace", "task", "task_group"}
)

// Buckets of histograms, in seconds. A bucket is a time series of each combination of labels, so there are few.
var (
	callBuckets  = []float64{.0005, .002, .01, .05, .25, 1, 5, 30}
	hookBuckets  = []float64{.001, .01, .1, 1, 10, 60, 600}
	writeBuckets = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .5, 2}
	startBuckets = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
)

// Definitions is the table of all metrics. It must not be changed.
var Definitions = []*Definition{
	{Name: "nomad.runtime.num_goroutines", Help: "Number of goroutines of the agent.", Labels: hostLabel},
	{Name: "nomad.runtime.alloc_bytes", Help: "Memory that the agent has allocated and not freed, in bytes.", Unit: "By", Labels: hostLabel},
	{Name: "nomad.runtime.sys_bytes", Help: "Memory that the agent's Go runtime has from the operating system, in bytes.", Unit: "By", Labels: hostLabel},
	{Name: "nomad.runtime.heap_objects", Help: "Number of objects on the heap of the agent.", Labels: hostLabel},
	{Name: "nomad.runtime.malloc_count", Help: "Number of objects that the agent has allocated since its start.", Labels: hostLabel},
	{Name: "nomad.runtime.free_count", Help: "Number of objects that the agent has freed since its start.", Labels: hostLabel},
	{Name: "nomad.runtime.total_gc_pause_ns", Help: "Time during which garbage collections have paused the agent since its start, in nanoseconds.", Unit: "ns", Labels: hostLabel},
	{Name: "nomad.runtime.total_gc_runs", Help: "Number of garbage collections since the start of the agent.", Labels: hostLabel},

	{Name: "nomad.nomad.job_summary.queued", Help: "Number of allocations of the group that wait to be placed.", Labels: jobLabels},
	{Name: "nomad.nomad.job_summary.starting", Help: "Number of pending allocations of the group.", Labels: jobLabels},
	{Name: "nomad.nomad.job_summary.running", Help: "Number of running allocations of the group.", Labels: jobLabels},
	{Name: "nomad.nomad.job_summary.complete", Help: "Number of complete allocations of the group.", Labels: jobLabels},
	{Name: "nomad.nomad.job_summary.failed", Help: "Number of failed allocations of the group.", Labels: jobLabels},
	{Name: "nomad.nomad.job_summary.lost", Help: "Number of lost allocations of the group.", Labels: jobLabels},
	{Name: "nomad.nomad.job_summary.unknown", Help: "Number of allocations of the group in an unknown state.", Labels: jobLabels},
	{Name: "nomad.nomad.job_status.pending", Help: "Number of pending jobs.", Labels: hostLabel},
	{Name: "nomad.nomad.job_status.running", Help: "Number of running jobs.", Labels: hostLabel},
	{Name: "nomad.nomad.job_status.dead", Help: "Number of dead jobs.", Labels: hostLabel},
	{Name: "nomad.nomad.blocked_evals.total_blocked", Help: "Number of evaluations that wait for free resources.", Labels: hostLabel},
	{Name: "nomad.nomad.blocked_evals.cpu", Help: "CPU of the allocations for which evaluations wait, in MHz.", Unit: "MHz", Labels: blockedLabels},
	{Name: "nomad.nomad.blocked_evals.memory", Help: "Memory of the allocations for which evaluations wait, in megabytes.", Unit: "MiBy", Labels: blockedLabels},
	{Name: "nomad.nomad.blocked_evals.job.cpu", Help: "The same CPU by job, in MHz.", Unit: "MHz", Labels: blockedJobLabels},
	{Name: "nomad.nomad.blocked_evals.job.memory", Help: "The same memory by job, in megabytes.", Unit: "MiBy", Labels: blockedJobLabels},
	{Name: "nomad.nomad.broker.total_ready", Help: "Number of evaluations that wait for the scheduler.", Labels: hostLabel},
	{Name: "nomad.nomad.broker.total_waiting", Help: "Number of evaluations that wait for their time.", Labels: hostLabel},

	{Name: "nomad.client.allocations.migrating", Help: "Number of allocations that move data of previous allocations.", Labels: nodeLabels},
	{Name: "nomad.client.allocations.blocked", Help: "Number of allocations that wait for the end of previous allocations.", Labels: nodeLabels},
	{Name: "nomad.client.allocations.pending", Help: "Number of allocations that do not run yet.", Labels: nodeLabels},
	{Name: "nomad.client.allocations.start", Help: "Number of pending allocations that are being started.", Labels: nodeLabels},
	{Name: "nomad.client.allocations.running", Help: "Number of running allocations.", Labels: nodeLabels},
	{Name: "nomad.client.allocations.terminal", Help: "Number of ended allocations.", Labels: nodeLabels},
	{Name: "nomad.client.tasks.running", Help: "Number of running tasks.", Labels: nodeLabels},
	{Name: "nomad.client.tasks.pending", Help: "Number of tasks that do not run yet, or wait for a restart.", Labels: nodeLabels},
	{Name: "nomad.client.tasks.dead", Help: "Number of ended tasks.", Labels: nodeLabels},
	{Name: "nomad.client.allocated.cpu", Help: "CPU that is allocated to tasks, in MHz.", Unit: "MHz", Labels: nodeLabels},
	{Name: "nomad.client.allocated.memory", Help: "Memory that is allocated to tasks, in megabytes.", Unit: "MiBy", Labels: nodeLabels},
	{Name: "nomad.client.allocated.max_memory", Help: "Memory that tasks can use at most with oversubscription, in megabytes.", Unit: "MiBy", Labels: nodeLabels},
	{Name: "nomad.client.allocated.disk", Help: "Disk that is allocated to allocations, in megabytes.", Unit: "MiBy", Labels: nodeLabels},
	{Name: "nomad.client.unallocated.cpu", Help: "CPU that can still be allocated, in MHz.", Unit: "MHz", Labels: nodeLabels},
	{Name: "nomad.client.unallocated.memory", Help: "Memory that can still be allocated, in megabytes.", Unit: "MiBy", Labels: nodeLabels},
	{Name: "nomad.client.unallocated.disk", Help: "Disk that can still be allocated, in megabytes.", Unit: "MiBy", Labels: nodeLabels},

	{Name: "nomad.client.uptime", Help: "Time since the machine was booted, in seconds.", Unit: "s", Labels: nodeLabels, group: nodeGroup},
	{Name: "nomad.client.host.cpu.user", Help: "Use of the processor by programs, in percent.", Unit: "%", Labels: cpuLabels, group: nodeGroup},
	{Name: "nomad.client.host.cpu.system", Help: "Use of the processor by the kernel, in percent.", Unit: "%", Labels: cpuLabels, group: nodeGroup},
	{Name: "nomad.client.host.cpu.idle", Help: "Idle time of the processor, in percent.", Unit: "%", Labels: cpuLabels, group: nodeGroup},
	{Name: "nomad.client.host.cpu.total", Help: "Use of the processor, in percent; the same as total_percent.", Unit: "%", Labels: cpuLabels, group: nodeGroup},
	{Name: "nomad.client.host.cpu.total_percent", Help: "Use of the processor, in percent.", Unit: "%", Labels: cpuLabels, group: nodeGroup},
	{Name: "nomad.client.host.cpu.total_ticks", Help: "Use of the processor, in MHz.", Unit: "MHz", Labels: cpuLabels, group: nodeGroup},
	{Name: "nomad.client.host.cpu.total_ticks_count", Kind: Counter, Help: "Use of all processors since the boot, in MHz times seconds.", Unit: "MHz.s", Labels: nodeLabels, group: nodeGroup},
	{Name: "nomad.client.host.memory.total", Help: "Memory of the machine, in bytes.", Unit: "By", Labels: nodeLabels, group: nodeGroup},
	{Name: "nomad.client.host.memory.available", Help: "Memory of the machine that programs can get, in bytes.", Unit: "By", Labels: nodeLabels, group: nodeGroup},
	{Name: "nomad.client.host.memory.used", Help: "Memory of the machine that programs use, in bytes.", Unit: "By", Labels: nodeLabels, group: nodeGroup},
	{Name: "nomad.client.host.memory.free", Help: "Memory of the machine that is not used at all, in bytes.", Unit: "By", Labels: nodeLabels, group: nodeGroup},
	{Name: "nomad.client.host.disk.size", Help: "Size of the file system, in bytes.", Unit: "By", Labels: diskLabels, group: nodeGroup},
	{Name: "nomad.client.host.disk.used", Help: "Used space of the file system, in bytes.", Unit: "By", Labels: diskLabels, group: nodeGroup},
	{Name: "nomad.client.host.disk.available", Help: "Available space of the file system, in bytes.", Unit: "By", Labels: diskLabels, group: nodeGroup},
	{Name: "nomad.client.host.disk.used_percent", Help: "Used space of the file system, in percent.", Unit: "%", Labels: diskLabels, group: nodeGroup},
	{Name: "nomad.client.host.disk.inodes_percent", Help: "Used inodes of the file system, in percent.", Unit: "%", Labels: diskLabels, group: nodeGroup},

	{Name: "nomad.client.allocs.start", Kind: Counter, Help: "Number of attempts to start the task, restarts included, since the start of the agent.", Labels: eventLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.running", Kind: Counter, Help: "Number of starts of the task that succeeded since the start of the agent.", Labels: eventLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.complete", Kind: Counter, Help: "Number of times that the task ended without a failure since the start of the agent.", Labels: eventLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.failed", Kind: Counter, Help: "Number of times that the task ended with a failure and was not restarted since the start of the agent.", Labels: eventLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.oom_killed", Kind: Counter, Help: "Number of times that a process of the task was killed at its memory limit since the start of the agent.", Labels: eventLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.restart", Kind: Counter, Help: "Number of restarts of the task.", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.cpu.allocated", Help: "CPU that is allocated to the task, in MHz.", Unit: "MHz", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.cpu.system", Help: "Use of CPU by the kernel for the task, in percent of one core.", Unit: "%", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.cpu.user", Help: "Use of CPU by the task's programs, in percent of one core.", Unit: "%", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.cpu.total_percent", Help: "Use of CPU by the task, in percent of one core.", Unit: "%", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.cpu.total_ticks", Help: "Use of CPU by the task, in MHz.", Unit: "MHz", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.cpu.total_ticks_count", Kind: Counter, Help: "Use of CPU by the task since the first sample of this agent, in MHz times seconds.", Unit: "MHz.s", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.cpu.throttled_periods", Help: "Number of periods in which the task was throttled.", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.cpu.throttled_time", Help: "Time during which the task was throttled, in nanoseconds.", Unit: "ns", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.memory.allocated", Help: "Memory that is allocated to the task, in bytes.", Unit: "By", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.memory.max_allocated", Help: "Memory that the task can use at most, in bytes.", Unit: "By", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.memory.rss", Help: "Memory that the task uses without the page cache, in bytes.", Unit: "By", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.memory.cache", Help: "Page cache of the task, in bytes.", Unit: "By", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.memory.swap", Help: "Memory of the task that is swapped out, in bytes.", Unit: "By", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.memory.usage", Help: "Memory that the task uses, in bytes.", Unit: "By", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.memory.max_usage", Help: "Largest use of memory by the task, in bytes.", Unit: "By", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.memory.kernel_usage", Help: "Memory that the kernel uses for the task, in bytes.", Unit: "By", Labels: taskLabels, group: allocationGroup},
	{Name: "nomad.client.allocs.memory.kernel_max_usage", Help: "Largest use of memory by the kernel for the task, in bytes.", Unit: "By", Labels: taskLabels, group: allocationGroup},

	{Name: "nomad_lite_allocation_start_duration_seconds", Kind: Histogram, Help: "Time from the creation of an allocation until it ran, in seconds.", Unit: "s", buckets: startBuckets},
	{Name: "nomad_lite_jobs", Help: "Number of jobs with the health; 0 on a node of a cluster, whose servers know the jobs.", Labels: []string{"health"}},
	{Name: "nomad_lite_job_health", Help: "1 for the present health of the job; a job has no value for its other healths.", Labels: []string{"health", "job", "namespace"}},
	{Name: "nomad_lite_tasks", Help: "Number of tasks of allocations that are in the state.", Labels: []string{"state"}},

	{Name: "nomad_lite_hook_duration_seconds", Kind: Histogram, Help: "Duration of the calls of a hook at a hook point, in seconds.", Unit: "s", Labels: hookLabels, buckets: hookBuckets},
	{Name: "nomad_lite_hook_failures_total", Kind: Counter, Help: "Number of calls of a hook at a hook point that failed.", Labels: hookLabels},

	{Name: "nomad_lite_condition", Help: "Number of conditions of the kind: what is wrong with the agent or its machine at present; 0 if it is well.", Labels: []string{"condition", "severity"}},

	{Name: "nomad_lite_plugin_up", Help: "1 if a process of the plugin runs or the plugin is not used, 0 if not.", Labels: []string{"plugin", "type"}},
	{Name: "nomad_lite_plugin_restarts_total", Kind: Counter, Help: "Number of processes of the plugin that have exited.", Labels: []string{"plugin", "type"}},
	{Name: "nomad_lite_plugin_call_duration_seconds", Kind: Histogram, Help: "Duration of the calls of a plugin by class of the method, in seconds.", Unit: "s", Labels: callLabels, buckets: callBuckets},
	{Name: "nomad_lite_plugin_call_failures_total", Kind: Counter, Help: "Number of calls of a plugin that returned an error, by class of the method.", Labels: callLabels},

	{Name: "nomad_lite_operations_total", Kind: Counter, Help: "Number of expensive operations of the kind fork, mount, netlink, cgroup, sync or request, of the plugin or else of the agent.", Labels: []string{"operation", "plugin"}},

	{Name: "nomad_lite_helper_up", Help: "1 if the helper process runs, 0 if not.", Labels: helperLabels},
	{Name: "nomad_lite_helper_starts_total", Kind: Counter, Help: "Number of processes that the agent has started as this helper.", Labels: helperLabels},
	{Name: "nomad_lite_helper_resident_memory_bytes", Help: "Resident memory of the helper process, in bytes.", Unit: "By", Labels: helperLabels},
	{Name: "nomad_lite_keeper_descriptors", Help: "Number of file descriptors that the keeper holds."},
	{Name: "nomad_lite_log_collector_streams", Help: "Number of output streams that the log collector reads."},
	{Name: "nomad_lite_log_collector_written_bytes_total", Kind: Counter, Help: "Output that the log collector has written to files, in bytes.", Unit: "By"},
	{Name: "nomad_lite_log_collector_lost_bytes_total", Kind: Counter, Help: "Output that the log collector has dropped because it could not be written, in bytes.", Unit: "By"},

	{Name: "nomad_lite_otlp_lost_spans_total", Kind: Counter, Help: "Number of spans that the OpenTelemetry collector has not accepted."},
	{Name: "nomad_lite_sink_failures_total", Kind: Counter, Help: "Number of readings that could not be sent to statsd, statsite, Datadog or an OpenTelemetry collector.", Labels: []string{"sink"}},

	{Name: "nomad_lite_store_size_bytes", Help: "Size of the state file, in bytes.", Unit: "By"},
	{Name: "nomad_lite_store_written_records_total", Kind: Counter, Help: "Number of records that were written to the state file or deleted from it."},
	{Name: "nomad_lite_store_write_failures_total", Kind: Counter, Help: "Number of writes of the state file that failed."},
	{Name: "nomad_lite_store_commit_duration_seconds", Kind: Histogram, Help: "Time until a write of the state file was on disk, in seconds.", Unit: "s", buckets: writeBuckets},
}

// byName has the definitions by their names, byPrometheusName by their names in Prometheus' formats. Both are made on
// first use, because the commands and helper processes of the same program have no metrics.
var (
	byName           = sync.OnceValue(func() map[string]*Definition { return indexDefinitions(func(d *Definition) string { return d.Name }) })
	byPrometheusName = sync.OnceValue(func() map[string]*Definition { return indexDefinitions((*Definition).PrometheusName) })
)

func indexDefinitions(key func(*Definition) string) map[string]*Definition {
	index := make(map[string]*Definition, len(Definitions))
	for _, d := range Definitions {
		index[key(d)] = d
	}
	return index
}
