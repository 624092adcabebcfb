package agent

import (
	"time"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/core"
)

// runnerMetrics implements core.Metrics with the process's counters.
type runnerMetrics struct{}

var _ core.Metrics = runnerMetrics{}

var countByTaskCounter = map[core.TaskCounter]*metrics.Count{
	core.TaskStartAttempts: metrics.TaskStarts,
	core.TaskRuns:          metrics.TaskRuns,
	core.TaskOOMKills:      metrics.TaskOOMKills,
	core.TaskCompletions:   metrics.TaskCompletions,
	core.TaskFailures:      metrics.TaskFailures,
}

// AddToTaskCounter implements core.Metrics.
func (runnerMetrics) AddToTaskCounter(c core.TaskCounter, n int, jobID, namespace, task, group string) {
	countByTaskCounter[c].Add(n, jobID, namespace, task, group)
}

// ObserveHookCall implements core.Metrics.
func (runnerMetrics) ObserveHookCall(hook, hookPoint string, duration time.Duration, failed bool) {
	metrics.HookCalls.Observe(duration, hook, hookPoint)
	if failed {
		metrics.HookFailures.Add(1, hook, hookPoint)
	}
}
