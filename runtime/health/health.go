package health

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Params is what the update block, or the migrate block, asks for.
type Params struct {
	MinHealthyTime  time.Duration
	HealthyDeadline time.Duration
	Deadline        time.Time // HealthyDeadline after the watch has begun
	UseChecks       bool      // the checks of provider nomad have a say
}

// Snapshot is what is known of an allocation at one moment.
type Snapshot struct {
	Now time.Time
	// Stopping says that somebody wants the allocation to stop: whatever becomes
	// of its tasks then says nothing about it.
	Stopping bool
	// Failed says that the allocation has failed, with or without a task.
	Failed bool
	Tasks  []Task // in the order of the job

	Checks  []Check
	Missing bool // there are checks, of which nothing is known yet

	Hooks []Hook
}

// Hook is a hook that has a say, whatever the Params: the allocation is healthy
// only when it says so.
type Hook struct {
	Name               string
	Healthy, Unhealthy bool   // neither before it has spoken
	Reason             string // of what it has said; may be empty
}

// Task is one task of the allocation.
type Task struct {
	Name    string
	Hook    string // of the lifecycle block
	Sidecar bool
	Pending bool
	Dead    bool // and not to be started again
	Failed  bool
	Started time.Time // the last time
}

// Check is one check of the allocation.
type Check struct {
	Task      string // empty for a check of the group
	Service   string
	Name      string
	Readiness bool // it has no say
	Passing   bool
	Pending   bool      // it has never run
	Output    string    // of the last run
	Began     time.Time // the last run; zero if it has never run
	Since     time.Time // when it has come to its status
}

// State is what an allocation is.
type State int

// The states. All but Undecided are final.
const (
	Undecided State = iota
	Healthy
	Unhealthy
	Stopped // before it was either
)

// Verdict is what Judge has found.
type Verdict struct {
	State State
	// Next is when to look again, if nothing changes before.
	Next time.Time
	// Why says of each task that is to blame why it is; only for Unhealthy.
	Why map[string]string
}

// Judge says what an allocation is. The first line that holds decides.
func Judge(p Params, s Snapshot) Verdict {
	at, known := healthyAt(p, s)
	switch {
	case s.failed():
		return Verdict{State: Unhealthy, Why: reasons(p, s)}
	case s.Stopping:
		return Verdict{State: Stopped}
	case s.dead():
		return Verdict{State: Unhealthy, Why: reasons(p, s)}
	case s.Failed:
		return Verdict{State: Unhealthy}
	case s.hookUnhealthy():
		return Verdict{State: Unhealthy, Why: reasons(p, s)}
	case known && !s.Now.Before(at):
		return Verdict{State: Healthy}
	case !s.Now.Before(p.Deadline):
		return Verdict{State: Unhealthy, Why: reasons(p, s)}
	case known && at.Before(p.Deadline):
		return Verdict{Next: at}
	}
	return Verdict{Next: p.Deadline}
}

// healthyAt returns when the allocation will be healthy if nothing happens.
func healthyAt(p Params, s Snapshot) (at time.Time, known bool) {
	since, ok := s.started()
	if !ok || slices.ContainsFunc(s.Hooks, func(h Hook) bool { return !h.Healthy }) {
		return time.Time{}, false
	}
	if p.UseChecks {
		if s.Missing {
			return time.Time{}, false
		}
		start := since
		for _, c := range s.Checks {
			switch {
			case c.Readiness:
			case !c.passes(start):
				return time.Time{}, false
			case c.Since.After(since):
				since = c.Since
			}
		}
	}
	return since.Add(p.MinHealthyTime), true
}

// passes tells whether the check passes, and has looked at what runs now: an old
// result says nothing about a task that was started after it.
func (c Check) passes(start time.Time) bool { return c.Passing && !c.Began.Before(start) }

// counts tells whether a task has a say: poststop tasks come after everything,
// and a poststart task that has done its work has done its part.
func (t Task) counts() bool {
	done := t.Hook == "poststart" && !t.Sidecar && t.Dead && !t.Failed
	return t.Hook != "poststop" && !done
}

// mayEnd tells whether the task may end without harm to the allocation.
func (t Task) mayEnd() bool { return t.Hook == "prestart" && !t.Sidecar }

