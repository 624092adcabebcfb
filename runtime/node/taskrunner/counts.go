package taskrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
)

// taskMetrics holds the labels of a task's counters in the metrics of the agent, and increments the counters.
// Allocations of the same group share the counters.
type taskMetrics struct{ job, namespace, task, group string }

func (c *taskMetrics) addToMetric(n int, to *metrics.Count) {
	to.Add(n, c.job, c.namespace, c.task, c.group)
}

// countStart counts an attempt to start a process. It also creates the other counters with the value 0, because
// Prometheus sees no increase in a counter whose first value is 1.
func (c *taskMetrics) countStart() {
	c.addToMetric(1, metrics.TaskStarts)
	for _, other := range []*metrics.Count{metrics.TaskRuns, metrics.TaskOOMKills, metrics.TaskCompletions, metrics.TaskFailures} {
		c.addToMetric(0, other)
	}
}

func (c *taskMetrics) countEvent(event *api.TaskEvent) {
	switch {
	case event.Type == api.TaskStarted:
		c.addToMetric(1, metrics.TaskRuns)
	case event.Type == api.TaskTerminated && event.Details["oom_killed"] == "true":
		c.addToMetric(1, metrics.TaskOOMKills)
	}
}

// countEnd counts the end of a task that is not restarted.
func (c *taskMetrics) countEnd(failed bool) {
	if failed {
		c.addToMetric(1, metrics.TaskFailures)
	} else {
		c.addToMetric(1, metrics.TaskCompletions)
	}
}
