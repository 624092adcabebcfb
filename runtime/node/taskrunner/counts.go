package taskrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
)

// addToMetric adds n to a counter of the task in the metrics of the agent. Allocations of the same group share the
// counters.
func (r *taskRecords) addToMetric(n int, count *metrics.Count) {
	count.Add(n, r.alloc.JobID, r.alloc.Namespace, r.taskName, r.alloc.TaskGroup)
}

// countStartAttempt counts an attempt to start a process. It also creates the other counters with the value 0, because
// Prometheus sees no increase in a counter whose first value is 1.
func (r *taskRecords) countStartAttempt() {
	r.addToMetric(1, metrics.TaskStarts)
	for _, other := range []*metrics.Count{metrics.TaskRuns, metrics.TaskOOMKills, metrics.TaskCompletions, metrics.TaskFailures} {
		r.addToMetric(0, other)
	}
}

func (r *taskRecords) countStartOrOOMKill(event *api.TaskEvent) {
	switch {
	case event.Type == api.TaskStarted:
		r.addToMetric(1, metrics.TaskRuns)
	case event.Type == api.TaskTerminated && event.Details["oom_killed"] == "true":
		r.addToMetric(1, metrics.TaskOOMKills)
	}
}

// countEnd counts the end of a task that is not restarted.
func (r *taskRecords) countEnd(failed bool) {
	if failed {
		r.addToMetric(1, metrics.TaskFailures)
	} else {
		r.addToMetric(1, metrics.TaskCompletions)
	}
}
