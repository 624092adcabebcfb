package taskrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
)

// taskCounts counts what happens to a task, in the metrics of the process. Allocations of the same group share the
// counters.
type taskCounts struct{ job, namespace, task, group string }

func (c *taskCounts) add(n int, to *metrics.Count) { to.Add(n, c.job, c.namespace, c.task, c.group) }

// addStart counts an attempt to start a process. The other counters are there from then on: Prometheus sees no increase
// in a counter that begins with 1.
func (c *taskCounts) addStart() {
	c.add(1, metrics.TaskStarts)
	for _, other := range []*metrics.Count{metrics.TaskRuns, metrics.TaskOOMKills, metrics.TaskCompletions, metrics.TaskFailures} {
		c.add(0, other)
	}
}

func (c *taskCounts) addEvent(event *api.TaskEvent) {
	switch {
	case event.Type == api.TaskStarted:
		c.add(1, metrics.TaskRuns)
	case event.Type == api.TaskTerminated && event.Details["oom_killed"] == "true":
		c.add(1, metrics.TaskOOMKills)
	}
}

// addEnd counts the end of a task that is not restarted.
func (c *taskCounts) addEnd(failed bool) {
	if failed {
		c.add(1, metrics.TaskFailures)
	} else {
		c.add(1, metrics.TaskCompletions)
	}
}
