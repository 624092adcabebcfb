package model

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// Values of api.Deployment.StatusDescription. Nomad clients show them, and some match their text.
const (
	DeploymentRunning                = "Deployment is running"
	DeploymentNeedsPromotion         = "Deployment is running but requires manual promotion"
	DeploymentAwaitsAutoPromotion    = "Deployment is running pending automatic promotion"
	DeploymentPaused                 = "Deployment is paused"
	DeploymentSuccessful             = "Deployment completed successfully"
	DeploymentCancelledJobStopped    = "Cancelled because job is stopped"
	DeploymentCancelledNewerJob      = "Cancelled due to newer version of job"
	DeploymentFailedAllocations      = "Failed due to unhealthy allocations"
	DeploymentFailedProgressDeadline = "Failed due to progress deadline"
	DeploymentMarkedAsFailed         = "Deployment marked as failed"
	DeploymentRollback               = "%s - rolling back to job version %d"
	DeploymentRollbackSameSpec       = "%s - not rolling back to stable job version %d as current job has same specification"
	DeploymentNoStableVersion        = "%s - no stable job version to auto revert to"
)

// Values of api.Allocation.DesiredDescription.
const (
	AllocNotNeeded   = "alloc not needed due to job update"
	AllocUpdating    = "alloc is being updated due to job update"
	AllocMigrating   = "alloc is being migrated"
	AllocRescheduled = "alloc was rescheduled because it failed"
)

// DeploymentActive reports whether a deployment has not ended.
func DeploymentActive(d *api.Deployment) bool {
	switch d.Status {
	case api.DeploymentStatusRunning, api.DeploymentStatusPaused, api.DeploymentStatusPending,
		api.DeploymentStatusBlocked, api.DeploymentStatusUnblocking:
		return true
	}
	return false
}

// AutoPromotes reports whether a group's canaries are promoted automatically. job may be nil.
func AutoPromotes(job *api.Job, group string) bool {
	if job == nil {
		return false
	}
	g := FindGroup(job, group)
	return g != nil && g.Update != nil && pointer.Value(g.Update.AutoPromote)
}

// DeploymentEvalPriority returns the priority for evaluations a deployment creates. It is the priority of the evaluation that
// created the deployment, or, if that was removed, the job's. evals are the job's evaluations; job has the deployment's version,
// or is nil.
func DeploymentEvalPriority(d *api.Deployment, job *api.Job, evals []*api.Evaluation) int {
	var firstEval *api.Evaluation
	for _, e := range evals {
		if e.DeploymentID == d.ID && (firstEval == nil || e.CreateIndex < firstEval.CreateIndex) {
			firstEval = e
		}
	}
	switch {
	case firstEval != nil:
		return firstEval.Priority
	case job != nil:
		return pointer.Value(job.Priority)
	}
	return 0
}
