package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

const nodeID = "0f0e0d0c-0000-0000-0000-000000000001"

// fakeNode is a node without runners.
type fakeNode struct {
	host    hoststats.Stats
	samples int // number of machine samples
}

func (n *fakeNode) sources() Sources {
	tracker := conditions.NewTracker(func() conditions.Facts { return conditions.Facts{Now: time.Now(), OutputLossErr: errors.New("lost")} })
	return Sources{Allocs: n, HostStats: n.HostStats, Plugins: n.Plugins, Conditions: tracker}
}

func (*fakeNode) AllocRunner(string) *allocrunner.Runner { return nil }

func (n *fakeNode) HostStats(context.Context) hoststats.Stats {
	n.samples++
	return n.host
}

func (*fakeNode) Plugins() []supervisor.PluginStatus {
	key := supervisor.PluginKey{Type: base.TypeDriver, Name: "docker"}
	return []supervisor.PluginStatus{
		{Name: "docker", Serves: key, PID: 7, ExitCount: 2},
		{Name: "old-docker", Serves: key, SupersededBy: "docker"},
		{Name: "exec", Serves: supervisor.PluginKey{Type: base.TypeDriver, Name: "exec"}, Idle: true},
		{Name: "crashing", Serves: supervisor.PluginKey{Type: base.TypeHook, Name: "crashing"}},
		{Name: "never-started"},
	}
}

// newCollector returns a collector for a node with allocations in several states.
func newCollector(t testing.TB, n *fakeNode) *MetricsCollector {
	t.Helper()
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	job := &api.Job{
		ID: new("web"), Name: new("web"), Namespace: new("default"), Version: new(uint64(0)), Type: new("service"), Status: new("running"),
		Meta: map[string]string{"team-name": "a", "__x": "b", "1st": "c", "job": "d", "secret": "e"},
		TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{
			{Name: "t", Meta: map[string]string{"team-name": "of the task \xff"}, Resources: &api.Resources{CPU: new(100), MemoryMB: new(300)}},
		}}},
	}
	alloc := func(id, status, previous string, states ...string) *api.Allocation {
		a := &api.Allocation{
			ID: id, Namespace: "default", JobID: "web", Job: job, TaskGroup: "g", NodeID: nodeID, Name: "web.g[0]", ClientStatus: status,
			DesiredStatus: api.AllocDesiredStatusRun, PreviousAllocation: previous, TaskStates: map[string]*api.TaskState{},
			AllocatedResources: &api.AllocatedResources{Shared: api.AllocatedSharedResources{DiskMB: 300}, Tasks: map[string]*api.AllocatedTaskResources{
				"t": {Cpu: api.AllocatedCpuResources{CpuShares: 100}, Memory: api.AllocatedMemoryResources{MemoryMB: 256, MemoryMaxMB: 512}},
			}},
		}
		for i, state := range states {
			a.TaskStates[string(rune('t'+i))] = &api.TaskState{State: state, Restarts: 3}
		}
		return a
	}
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutNodeWithStorageEvents(&api.Node{
			ID: nodeID, Name: "n1", Datacenter: "dc1", Status: api.NodeStatusReady, NodePool: "default", SchedulingEligibility: "eligible",
			NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 4000}, Memory: api.NodeMemoryResources{MemoryMB: 1000}}, ReservedResources: &api.NodeReservedResources{},
		})
		tx.PutJobAndVersion(job)
		tx.PutScheduledAllocation(alloc("a1", api.AllocClientStatusRunning, "", "running", "dead"))
		tx.PutScheduledAllocation(alloc("a2", api.AllocClientStatusPending, "a1", "pending"))
		tx.PutScheduledAllocation(alloc("a3", api.AllocClientStatusPending, "", "pending"))
		tx.PutScheduledAllocation(alloc("a4", api.AllocClientStatusFailed, "", "dead"))
		for id, status := range map[string]string{"e1": api.EvalStatusBlocked, "e2": api.EvalStatusPending, "e3": api.EvalStatusComplete} {
			tx.PutEvaluation(&api.Evaluation{ID: id, Namespace: "default", JobID: "web", Status: status, FailedTGAllocs: map[string]*api.AllocationMetric{"g": {CoalescedFailures: 2}, "gone": {}}})
		}
		tx.PutEvaluation(&api.Evaluation{ID: "e4", Namespace: "default", JobID: "web", Status: api.EvalStatusPending, WaitUntil: time.Now().Add(time.Hour)})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return New(s, n.sources(), nodeID)
}

