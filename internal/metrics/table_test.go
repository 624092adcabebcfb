package metrics

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
)

// nomadNameFindings are the findings of Prometheus' linter about names that Nomad has chosen.
var nomadNameFindings = []string{
	`nomad_client_allocs_complete counter metrics should have "_total" suffix`,
	`nomad_client_allocs_cpu_total_ticks_count counter metrics should have "_total" suffix`,
	`nomad_client_allocs_cpu_total_ticks_count non-histogram and non-summary metrics should not have "_count" suffix`,
	`nomad_client_allocs_failed counter metrics should have "_total" suffix`,
	`nomad_client_allocs_oom_killed counter metrics should have "_total" suffix`,
	`nomad_client_allocs_restart counter metrics should have "_total" suffix`,
	`nomad_client_allocs_running counter metrics should have "_total" suffix`,
	`nomad_client_allocs_start counter metrics should have "_total" suffix`,
	`nomad_client_host_cpu_total non-counter metrics should not have "_total" suffix`,
	`nomad_client_host_cpu_total_ticks_count counter metrics should have "_total" suffix`,
	`nomad_client_host_cpu_total_ticks_count non-histogram and non-summary metrics should not have "_count" suffix`,
	`nomad_client_host_memory_total non-counter metrics should not have "_total" suffix`,
	`nomad_nomad_job_summary_complete metric name should not include type 'summary'`,
	`nomad_nomad_job_summary_failed metric name should not include type 'summary'`,
	`nomad_nomad_job_summary_lost metric name should not include type 'summary'`,
	`nomad_nomad_job_summary_queued metric name should not include type 'summary'`,
	`nomad_nomad_job_summary_running metric name should not include type 'summary'`,
	`nomad_nomad_job_summary_starting metric name should not include type 'summary'`,
	`nomad_nomad_job_summary_unknown metric name should not include type 'summary'`,
	`nomad_runtime_free_count non-histogram and non-summary metrics should not have "_count" suffix`,
	`nomad_runtime_malloc_count non-histogram and non-summary metrics should not have "_count" suffix`,
	`nomad_runtime_total_gc_pause_ns metric names should not contain abbreviated units`,
}

// requirePromtool returns the path of promtool.
func requirePromtool(t *testing.T) string {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("NOMAD_LITE_CI") != "" {
			t.Fatal(err)
		}
		t.Skip("needs promtool (Debian: prometheus)")
	}
	return promtool
}

// TestPromtoolChecksMetrics runs Prometheus' linter on a value of each metric.
func TestPromtoolChecksMetrics(t *testing.T) {
	cmd := exec.Command(requirePromtool(t), "check", "metrics")
	set := NewSet(&Settings{})
	AllocationStarts.Observe(time.Second)
	HookCalls.Observe(time.Second, "h", "prestart")
	HookFailures.Add(1, "h", "prestart")
	ObserveStoreWrite(time.Second, 1, nil)
	ObservePluginCall("p", "/x.Driver/StartTask", time.Second, true)
	set.AddInstruments("h")
	for _, d := range Definitions {
		var labels Labels
		for _, name := range d.Labels {
			labels = labels.With(name, "x")
		}
		if set.familyByName[d.Name] == nil {
			set.Add(d.Name, 1, labels)
		}
	}
	var text bytes.Buffer
	for _, f := range set.Families() {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	cmd.Stdin = &text
	out, _ := cmd.CombinedOutput() // promtool fails if there are findings, which the test compares
	var findings []string
	for line := range strings.Lines(string(out)) {
		findings = append(findings, strings.TrimSpace(line))
	}
	slices.Sort(findings)
	if !slices.Equal(findings, nomadNameFindings) {
		t.Errorf("findings\n%s\nwant\n%s", strings.Join(findings, "\n"), strings.Join(nomadNameFindings, "\n"))
	}
}

func TestTable(t *testing.T) {
	for i, d := range Definitions {
		if byPrometheusName()[d.PrometheusName()] != d {
			t.Errorf("%s is in the table twice", d.Name)
		}
		if !strings.HasSuffix(d.Help, ".") || !slices.IsSorted(d.Labels) || (d.Kind == Histogram) != (len(d.buckets) > 0) {
			t.Errorf("definition %d: %+v", i, d)
		}
		for text, unit := range map[string]string{
			"in bytes": "By", "in megabytes": "MiBy", "in seconds": "s", "in nanoseconds": "ns", "in percent": "%", "in MHz.": "MHz", "in MHz times seconds.": "MHz.s",
		} {
			if strings.Contains(d.Help, text) && d.Unit != unit {
				t.Errorf("%s has the unit %q: %s", d.Name, d.Unit, d.Help)
			}
		}
		if nomad, own := strings.HasPrefix(d.Name, "nomad."), strings.HasPrefix(d.Name, "nomad_lite_"); nomad == own {
			t.Errorf("%s has no known prefix", d.Name)
		}
	}
}
