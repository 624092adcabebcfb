package allocrunner

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
)

// taskCounters returns the counters of the tasks of a job.
func taskCounters(job string) map[string]float64 {
	counters := make(map[string]float64)
	set := metrics.NewSet(&metrics.Settings{})
	set.AddInstruments("n1")
	for _, f := range set.Families() {
		name, found := strings.CutPrefix(f.GetName(), "nomad_client_allocs_")
		for _, m := range f.GetMetric() {
			labels := make(map[string]string)
			for _, p := range m.GetLabel() {
				labels[p.GetName()] = p.GetValue()
			}
			if found && maps.Equal(labels, map[string]string{"host": "n1", "job": job, "namespace": "default", "task": "t", "task_group": "g"}) {
				counters[name] = m.GetCounter().GetValue()
			}
		}
	}
	return counters
}

func TestTasksAreCounted(t *testing.T) {
	for _, test := range []struct {
		name, config string
		want         map[string]float64
	}{
		{"counted-success", `run_for = "1s"`, map[string]float64{"start": 1, "running": 1, "complete": 1, "failed": 0, "oom_killed": 0}},
		{"counted-kills", `
			run_for    = "1s"
			exit_codes = [137]
			oom_killed = true`, map[string]float64{"start": 3, "running": 3, "complete": 0, "failed": 1, "oom_killed": 3}},
		{"counted-start-errors", `
			run_for      = "1s"
			recoverable  = true
			start_errors = ["busy", "busy", ""]`, map[string]float64{"start": 3, "running": 1, "complete": 1, "failed": 0, "oom_killed": 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := startHarness(t, parseJob(t, `job "`+test.name+`" {
					type = "batch"
					group "g" {
						restart {
							attempts = 2
							mode     = "fail"
						}
						task "t" {
							driver = "fake"
							config {
								`+test.config+`
							}
						}
					}
				}`), nil)
				h.wait()
				if got := taskCounters(test.name); !maps.Equal(got, test.want) {
					t.Errorf("counters %v, want %v", got, test.want)
				}
			})
		})
	}
}
