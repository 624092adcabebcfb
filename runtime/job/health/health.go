package health

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Params are the health settings of the update block or the migrate block.
type Params struct {
	MinHealthyTime  time.Duration
	HealthyDeadline time.Duration
	Deadline        time.Time // time by which the allocation must be healthy: HealthyDeadline after the start of the watch
	UseChecks       bool      // the checks of services with provider nomad count for the health
}

// Snapshot is the state of an allocation at one time.
type Snapshot struct {
	Now time.Time
	// Stopping means that a stop of the allocation was requested: the ends of its tasks
	// do not make it unhealthy.
	Stopping bool
	// AllocFailed means that the allocation has failed, with or without a failed task.
	AllocFailed bool
	Tasks       []Task // in the order of the job

	Checks        []Check
	ChecksMissing bool // the allocation has checks whose results are not available yet

	Hooks []Hook
}

// Hook is a hook that decides about the health, whatever the Params: the allocation is
// healthy only if the hook has reported so.
type Hook struct {
	Name               string
	Healthy, Unhealthy bool   // both are false before the hook has reported
	Reason             string // reason in the hook's report; may be empty
}

// Task is one task of the allocation.
type Task struct {
	Name    string
	Hook    string // hook in the task's lifecycle block
	Sidecar bool
	Pending bool
	Dead    bool // the task has ended and does not start again
	Failed  bool
	Started time.Time // time of the last start
}

