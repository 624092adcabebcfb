package noderunner

import (
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// Health is whether an allocation has come up well.
type Health struct {
	Healthy     *bool // nil while it is undecided; it does not change afterwards
	HealthyTime time.Time
	// DeploymentID is the deployment that it counts for; may be empty.
	DeploymentID string
}

// The defaults for an allocation whose group does not say.
const (
	defaultMinHealthyTime  = 10 * time.Second
	defaultHealthyDeadline = 5 * time.Minute
)

// expectation is when an allocation counts as healthy.
type expectation struct {
	minHealthyTime time.Duration
	deadline       time.Time
	tasks          map[string]role
}

// role is how the life of a task counts.
type role struct {
	passing bool // it is there to end: a prestart or poststart task that is no sidecar
	ignored bool
}

// expect returns what is expected of an allocation, or false if nobody asks.
func expect(a *api.Allocation, now time.Time) (expectation, bool) {
	group := a.GetTaskGroup()
	if group == nil || a.Job.Type == nil || *a.Job.Type != api.JobTypeService && *a.Job.Type != api.JobTypeSystem {
		return expectation{}, false
	}
	e := expectation{minHealthyTime: defaultMinHealthyTime, tasks: make(map[string]role)}
	deadline, check := defaultHealthyDeadline, ""
	switch {
	case a.DeploymentID != "":
		u := group.Update
		if u == nil || deref(u.MaxParallel, 0) == 0 {
			return expectation{}, false
		}
		e.minHealthyTime = deref(u.MinHealthyTime, e.minHealthyTime)
		deadline = deref(u.HealthyDeadline, deadline)
		check = deref(u.HealthCheck, "")
	case group.Migrate != nil:
		e.minHealthyTime = deref(group.Migrate.MinHealthyTime, e.minHealthyTime)
		deadline = deref(group.Migrate.HealthyDeadline, deadline)
	}
	if check == "manual" {
		return expectation{}, false
	}
	e.deadline = now.Add(deadline)
	for _, t := range group.Tasks {
		var r role
		if l := t.Lifecycle; l != nil {
			r.passing = !l.Sidecar
			r.ignored = l.Hook == api.TaskLifecycleHookPoststop
		}
		e.tasks[t.Name] = r
	}
	return e, true
}

func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// judge decides whether an allocation is healthy, nil if that is not known yet.
// Then again is when time alone will tell; it is zero if nothing can before the
// deadline.
func (e expectation) judge(u allocrunner.Update, now time.Time) (healthy *bool, again time.Time) {
	if u.ClientStatus == api.AllocClientStatusFailed {
		return new(false), time.Time{}
	}
	var latest time.Time
	running := len(u.TaskStates) > 0
	for name, r := range e.tasks {
		state := u.TaskStates[name]
		switch {
		case r.ignored:
		case state == nil || state.State == model.TaskPending:
			running = false
		case state.Failed, state.State == model.TaskDead && !r.passing:
			return new(false), time.Time{}
		case state.StartedAt.After(latest) && state.State == model.TaskRunning:
			latest = state.StartedAt
		}
	}
	if running {
		again = latest.Add(e.minHealthyTime)
		if !now.Before(again) {
			return new(true), time.Time{}
		}
	}
	if !now.Before(e.deadline) {
		return new(false), time.Time{}
	}
	if again.IsZero() || again.After(e.deadline) {
		again = e.deadline
	}
	return nil, again
}

// tracker follows the health of one allocation, and passes its updates on.
type tracker struct {
	report func(Status)

	mu     sync.Mutex // held while it reports: one call at a time
	asked  bool       // somebody wants to know
	want   expectation
	health Health
	last   allocrunner.Update
	timer  *time.Timer
	over   bool // the allocation is stopping, or its runner has returned
}

func newTracker(a *api.Allocation, report func(Status)) *tracker {
	t := &tracker{report: report}
	t.timer = time.AfterFunc(time.Hour, t.look)
	t.timer.Stop()
	t.begin(a)
	return t
}

// begin looks at a version of the allocation. The health of one deployment says
// nothing about another.
func (t *tracker) begin(a *api.Allocation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.DeploymentID != t.health.DeploymentID {
		t.health = Health{DeploymentID: a.DeploymentID}
		if s := a.DeploymentStatus; s != nil && s.Healthy != nil {
			t.health.Healthy, t.health.HealthyTime = s.Healthy, s.Timestamp
		}
	}
	t.want, t.asked = expect(a, time.Now())
	t.over = t.over || a.ServerTerminalStatus()
	if t.last.AllocID != "" && t.decideLocked() {
		t.report(Status{t.last, t.health})
	}
}

// observe passes an update on, with what is known of the health.
func (t *tracker) observe(u allocrunner.Update) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = u
	t.decideLocked()
	t.report(Status{u, t.health})
}

// look is what the timer does.
func (t *tracker) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.decideLocked() {
		t.report(Status{t.last, t.health})
	}
}

// decideLocked reports whether the health has become known.
func (t *tracker) decideLocked() bool {
	t.timer.Stop()
	if !t.asked || t.over || t.health.Healthy != nil {
		return false
	}
	now := time.Now()
	healthy, again := t.want.judge(t.last, now)
	if healthy != nil {
		t.health.Healthy, t.health.HealthyTime = healthy, now
		return true
	}
	t.timer.Reset(again.Sub(now))
	return false
}

// end returns when nothing more will be reported.
func (t *tracker) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.timer.Stop()
}
