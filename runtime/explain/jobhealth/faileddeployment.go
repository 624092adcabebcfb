package jobhealth

import (
	"cmp"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

// FailedDeployment is a failed deployment for a job's current version, or for the previous one if the failure rolled the job
// back.
type FailedDeployment struct {
	ID      string
	Version uint64 // the job version
	// Description is the deployment's status description, which names a rollback's version.
	Description string
	// Cause says in one line which task made an allocation unhealthy, and why; empty if unknown.
	Cause         string
	AllocID, Task string // what the cause is about

	reason reason.Reason
}

// WantedStderr returns the task with the standard error that may explain the cause, like [Health.WantedStderr].
func (d *FailedDeployment) WantedStderr() (allocID, task string, since time.Time, ok bool) {
	if d == nil {
		return "", "", time.Time{}, false
	}
	return d.AllocID, d.Task, d.reason.LastProcessOutputStart, d.reason.CanOutputExplain
}

// WithStderrTail returns the failed deployment with a line from the tail in its cause, like [Health.WithStderrTail].
func (d FailedDeployment) WithStderrTail(tail string) *FailedDeployment {
	d.setReason(d.reason.WithStderrTail(tail))
	return &d
}

func (d *FailedDeployment) setReason(r reason.Reason) {
	d.reason, d.Cause = r, taskPrefix(d.Task)+r.String()
}

// failedDeployment returns the failed deployment for the health, or nil. If the job works with its current version although that
// version's deployment failed, the health reports none.
func (s Snapshot) failedDeployment(works bool) *FailedDeployment {
	d := s.FailedDeployment
	if d == nil {
		return nil
	}
	version := pointer.Value(s.Job.Version)
	// A rollback is stored with the failure, in one transaction.
	isRolledBack := version == d.JobVersion+1 && pointer.Value(s.Job.JobModifyIndex) == d.ModifyIndex
	if !isRolledBack && (works || version != d.JobVersion) {
		return nil
	}
	failed := &FailedDeployment{ID: d.ID, Version: d.JobVersion, Description: d.StatusDescription}
	var first *restart.DeploymentFailure
	for _, a := range s.Allocations {
		if f := s.DeploymentFailure(a); f != nil && f.DeploymentID == d.ID && (first == nil || f.Time.Before(first.Time)) {
			first, failed.AllocID, failed.Task = f, a.ID, f.Task
		}
	}
	if first != nil {
		failed.setReason(reasonOfFailure(first))
	}
	return failed
}

func reasonOfFailure(f *restart.DeploymentFailure) reason.Reason {
	if f.End == nil {
		return reason.Reason{Cause: f.Reason}
	}
	r := reason.OfEnd(f.End)
	r.NextStep = ""
	return r
}

// hasSameText reports whether two failed deployments have the same text. Both may be nil.
func (d *FailedDeployment) hasSameText(other *FailedDeployment) bool {
	a, b := cmp.Or(d, new(FailedDeployment)), cmp.Or(other, new(FailedDeployment))
	return a.ID == b.ID && a.Cause == b.Cause
}

// HasSameText reports whether two healths look the same to a reader.
func (h Health) HasSameText(other Health) bool {
	return h.Word == other.Word && h.Sentence() == other.Sentence() && h.AllocID == other.AllocID && h.Task == other.Task &&
		h.FailedDeployment.hasSameText(other.FailedDeployment)
}