func (s Snapshot) failed() bool {
	for _, t := range s.Tasks {
		if t.counts() && t.Failed {
			return true
		}
	}
	return false
}

func (s Snapshot) dead() bool {
	for _, t := range s.Tasks {
		if t.counts() && t.Dead && !t.mayEnd() {
			return true
		}
	}
	return false
}

// started returns the latest start of a task, if all have started.
func (s Snapshot) started() (latest time.Time, all bool) {
	for _, t := range s.Tasks {
		switch {
		case !t.counts():
		case t.Pending:
			return time.Time{}, false
		case t.Started.After(latest):
			latest = t.Started
		}
	}
	return latest, !latest.IsZero()
}

func (s Snapshot) hookUnhealthy() bool {
	return slices.ContainsFunc(s.Hooks, func(h Hook) bool { return h.Unhealthy })
}

// hookFaults is what hooks have against the allocation, at its deadline also that
// they say nothing.
func (s Snapshot) hookFaults(p Params) string {
	var faults []string
	for _, h := range s.Hooks {
		switch {
		case h.Unhealthy && h.Reason != "":
			faults = append(faults, fmt.Sprintf("Unhealthy because of hook %q: %s", h.Name, h.Reason))
		case h.Unhealthy:
			faults = append(faults, fmt.Sprintf("Unhealthy because of hook %q", h.Name))
		case !h.Healthy && !s.Now.Before(p.Deadline):
			faults = append(faults, fmt.Sprintf("Hook %q has not found it healthy by healthy_deadline of %v", h.Name, p.HealthyDeadline))
		}
	}
	return strings.Join(faults, "; ")
}

// reasons says which tasks are the reason that the allocation is not healthy, and
// why.
func reasons(p Params, s Snapshot) map[string]string {
	why := make(map[string]string)
	failed := s.failed()
	for _, t := range s.Tasks {
		if !t.counts() || failed && !t.Failed {
			continue // what has failed may have taken the others with it
		}
		if text := t.fault(p, s); text != "" {
			why[t.Name] = text
		}
	}
	return why
}

func (t Task) fault(p Params, s Snapshot) string {
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
	case main && s.hookFaults(p) != "":
		return s.hookFaults(p)
	case s.Now.Before(p.Deadline):
		return "" // another task was to blame, before its time was over
	case t.Started.Add(p.MinHealthyTime).After(s.Now):
		return fmt.Sprintf("Task not running for min_healthy_time of %v by healthy_deadline of %v", p.MinHealthyTime, p.HealthyDeadline)
	case !p.UseChecks:
		return ""
	case s.Missing:
		return "Service checks not registered"
	}
	return s.checkFaults(p, t)
}

// checkFaults names the checks for which a task that runs is not healthy: its
// own, and for a task that can be what the group offers, those of the group.
func (s Snapshot) checkFaults(p Params, t Task) string {
	latest, _ := s.started()
	var faults []string
	for _, c := range s.Checks {
		if c.Readiness || c.Task != t.Name && (c.Task != "" || t.mayEnd()) {
			continue
		}
		if fault := c.fault(p, s.Now, latest); fault != "" {
			faults = append(faults, fmt.Sprintf("check %q of service %q %s", c.Name, c.Service, fault))
		}
	}
	if len(faults) == 0 {
		return ""
	}
	return fmt.Sprintf("Service checks not healthy by healthy_deadline of %v: %s", p.HealthyDeadline, strings.Join(faults, "; "))
}

func (c Check) fault(p Params, now, start time.Time) string {
	switch {
	case c.Pending, c.Passing && c.Began.Before(start):
		return "has not run since the task started"
	case !c.Passing:
		return "is failing: " + brief(c.Output)
	case c.Since.Add(p.MinHealthyTime).After(now):
		return fmt.Sprintf("has passed only for the last %v of min_healthy_time %v", now.Sub(c.Since).Round(time.Second), p.MinHealthyTime)
	}
	return ""
}

// maxOutput is how much of a check's output an event repeats.
const maxOutput = 200

// brief is the first line of what a check has said.
func brief(output string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(output), "\n")
	line = strings.TrimPrefix(strings.TrimSpace(line), "nomad: ")
	if runes := []rune(line); len(runes) > maxOutput {
		line = string(runes[:maxOutput]) + "…"
	}
	return line
}