var measuredHost = hoststats.Stats{
	Uptime: 7, CPUTicksTotal: 9, Memory: &api.HostMemoryStats{Total: 1 << 30},
	CPU:       []*hoststats.CPU{{CPU: "cpu0", TotalPercent: 50, TotalTicks: 2000, Measured: true}},
	DiskStats: []*api.HostDiskStats{{Device: "/dev/vda", Size: 1 << 30, InodesUsedPercent: 1}},
}

// prometheusText returns families in Prometheus' text format.
func prometheusText(t testing.TB, families []*dto.MetricFamily) string {
	t.Helper()
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestGatherCountsStates(t *testing.T) {
	text := prometheusText(t, newCollector(t, &fakeNode{host: measuredHost}).Gather(t.Context()))
	const node = `{datacenter="dc1",host="n1",node_class="none",node_id="` + nodeID + `",node_pool="default",node_scheduling_eligibility="eligible",node_status="ready"}`
	for _, line := range []string{
		"nomad_client_allocations_running" + node + " 1",
		"nomad_client_allocations_pending" + node + " 2",
		"nomad_client_allocations_blocked" + node + " 1",
		"nomad_client_allocations_start" + node + " 1",
		"nomad_client_allocations_migrating" + node + " 0",
		"nomad_client_allocations_terminal" + node + " 1",
		"nomad_client_tasks_running" + node + " 1",
		"nomad_client_allocated_memory" + node + " 768",
		"nomad_client_allocated_max_memory" + node + " 1536",
		"nomad_client_unallocated_cpu" + node + " 3700",
		"nomad_client_uptime" + node + " 7",
		"nomad_client_host_cpu_total_ticks_count" + node + " 9",
		"# TYPE nomad_lite_plugin_up gauge\n" + `nomad_lite_plugin_up{plugin="docker",type="driver"} 1` + "\n" +
			`nomad_lite_plugin_up{plugin="exec",type="driver"} 1` + "\n" + `nomad_lite_plugin_up{plugin="crashing",type="hook"} 0`,
		`nomad_lite_condition{condition="OutputLost",severity="error"} 1`,
		`nomad_lite_condition{condition="DiskFull",severity="error"} 0`,
		`nomad_lite_plugin_restarts_total{plugin="docker",type="driver"} 2`,
		`nomad_lite_job_health{health="degraded",job="web",namespace="default"} 1`,
		`nomad_lite_jobs{health="degraded"} 1`,
		`nomad_lite_jobs{health="running"} 0`,
		`nomad_lite_tasks{state="pending"} 2`,
		`nomad_lite_tasks{state="running"} 1`,
		`nomad_lite_tasks{state="dead"} 2`,
		`nomad_nomad_blocked_evals_total_blocked{host="n1"} 1`,
		`nomad_nomad_broker_total_ready{host="n1"} 1`,
		`nomad_nomad_blocked_evals_cpu{datacenter="dc1",host="n1",node_class="none",node_pool="default"} 300`,
		`nomad_nomad_blocked_evals_memory{datacenter="dc1",host="n1",node_class="none",node_pool="default"} 900`,
		`nomad_nomad_blocked_evals_job_cpu{host="n1",job="web",namespace="default"} 300`,
		`nomad_nomad_blocked_evals_job_memory{host="n1",job="web",namespace="default"} 900`,
		"nomad_client_tasks_pending" + node + " 2",
		"nomad_client_tasks_dead" + node + " 2",
		`nomad_nomad_broker_total_waiting{host="n1"} 1`,
		`nomad_nomad_job_status_running{host="n1"} 1`,
		`nomad_nomad_job_summary_starting{host="n1",job="web",namespace="default",task_group="g"} 2`,
		"# TYPE nomad_client_allocs_restart counter",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("%s is missing in\n%s", line, text)
		}
	}
}

