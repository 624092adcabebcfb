package model

import (
	"reflect"
	"time"

	"github.com/hashicorp/nomad/api"
)

// AllocReport is an allocation's status as its node reports it. ApplyTo keeps the allocation's value where the report has a zero
// value. An allocation runner's reports are complete.
type AllocReport struct {
	AllocID           string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	NetworkStatus     *api.AllocNetworkStatus
	Health            *DeploymentHealth // nil until decided, then it never changes
	Time              time.Time         // when the node found this status
	// TasksAndHooksEnded means all the allocation's tasks and hooks have ended and will not start again.
	TasksAndHooksEnded bool
}

// DeploymentHealth is an allocation's health in a deployment.
type DeploymentHealth struct {
	DeploymentID string // empty for an allocation without a deployment
	Healthy      bool
	DecidedAt    time.Time
}

// Terminal reports whether the client status is final. Tasks may still be running: killed tasks until they exit, and
// poststop tasks.
func (r AllocReport) Terminal() bool {
	return r.ClientStatus == api.AllocClientStatusComplete || r.ClientStatus == api.AllocClientStatusFailed
}

// ApplyTo returns the allocation old with the reported states, or nil if the report changes nothing. index is the
// transaction's index.
func (r AllocReport) ApplyTo(old *api.Allocation, now time.Time, index uint64) *api.Allocation {
	a := *old
	// A terminal status never changes, even if an older report arrives late.
	if r.ClientStatus != "" && !(old.ClientTerminalStatus() && r.ClientStatus != old.ClientStatus) {
		a.ClientStatus, a.ClientDescription = r.ClientStatus, r.ClientDescription
	}
	if r.TaskStates != nil {
		a.TaskStates = r.TaskStates
	}
	if r.NetworkStatus != nil {
		a.NetworkStatus = r.NetworkStatus
	}
	r.applyHealthTo(&a, now, index)
	if !r.TasksAndHooksEnded && reflect.DeepEqual(&a, old) {
		return nil // a restarted agent repeats the previous agent's last report
	}
	a.ModifyTime = now.UnixNano()
	return &a
}

// applyHealthTo sets the allocation's health in its deployment. An allocation that fails before its health is decided
// becomes unhealthy.
func (r AllocReport) applyHealthTo(a *api.Allocation, now time.Time, index uint64) {
	health := r.Health
	if health != nil && health.DeploymentID != a.DeploymentID {
		health = nil
	}
	if health == nil && a.DeploymentID != "" && a.ClientStatus == api.AllocClientStatusFailed {
		health = &DeploymentHealth{DecidedAt: now}
	}
	status := a.DeploymentStatus
	if health == nil || status != nil && status.Healthy != nil {
		return
	}
	next := api.AllocDeploymentStatus{}
	if status != nil {
		next = *status
	}
	at := health.DecidedAt
	if at.IsZero() || at.After(now) {
		at = now
	}
	next.Healthy, next.Timestamp, next.ModifyIndex = &health.Healthy, at, index
	a.DeploymentStatus = &next
}
