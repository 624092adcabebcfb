package metrics

import (
	"path"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Instruments are the metrics that other packages update when something happens. They belong to the process: agents in
// one process share them, as they share the metrics of the Go runtime. Each is made on first use.
var (
	// AllocationStarts has the time from the creation of an allocation until it runs.
	AllocationStarts = newTimer("nomad_lite_allocation_start_duration_seconds")

	// HookCalls has the calls of hooks, HookFailures the failed calls, by hook and hook point.
	HookCalls    = newTimer("nomad_lite_hook_duration_seconds")
	HookFailures = newCounter("nomad_lite_hook_failures_total")

	// TaskStarts has the attempts to start a process of a task, TaskRuns the started processes, TaskOOMKills the processes
	// that ended because of their memory limit. TaskCompletions and TaskFailures have the ends of tasks that are not restarted.
	TaskStarts      = newCounter("nomad.client.allocs.start")
	TaskRuns        = newCounter("nomad.client.allocs.running")
	TaskOOMKills    = newCounter("nomad.client.allocs.oom_killed")
	TaskCompletions = newCounter("nomad.client.allocs.complete")
	TaskFailures    = newCounter("nomad.client.allocs.failed")

	// SinkFailures has the readings that could not be sent, by protocol of the sink.
	SinkFailures = newCounter("nomad_lite_sink_failures_total")

	// LostSpans has the spans that were not exported.
	LostSpans = newCounter("nomad_lite_otlp_lost_spans_total")

	storeCommits  = newTimer("nomad_lite_store_commit_duration_seconds")
	storeRecords  = newCounter("nomad_lite_store_written_records_total")
	storeFailures = newCounter("nomad_lite_store_write_failures_total")

	pluginCalls    = newTimer("nomad_lite_plugin_call_duration_seconds")
	pluginFailures = newCounter("nomad_lite_plugin_call_failures_total")
)

var instrumentsRegistry = sync.OnceValue(func() *prometheus.Registry {
	r := prometheus.NewRegistry()
	for _, t := range []*Timer{AllocationStarts, HookCalls, storeCommits, pluginCalls} {
		r.MustRegister(t.vec())
	}
	for _, c := range []*Count{
		TaskStarts, TaskRuns, TaskOOMKills, TaskCompletions, TaskFailures, HookFailures, storeRecords, storeFailures, SinkFailures, LostSpans, pluginFailures,
	} {
		r.MustRegister(c.vec())
	}
	return r
})

// gatherInstruments returns the current values of the instruments.
func gatherInstruments() []*dto.MetricFamily {
	families, _ := instrumentsRegistry().Gather() // the registry cannot fail: all collectors are described and have distinct series
	return families
}

// Timer is a histogram of durations. Its methods may be called concurrently.
type Timer struct {
	vec    func() *prometheus.HistogramVec
	series limitedSeries[prometheus.Observer]
}

func newTimer(name string) *Timer {
	t := &Timer{vec: sync.OnceValue(func() *prometheus.HistogramVec {
		d := byName()[name]
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: d.buckets}, d.eventLabels())
	})}
	t.series.createSeries = func(values []string) prometheus.Observer { return t.vec().WithLabelValues(values...) }
	return t
}

// Observe adds a duration. The values belong to the labels of the table except host, in its order.
func (t *Timer) Observe(d time.Duration, values ...string) {
	t.series.getOrCreate(values).Observe(max(d, 0).Seconds())
}

// Count is a counter. Its methods may be called concurrently.
type Count struct {
	vec    func() *prometheus.CounterVec
	series limitedSeries[prometheus.Counter]
}

func newCounter(name string) *Count {
	c := &Count{vec: sync.OnceValue(func() *prometheus.CounterVec {
		d := byName()[name]
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.PrometheusName(), Help: d.Help}, d.eventLabels())
		if len(d.Labels) == 0 {
			vec.WithLabelValues() // the counter is served before the first event
		}
		return vec
	})}
	c.series.createSeries = func(values []string) prometheus.Counter { return c.vec().WithLabelValues(values...) }
	return c
}

// Add increases the counter by n, which must not be negative. The values belong to the labels of the table
// except host, in its order.
func (c *Count) Add(n int, values ...string) { c.series.getOrCreate(values).Add(float64(n)) }

// maxSeries is the maximum number of time series of an instrument, because the names in jobs, which become values of
// labels, must not fill the memory.
const maxSeries = 400

// otherValue is the value of each label of the one series that replaces all further series after maxSeries.
const otherValue = "other"

// limitedSeries contains the time series of one instrument, which has at most four labels: at most maxSeries, and one
// with otherValue.
type limitedSeries[T any] struct {
	createSeries func(values []string) T

	mu                  sync.RWMutex
	seriesByLabelValues map[[4]string]T
}

func (s *limitedSeries[T]) getOrCreate(values []string) T {
	var k [4]string
	copy(k[:], values)
	s.mu.RLock()
	found, ok := s.seriesByLabelValues[k]
	s.mu.RUnlock()
	if ok {
		return found
	}
	return s.addSeries(k, len(values))
}

func (s *limitedSeries[T]) addSeries(k [4]string, count int) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seriesByLabelValues == nil {
		s.seriesByLabelValues = make(map[[4]string]T)
	}
	values := make([]string, count)
	for i := range values {
		values[i] = strings.ToValidUTF8(k[i], "?")
		if len(s.seriesByLabelValues) >= maxSeries {
			values[i] = otherValue
		}
	}
	series := s.createSeries(values)
	if len(s.seriesByLabelValues) < maxSeries {
		s.seriesByLabelValues[k] = series
	}
	return series
}

// ObserveStoreWrite counts a write of the state file with its records. The duration includes the wait until the data is on disk.
func ObserveStoreWrite(d time.Duration, records int, err error) {
	storeCommits.Observe(d)
	if err != nil {
		storeFailures.Add(1)
		return
	}
	storeRecords.Add(records)
}

// ObservePluginCall counts a call of a plugin process. The method is the full name of gRPC, with the service. WaitTask is not
// counted, because it lasts as long as the task.
func ObservePluginCall(plugin, method string, d time.Duration, failed bool) {
	name := path.Base(method)
	if name == "WaitTask" {
		return
	}
	class, ok := methodClasses[name]
	switch {
	case ok:
	case strings.HasSuffix(path.Dir(method), ".Hook"):
		class = "hook"
	default:
		class = otherValue
	}
	pluginCalls.Observe(d, class, plugin)
	if failed {
		pluginFailures.Add(1, class, plugin)
	}
}

// methodClasses are the classes of methods. Methods of hooks are of the class hook.
var methodClasses = map[string]string{
	"StartTask":        "start",
	"RecoverTask":      "recover",
	"StopTask":         "stop",
	"SignalTask":       "stop",
	"DestroyTask":      "destroy",
	"InspectTask":      "inspect",
	"ExecTask":         "exec",
	"CreateNetwork":    "network",
	"DestroyNetwork":   "network",
	"Reserve":          "reserve",
	"PluginInfo":       "describe",
	"ConfigSchema":     "describe",
	"SetConfig":        "describe",
	"TaskConfigSchema": "describe",
	"Capabilities":     "describe",
	"Describe":         "describe",
	"Configure":        "describe",
}
