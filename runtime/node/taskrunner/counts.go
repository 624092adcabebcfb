package taskrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
)

// taskMetrics holds the labels of a task's counters in the metrics of the agent, and increments the counters.
// Allocations of the same group share the counters.
type taskMetrics struct{ job, namespace, task, group string }

func (t *taskMetrics) addToMetric(n int, to *metrics.Count) {
	to.Add(n, t.job, t.namespace, t.task, t.group)
}

// countStart counts an attempt to start a process. It also creates the other counters with the value 0, because
// Prometheus sees no increase in a counter whose first value is 1.
func (t *taskMetrics) countStart() {
	t.addToMetric(1, metrics.TaskStarts)
	for _, other := range []*metrics.Count{metrics.TaskRuns, metrics.TaskOOMKills, metrics.TaskCompletions, metrics.TaskFailures} {
		t.addToMetric(0, other)
	}
}

func (t *taskMetrics) countEvent(event *api.TaskEvent) {
	switch {
	case event.Type == api.TaskStarted:
		t.addToMetric(1, metrics.TaskRuns)
	case event.Type == api.TaskTerminated && event.Details["oom_killed"] == "true":
		t.addToMetric(1, metrics.TaskOOMKills)
	}
}

// countEnd counts the end of a task that is not restarted.
func (t *taskMetrics) countEnd(failed bool) {
	if failed {
		t.addToMetric(1, metrics.TaskFailures)
	} else {
		t.addToMetric(1, metrics.TaskCompletions)
	}
}
