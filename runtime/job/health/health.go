package health

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Params are the health settings in the update block or the migrate block.
type Params struct {
	MinHealthyTime       time.Duration
	HealthyDeadline      time.Duration
	MustBeHealthyBy      time.Time // the allocation's deadline: HealthyDeadline after the start of the watch
	RequirePassingChecks bool      // the allocation is healthy only if its checks for services with provider nomad pass
}

// Snapshot is an allocation's state at one time.
type Snapshot struct {
	Now time.Time
	// StopRequested means the allocation is being stopped: ended tasks then do not make it unhealthy.
	StopRequested bool
	// AllocFailed means the allocation has failed, with or without a failed task.
	AllocFailed bool
	Tasks       []Task // in job order

	Checks              []Check
	CheckResultsMissing bool // the allocation has checks without results yet

	Hooks []Hook
}

// Hook is an attached hook that takes part in the health decision, whatever the Params are: the allocation becomes healthy only
// after the hook has reported its task, or the allocation, healthy.
type Hook struct {
	Name                               string
	Task                               string // the hook's task; empty for the allocation
	ReportedHealthy, ReportedUnhealthy bool   // both are false before the hook has reported
	Reason                             string // reason in the hook's report; may be empty
}

// Task is one task of the allocation.
type Task struct {
	Name          string
	LifecycleHook string // hook in the task's lifecycle block
	Sidecar       bool
	Pending       bool
	Dead          bool // the task has ended and does not start again
	Failed        bool
	LastStart     time.Time // time of the last start
}

// Check is one check of the allocation.
type Check struct {
	Task             string // the check's task; empty for a group check
	Service          string
	Name             string
	IsReadinessCheck bool // readiness checks do not count for the health
	Passing          bool
	NeverRun         bool      // the check has never run
	Output           string    // last run's output
	LastRun          time.Time // last run's start; zero if the check has never run
	LastStatusChange time.Time // time of the last status change
}

// State is the health state of an allocation.
type State int

// The health states. All states except Undecided are final.
const (
	Undecided State = iota
	Healthy
	Unhealthy
	Stopped // the allocation was stopped before it was healthy or unhealthy
)

// Verdict is what Evaluate returns: the health state and, if that is Undecided, the time for the next Evaluate call.
type Verdict struct {
	State State
	// RecheckAt is when to call Evaluate again if nothing changes before.
	RecheckAt time.Time
	// UnhealthyReasonByTask contains the reason for each task that caused the verdict; only for Unhealthy.
	UnhealthyReasonByTask map[string]string
}

// Evaluate returns an allocation's health at the time s.Now. The first applicable case decides.
func Evaluate(p Params, s Snapshot) Verdict {
	at, known := healthyAt(p, s)
	switch {
	case s.hasFailedTask():
		return Verdict{State: Unhealthy, UnhealthyReasonByTask: unhealthyReasonByTask(p, s)}
	case s.StopRequested:
		return Verdict{State: Stopped}
	case s.hasDeadTask():
		return Verdict{State: Unhealthy, UnhealthyReasonByTask: unhealthyReasonByTask(p, s)}
	case s.AllocFailed:
		return Verdict{State: Unhealthy}
	case s.hasUnhealthyHook():
		return Verdict{State: Unhealthy, UnhealthyReasonByTask: unhealthyReasonByTask(p, s)}
	case known && !s.Now.Before(at):
		return Verdict{State: Healthy}
	case !s.Now.Before(p.MustBeHealthyBy):
		return Verdict{State: Unhealthy, UnhealthyReasonByTask: unhealthyReasonByTask(p, s)}
	case known && at.Before(p.MustBeHealthyBy):
		return Verdict{RecheckAt: at}
	}
	return Verdict{RecheckAt: p.MustBeHealthyBy}
}

// healthyAt returns when the allocation becomes healthy if no task, check or hook changes. known is false if a change is
// necessary.
func healthyAt(p Params, s Snapshot) (at time.Time, known bool) {
	since, ok := s.lastTaskStart()
	if !ok || slices.ContainsFunc(s.Hooks, func(h Hook) bool { return !h.ReportedHealthy }) {
		return time.Time{}, false
	}
	if p.RequirePassingChecks {
		if s.CheckResultsMissing {
			return time.Time{}, false
		}
		start := since
		for _, c := range s.Checks {
			switch {
			case c.IsReadinessCheck:
			case !c.passesSince(start):
				return time.Time{}, false
			case c.LastStatusChange.After(since):
				since = c.LastStatusChange
			}
		}
	}
	return since.Add(p.MinHealthyTime), true
}

// passesSince reports whether the check passes and last ran after start: an earlier result does not describe a task started
// later.
func (c Check) passesSince(start time.Time) bool { return c.Passing && !c.LastRun.Before(start) }

// countsForHealth reports whether a task must run before the allocation is healthy. Poststop tasks, which run after all others,
// and successful poststart tasks need not run.
func (t Task) countsForHealth() bool {
	done := t.LifecycleHook == "poststart" && !t.Sidecar && t.Dead && !t.Failed
	return t.LifecycleHook != "poststop" && !done
}

// mayEndBeforeHealthy reports whether the allocation can become healthy after this task has ended.
func (t Task) mayEndBeforeHealthy() bool { return t.LifecycleHook == "prestart" && !t.Sidecar }

