package allocrunner

import (
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core"
)

// fakeMetrics counts what happens to the task t in the group g, by counter.
type fakeMetrics struct {
	mu       sync.Mutex
	counters map[core.TaskCounter]int
}

func (f *fakeMetrics) AddToTaskCounter(c core.TaskCounter, n int, jobID, namespace, task, group string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if namespace == "default" && task == "t" && group == "g" && strings.HasPrefix(jobID, "counted-") {
		f.counters[c] += n
	}
}

func (*fakeMetrics) ObserveHookCall(string, string, time.Duration, bool) {}

func TestTasksAreCounted(t *testing.T) {
	for _, test := range []struct {
		name, config string
		want         map[core.TaskCounter]int
	}{
		{"counted-success", `run_for = "1s"`, map[core.TaskCounter]int{core.TaskStartAttempts: 1, core.TaskRuns: 1, core.TaskCompletions: 1, core.TaskFailures: 0, core.TaskOOMKills: 0}},
		{"counted-kills", `
			run_for    = "1s"
			exit_codes = [137]
			oom_killed = true`, map[core.TaskCounter]int{core.TaskStartAttempts: 3, core.TaskRuns: 3, core.TaskCompletions: 0, core.TaskFailures: 1, core.TaskOOMKills: 3}},
		{"counted-start-errors", `
			run_for      = "1s"
			recoverable  = true
			start_errors = ["busy", "busy", ""]`, map[core.TaskCounter]int{core.TaskStartAttempts: 3, core.TaskRuns: 1, core.TaskCompletions: 1, core.TaskFailures: 0, core.TaskOOMKills: 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counts := &fakeMetrics{counters: make(map[core.TaskCounter]int)}
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
				}`), func(c *testConfig) { c.Metrics = counts })
				h.wait()
				if got := counts.counters; !maps.Equal(got, test.want) {
					t.Errorf("counters %v, want %v", got, test.want)
				}
			})
		})
	}
}