// Check is one check of the allocation.
type Check struct {
	Task       string // task of the check; empty for a check of the group
	Service    string
	Name       string
	Readiness  bool // readiness checks do not count for the health
	Passing    bool
	Pending    bool      // the check has never run
	Output     string    // output of the last run
	LastRun    time.Time // start of the last run; zero if the check has never run
	LastChange time.Time // time of the last status change
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

// Verdict is the result of Evaluate: the health state and, if it is Undecided, the time of the next
// evaluation.
type Verdict struct {
	State State
	// RecheckAt is when to call Evaluate again if nothing changes before that time.
	RecheckAt time.Time
	// Why contains the reason for each task that caused the verdict; only for
	// Unhealthy.
	Why map[string]string
}

// Evaluate returns the health of an allocation. The first case that applies decides.
func Evaluate(p Params, s Snapshot) Verdict {
	at, known := healthyAt(p, s)
	switch {
	case s.hasFailedTask():
		return Verdict{State: Unhealthy, Why: unhealthyTaskReasons(p, s)}
	case s.Stopping:
		return Verdict{State: Stopped}
	case s.hasDeadTask():
		return Verdict{State: Unhealthy, Why: unhealthyTaskReasons(p, s)}
	case s.AllocFailed:
		return Verdict{State: Unhealthy}
	case s.hasUnhealthyHook():
		return Verdict{State: Unhealthy, Why: unhealthyTaskReasons(p, s)}
	case known && !s.Now.Before(at):
		return Verdict{State: Healthy}
	case !s.Now.Before(p.Deadline):
		return Verdict{State: Unhealthy, Why: unhealthyTaskReasons(p, s)}
	case known && at.Before(p.Deadline):
		return Verdict{RecheckAt: at}
	}
	return Verdict{RecheckAt: p.Deadline}
}

// healthyAt returns when the allocation will be healthy if nothing changes.
func healthyAt(p Params, s Snapshot) (at time.Time, known bool) {
	since, ok := s.lastTaskStart()
	if !ok || slices.ContainsFunc(s.Hooks, func(h Hook) bool { return !h.Healthy }) {
		return time.Time{}, false
	}
	if p.UseChecks {
		if s.ChecksMissing {
			return time.Time{}, false
		}
		start := since
		for _, c := range s.Checks {
			switch {
			case c.Readiness:
			case !c.passesSince(start):
				return time.Time{}, false
			case c.LastChange.After(since):
				since = c.LastChange
			}
		}
	}
	return since.Add(p.MinHealthyTime), true
}

// passesSince reports whether the check passes and last ran after start: an earlier result
// does not describe a task that was started later.
func (c Check) passesSince(start time.Time) bool { return c.Passing && !c.LastRun.Before(start) }

// countsForHealth reports whether a task counts for the health: poststop tasks run after all
// others, and a poststart task that has succeeded is complete.
func (t Task) countsForHealth() bool {
	done := t.Hook == "poststart" && !t.Sidecar && t.Dead && !t.Failed
	return t.Hook != "poststop" && !done
}

// mayEndBeforeHealthy reports whether the task may end before the allocation is healthy.
func (t Task) mayEndBeforeHealthy() bool { return t.Hook == "prestart" && !t.Sidecar }

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

// lastTaskStart returns the latest start of a task, if all tasks have started.
func (s Snapshot) lastTaskStart() (latest time.Time, all bool) {
	for _, t := range s.Tasks {
		switch {
		case !t.countsForHealth():
		case t.Pending:
			return time.Time{}, false
		case t.Started.After(latest):
			latest = t.Started
		}
	}
	return latest, !latest.IsZero()
}

func (s Snapshot) hasUnhealthyHook() bool {
	return slices.ContainsFunc(s.Hooks, func(h Hook) bool { return h.Unhealthy })
}

// unhealthyHookReasons returns the reasons of unhealthy hooks, and from the deadline on also the
// hooks that have not reported.
func (s Snapshot) unhealthyHookReasons(p Params) string {
	var reasons []string
	for _, h := range s.Hooks {
		switch {
		case h.Unhealthy && h.Reason != "":
			reasons = append(reasons, fmt.Sprintf("Unhealthy because of hook %q: %s", h.Name, h.Reason))
		case h.Unhealthy:
			reasons = append(reasons, fmt.Sprintf("Unhealthy because of hook %q", h.Name))
		case !h.Healthy && !s.Now.Before(p.Deadline):
			reasons = append(reasons, fmt.Sprintf("Hook %q has not found it healthy by healthy_deadline of %v", h.Name, p.HealthyDeadline))
		}
	}
	return strings.Join(reasons, "; ")
}

// unhealthyTaskReasons returns the tasks that are the cause of an unhealthy allocation, with the
// reason for each.
func unhealthyTaskReasons(p Params, s Snapshot) map[string]string {
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
	main := t.Hook == "" || t.Sidecar
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
	case s.Now.Before(p.Deadline):
		return "" // another task caused the verdict before the deadline
	case t.Started.Add(p.MinHealthyTime).After(s.Now):
		return fmt.Sprintf("Task not running for min_healthy_time of %v by healthy_deadline of %v", p.MinHealthyTime, p.HealthyDeadline)
	case !p.UseChecks:
		return ""
	case s.ChecksMissing:
		return "Service checks not registered"
	}
	return s.failedCheckReasons(p, t)
}

// failedCheckReasons names the failed checks of a running task: its own checks and, unless it
// is an ephemeral prestart task, the checks of the group.
func (s Snapshot) failedCheckReasons(p Params, t Task) string {
	latest, _ := s.lastTaskStart()
	var reasons []string
	for _, c := range s.Checks {
		if c.Readiness || c.Task != t.Name && (c.Task != "" || t.mayEndBeforeHealthy()) {
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
	case c.Pending, c.Passing && c.LastRun.Before(start):
		return "has not run since the task started"
	case !c.Passing:
		return "is failing: " + firstLine(c.Output)
	case c.LastChange.Add(p.MinHealthyTime).After(now):
		return fmt.Sprintf("has passed only for the last %v of min_healthy_time %v", now.Sub(c.LastChange).Round(time.Second), p.MinHealthyTime)
	}
	return ""
}

// maxOutputLen is the maximum length of check output in an event.
const maxOutputLen = 200

// firstLine returns the first line of a check's output.
func firstLine(output string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(output), "\n")
	line = strings.TrimPrefix(strings.TrimSpace(line), "nomad: ")
	if runes := []rune(line); len(runes) > maxOutputLen {
		line = string(runes[:maxOutputLen]) + "…"
	}
	return line
}
