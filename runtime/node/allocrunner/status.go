package allocrunner

import (
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// StatusUpdate is the complete status of an allocation, not the difference to the previous StatusUpdate.
type StatusUpdate struct {
	AllocID           string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	NetworkStatus     *api.AllocNetworkStatus
	Health            *Health // health of the allocation; nil until known
	Time              time.Time
}

// Terminal reports whether the client status is final. The runner may still be killing tasks or running
// poststop tasks; its work is complete only when Run has returned.
func (u StatusUpdate) Terminal() bool {
	return u.ClientStatus == api.AllocClientStatusComplete || u.ClientStatus == api.AllocClientStatusFailed
}

// clientStatusTracker derives the status of the allocation from the states of its tasks. Its methods may be called
// concurrently.
type clientStatusTracker struct {
	allocID               string
	networkStatus         func() *api.AllocNetworkStatus
	takeTasksSnapshot     func() tasksSnapshot              // returns the current states of the tasks
	healthForClientStatus func(clientStatus string) *Health // returns the health of the allocation when it has the given client status
	reconcileSignal       *reconcileSignal

	mu       sync.Mutex
	override statusOverride
}

// statusOverride is a client status that has precedence over the states of the tasks.
type statusOverride struct {
	status, description string
}

// currentStatus returns the current status of the allocation.
func (c *clientStatusTracker) currentStatus() StatusUpdate {
	return c.aggregateTaskStates(c.takeTasksSnapshot().taskStates)
}

// aggregateTaskStates derives the status of the allocation from the states of the tasks. An override has precedence.
// The returned StatusUpdate owns the states.
func (c *clientStatusTracker) aggregateTaskStates(states map[string]*api.TaskState) StatusUpdate {
	u := StatusUpdate{AllocID: c.allocID, TaskStates: states, NetworkStatus: c.networkStatus(), Time: time.Now()}
	u.ClientStatus, u.ClientDescription = model.ClientStatus(states)
	if override := c.currentOverride(); override.status != "" {
		u.ClientStatus, u.ClientDescription = override.status, override.description
	}
	u.Health = c.healthForClientStatus(u.ClientStatus)
	if u.Terminal() {
		for _, t := range states {
			if t.FinishedAt.IsZero() {
				t.FinishedAt = u.Time
			}
		}
	}
	return u
}

func (c *clientStatusTracker) currentOverride() statusOverride {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.override
}

// setOverride sets the client status permanently. After the first call further calls have no effect, except
// that a status for an exceeded max_run_duration replaces the first one.
func (c *clientStatusTracker) setOverride(f statusOverride) {
	c.mu.Lock()
	if c.override.status == "" || f.description == model.MaxRunDurationExceeded {
		c.override = f
	}
	c.mu.Unlock()
	c.reconcileSignal.requestReconcile()
}
