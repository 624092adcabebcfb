package allocrunner

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// Update is the complete status of an allocation, not a difference to the previous
// update.
type Update struct {
	AllocID           string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	NetworkStatus     *api.AllocNetworkStatus
	Health            *Health // nil until known
	Time              time.Time

	killed map[string]bool // tasks that were killed since their last start
}

// Terminal reports whether the client status is final. The runner may still be killing
// tasks or running poststop tasks. Only the end of Run means that nothing remains to be
// done.
func (u Update) Terminal() bool {
	return u.ClientStatus == api.AllocClientStatusComplete || u.ClientStatus == api.AllocClientStatusFailed
}

// Status returns the current status of the allocation.
func (r *Runner) Status() Update {
	status, _ := r.status()
	return status
}

// status returns Status and the tasks that must run again; see markReruns.
func (r *Runner) status() (status Update, reruns map[string]string) {
	states := make(map[string]*api.TaskState, len(r.tasks))
	killed := make(map[string]bool)
	for _, t := range r.tasks {
		state, wasKilled := t.Snapshot()
		states[t.Name()] = state
		if wasKilled {
			killed[t.Name()] = true
		}
	}
	reruns = r.markReruns(states, killed)
	status = r.rollUp(states)
	status.killed = killed
	return status, reruns
}

// rollUp aggregates the states of the tasks. A forced status has priority over the
// states of the tasks.
func (r *Runner) rollUp(states map[string]*api.TaskState) Update {
	statusOverride := r.forcedStatus()
	u := Update{AllocID: r.id, TaskStates: states, NetworkStatus: r.network, Time: time.Now()}
	u.ClientStatus, u.ClientDescription = model.ClientStatus(states)
	if statusOverride.status != "" {
		u.ClientStatus, u.ClientDescription = statusOverride.status, statusOverride.description
	}
	u.Health = r.reportedHealth(u.ClientStatus)
	if u.Terminal() {
		for _, t := range states {
			if t.FinishedAt.IsZero() {
				t.FinishedAt = u.Time
			}
		}
	}
	return u
}

// statusOverride is a client status that task states cannot change.
type statusOverride struct {
	status, description string
}

func (r *Runner) forcedStatus() statusOverride {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.statusOverride
}

// force sets the client status permanently. The first call counts, but exceeding
// max_run_duration overrides an earlier status.
func (r *Runner) force(f statusOverride) {
	r.mu.Lock()
	if r.statusOverride.status == "" || f.description == model.MaxRunDurationExceeded {
		r.statusOverride = f
	}
	r.mu.Unlock()
	r.changed()
}