func TestUnmeasuredValuesAreAbsent(t *testing.T) {
	n := &fakeNode{host: hoststats.Stats{
		Memory: &api.HostMemoryStats{}, CPU: []*hoststats.CPU{{CPU: "cpu0", Idle: 100}}, DiskStats: []*api.HostDiskStats{{Device: "/dev/vda", Size: 1}},
	}}
	text := prometheusText(t, newCollector(t, n).Gather(t.Context()))
	for _, name := range []string{"client_uptime", "client_host_cpu", "client_host_memory", "client_host_disk_inodes"} {
		if strings.Contains(text, name) {
			t.Errorf("%s is served without a measurement", name)
		}
	}
	if !strings.Contains(text, "client_host_disk_size") {
		t.Error("a measured value of the same disk is missing")
	}

	r := &metricSetBuilder{Set: metrics.NewSet(&metrics.Settings{}), settings: &metrics.Settings{}}
	r.addTaskUsage(&taskUsage{alloc: &api.Allocation{}, task: "t", Usage: driver.Usage{
		CPU: driver.CPUUsage{Measured: []string{"Percent"}}, Memory: driver.MemoryUsage{Measured: []string{"RSS", "Kernel Max Usage"}},
	}})
	var names []string
	for _, f := range r.Families() {
		names = append(names, strings.TrimPrefix(f.GetName(), "nomad_client_allocs_"))
	}
	if want := []string{"cpu_total_percent", "cpu_total_ticks", "cpu_total_ticks_count", "memory_kernel_max_usage", "memory_rss"}; !slices.Equal(names, want) {
		t.Errorf("metrics of the task %v, want %v", names, want)
	}
}

func TestMetadataBecomesLabels(t *testing.T) {
	c := newCollector(t, &fakeNode{})
	for _, check := range []struct {
		settings metrics.Settings
		want     string
	}{
		{metrics.Settings{}, `{alloc_id="a3",host="n1",job="web",namespace="default",task="t",task_group="g"}`},
		{metrics.Settings{IncludeAllocMetadata: true}, `{_1st="c",alloc_id="a3",host="n1",job="web",namespace="default",secret="e",task="t",task_group="g",team_name="of the task ?",x="b"}`},
		{metrics.Settings{IncludeAllocMetadata: true, AllowedMetadataKeys: []string{"team-name"}}, `{alloc_id="a3",host="n1",job="web",namespace="default",task="t",task_group="g",team_name="of the task ?"}`},
		{metrics.Settings{OmitHost: true}, `{alloc_id="a3",job="web",namespace="default",task="t",task_group="g"}`},
	} {
		c.SetSettings(check.settings)
		if text := prometheusText(t, c.Gather(t.Context())); !strings.Contains(text, "nomad_client_allocs_memory_max_allocated"+check.want+" 5.36870912e+08\n") {
			t.Errorf("%+v: %s is missing in\n%s", check.settings, check.want, text)
		}
	}
}

func TestSettingsSelectMetrics(t *testing.T) {
	c := newCollector(t, &fakeNode{host: measuredHost})
	for _, check := range []struct {
		name          string
		settings      metrics.Settings
		kept, omitted string
	}{
		{"no node metrics", metrics.Settings{OmitNodeMetrics: true}, "nomad_client_allocs", "nomad_client_host"},
		{"no allocation metrics", metrics.Settings{OmitAllocationMetrics: true}, "nomad_client_host", "nomad_client_allocs"},
		{"omitted prefix", metrics.Settings{Filter: metrics.Filter{Rules: []string{"-nomad.client.host"}}}, "nomad_client_allocs", "nomad_client_host"},
		{"longest prefix", metrics.Settings{Filter: metrics.Filter{Rules: []string{"+nomad.client.host.cpu", "-nomad.client.host"}}}, "nomad_client_host_cpu", "nomad_client_host_memory"},
		{"no host", metrics.Settings{OmitHost: true}, `nomad_client_allocs_start{job="web"`, "host="},
		{"omitted by default", metrics.Settings{Filter: metrics.Filter{OmitDefault: true, Rules: []string{"+nomad.client"}}}, "nomad_client_host", "nomad_runtime"},
	} {
		c.SetSettings(check.settings)
		metrics.TaskStarts.Add(1, "web", "default", "t", "g")
		if text := prometheusText(t, c.Gather(t.Context())); !strings.Contains(text, check.kept) || strings.Contains(text, check.omitted) {
			t.Errorf("%s: want %s and not %s", check.name, check.kept, check.omitted)
		}
	}
}

func TestUsageIsSampledOncePerInterval(t *testing.T) {
	n := &fakeNode{host: measuredHost}
	c := newCollector(t, n)
	synctest.Test(t, func(t *testing.T) {
		c.SetSettings(metrics.Settings{CollectionInterval: 10 * time.Second})
		for range 3 {
			c.Gather(t.Context())
		}
		if n.samples != 1 {
			t.Errorf("%d samples in one interval", n.samples)
		}
		time.Sleep(11 * time.Second)
		if c.Gather(t.Context()); n.samples != 2 {
			t.Errorf("%d samples in two intervals", n.samples)
		}
	})
}