func (s Snapshot) hasFailedTask() bool {
	for _, t := range s.Tasks {
		if t.countsForHealth() && t.Failed {
			return true
		}
	}
	return false
}

func (s Snapshot) hasDeadTask() bool {
	for _, t := range s.Tasks {
		if t.countsForHealth() && t.Dead && !t.mayEndBeforeHealthy() {
			return true
		}
	}
	return false
}

// lastTaskStart returns the latest start among the tasks, if all tasks have started.
func (s Snapshot) lastTaskStart() (latest time.Time, allStarted bool) {
	for _, t := range s.Tasks {
		switch {
		case !t.countsForHealth():
		case t.Pending:
			return time.Time{}, false
		case t.LastStart.After(latest):
			latest = t.LastStart
		}
	}
	return latest, !latest.IsZero()
}

func (s Snapshot) hasUnhealthyHook() bool {
	return slices.ContainsFunc(s.Hooks, func(h Hook) bool { return h.ReportedUnhealthy })
}

// unhealthyHookReasons returns the unhealthy hooks' reasons as text. After the deadline, it includes the hooks that have not
// reported.
func (s Snapshot) unhealthyHookReasons(p Params) string {
	var reasons []string
	for _, h := range s.Hooks {
		hook := fmt.Sprintf("hook %q", h.Name)
		if h.Task != "" {
			hook += fmt.Sprintf(" of task %q", h.Task)
		}
		switch {
		case h.ReportedUnhealthy && h.Reason != "":
			reasons = append(reasons, fmt.Sprintf("Unhealthy because of %s: %s", hook, h.Reason))
		case h.ReportedUnhealthy:
			reasons = append(reasons, fmt.Sprintf("Unhealthy because of %s", hook))
		case !h.ReportedHealthy && !s.Now.Before(p.MustBeHealthyBy):
			reasons = append(reasons, fmt.Sprintf("H%s has not found it healthy by healthy_deadline of %v", hook[1:], p.HealthyDeadline))
		}
	}
	return strings.Join(reasons, "; ")
}

// unhealthyReasonByTask maps each task that makes the allocation unhealthy to the reason.
func unhealthyReasonByTask(p Params, s Snapshot) map[string]string {
	why := make(map[string]string)
	failed := s.hasFailedTask()
	for _, t := range s.Tasks {
		if !t.countsForHealth() || failed && !t.Failed {
			continue // a failed task may have stopped the other tasks
		}
		if text := t.unhealthyReason(p, s); text != "" {
			why[t.Name] = text
		}
	}
	return why
}

func (t Task) unhealthyReason(p Params, s Snapshot) string {
	main := t.LifecycleHook == "" || t.Sidecar
	switch {
	case t.Failed:
		return "Unhealthy because of failed task"
	case t.Pending:
		return fmt.Sprintf("Task not running by healthy_deadline of %v", p.HealthyDeadline)
	case t.Dead && main:
		return "Unhealthy because of dead task"
	case t.Dead:
		return ""
	case main && s.unhealthyHookReasons(p) != "":
		return s.unhealthyHookReasons(p)
	case s.Now.Before(p.MustBeHealthyBy):
		return "" // another task caused the verdict before the deadline
	case t.LastStart.Add(p.MinHealthyTime).After(s.Now):
		return fmt.Sprintf("Task not running for min_healthy_time of %v by healthy_deadline of %v", p.MinHealthyTime, p.HealthyDeadline)
	case !p.RequirePassingChecks:
		return ""
	case s.CheckResultsMissing:
		return "Service checks not registered"
	}
	return s.failedCheckReasons(p, t)
}

// failedCheckReasons names a running task's failed checks: its own and, unless it is an ephemeral prestart task, the group's.
func (s Snapshot) failedCheckReasons(p Params, t Task) string {
	latest, _ := s.lastTaskStart()
	var reasons []string
	for _, c := range s.Checks {
		if c.IsReadinessCheck || c.Task != t.Name && (c.Task != "" || t.mayEndBeforeHealthy()) {
			continue
		}
		if fault := c.unhealthyReason(p, s.Now, latest); fault != "" {
			reasons = append(reasons, fmt.Sprintf("check %q of service %q %s", c.Name, c.Service, fault))
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	return fmt.Sprintf("Service checks not healthy by healthy_deadline of %v: %s", p.HealthyDeadline, strings.Join(reasons, "; "))
}

func (c Check) unhealthyReason(p Params, now, start time.Time) string {
	switch {
	case c.NeverRun, c.Passing && c.LastRun.Before(start):
		return "has not run since the task started"
	case !c.Passing:
		return "is failing: " + firstLineForMessage(c.Output)
	case c.LastStatusChange.Add(p.MinHealthyTime).After(now):
		return fmt.Sprintf("has passed only for the last %v of min_healthy_time %v", now.Sub(c.LastStatusChange).Round(time.Second), p.MinHealthyTime)
	}
	return ""
}

// maxOutputLen is the maximum length of check output in an event.
const maxOutputLen = 200

// firstLineForMessage returns the first line of a check's output.
func firstLineForMessage(output string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(output), "\n")
	line = strings.TrimPrefix(strings.TrimSpace(line), "nomad: ")
	if runes := []rune(line); len(runes) > maxOutputLen {
		line = string(runes[:maxOutputLen]) + "…"
	}
	return line
}
