package taskrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core"
)

func (r *taskRecords) addToMetric(n int, c core.TaskCounter) {
	if r.metrics != nil {
		r.metrics.AddToTaskCounter(c, n, r.alloc.JobID, r.alloc.Namespace, r.taskName, r.alloc.TaskGroup)
	}
}

// countStartAttempt counts an attempt to start a process. It also creates the other counters with the value 0, because Prometheus
// sees no increase in a counter with 1 as its first value.
func (r *taskRecords) countStartAttempt() {
	r.addToMetric(1, core.TaskStartAttempts)
	for _, other := range []core.TaskCounter{core.TaskRuns, core.TaskOOMKills, core.TaskCompletions, core.TaskFailures} {
		r.addToMetric(0, other)
	}
}

func (r *taskRecords) countStartOrOOMKill(event *api.TaskEvent) {
	switch {
	case event.Type == api.TaskStarted:
		r.addToMetric(1, core.TaskRuns)
	case event.Type == api.TaskTerminated && event.Details["oom_killed"] == "true":
		r.addToMetric(1, core.TaskOOMKills)
	}
}

// countEnd counts a task that has ended and is not restarted.
func (r *taskRecords) countEnd(failed bool) {
	if failed {
		r.addToMetric(1, core.TaskFailures)
	} else {
		r.addToMetric(1, core.TaskCompletions)
	}
}