func TestCPUOfTasksIsCounted(t *testing.T) {
	task := func(id string, ticks float64) taskUsage {
		return taskUsage{alloc: &api.Allocation{ID: id}, task: "t", Usage: driver.Usage{CPU: driver.CPUUsage{TotalTicks: ticks}}}
	}
	running := func(ids ...string) (allocs []*api.Allocation) {
		for _, id := range ids {
			allocs = append(allocs, &api.Allocation{ID: id, ClientStatus: api.AllocClientStatusRunning, TaskStates: map[string]*api.TaskState{"t": {State: model.TaskRunning}}})
		}
		return allocs
	}
	c := &MetricsCollector{}
	start := time.Now()
	for _, step := range []struct {
		name   string
		second int
		allocs []*api.Allocation
		usages []taskUsage
		want   []float64
	}{
		{"the first sample counts nothing", 0, running("a", "b"), []taskUsage{task("a", 1000), task("b", 50)}, []float64{0, 0}},
		{"a sample counts for the time since the last one", 2, running("a", "b"), []taskUsage{task("a", 1000), task("b", 50)}, []float64{2000, 100}},
		{"an idle task", 3, running("a", "b"), []taskUsage{task("a", 0), task("b", 50)}, []float64{2000, 150}},
		{"a driver that is too slow for one task", 4, running("a", "b"), []taskUsage{task("a", 10)}, []float64{2010}},
		{"the time without a sample counts", 5, running("a", "b"), []taskUsage{task("a", math.NaN()), task("b", 100)}, []float64{2010, 350}},
		{"a task ends", 6, running("b"), []taskUsage{task("b", 100)}, []float64{450}},
		{"a task that runs again has a new count", 7, running("a"), []taskUsage{task("a", 100)}, []float64{0}},
	} {
		sample := usageSample{sampledAt: start.Add(time.Duration(step.second) * time.Second), taskUsages: step.usages}
		c.countCPU(&sample, step.allocs)
		var got []float64
		for _, u := range sample.taskUsages {
			got = append(got, u.cpuMHzSeconds)
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}

// TestGatherFillsTheTable checks that each metric in the table has a value with the table's labels, unless it is one of this
// program's instruments.
func TestGatherFillsTheTable(t *testing.T) {
	c := newCollector(t, &fakeNode{host: measuredHost})
	for _, count := range []*metrics.Count{metrics.TaskStarts, metrics.TaskRuns, metrics.TaskOOMKills, metrics.TaskCompletions, metrics.TaskFailures} {
		count.Add(1, "web", "default", "t", "g")
	}
	set := metrics.NewSet(&metrics.Settings{})
	r := &metricSetBuilder{Set: set, settings: &metrics.Settings{}, hostLabel: metrics.NewLabels("host", "n1")}
	cpu := driver.CPUUsage{Measured: []string{"System Mode", "User Mode", "Percent", "Throttled Periods", "Throttled Time"}}
	memory := driver.MemoryUsage{Measured: []string{"RSS", "Cache", "Swap", "Usage", "Max Usage", "Kernel Usage", "Kernel Max Usage"}}
	r.addTaskUsage(&taskUsage{alloc: &api.Allocation{}, task: "t", Usage: driver.Usage{CPU: cpu, Memory: memory}})
	families := append(c.Gather(t.Context()), set.Families()...)
	for _, d := range metrics.Definitions {
		if strings.HasPrefix(d.Name, "nomad_lite_") && d.Name != "nomad_lite_tasks" && d.Name != "nomad_lite_jobs" && d.Name != "nomad_lite_job_health" {
			continue // needs processes, or events: see the script test metrics
		}
		i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == d.PrometheusName() })
		if i < 0 {
			t.Errorf("%s has no value", d.Name)
			continue
		}
		for _, p := range families[i].GetMetric()[0].GetLabel() {
			if !slices.Contains(d.Labels, p.GetName()) {
				t.Errorf("%s has the label %s, which is not in the table", d.Name, p.GetName())
			}
		}
	}
}

func BenchmarkGather(b *testing.B) {
	c := newCollector(b, &fakeNode{host: measuredHost})
	if _, err := c.store.Update(b.Context(), func(tx *store.Txn) error {
		first := tx.Allocation(nil, "a1")
		for i := range 1000 {
			alloc := *first
			alloc.ID = fmt.Sprintf("b%d", i)
			tx.PutScheduledAllocation(&alloc)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c.Gather(b.Context())
	}
}
