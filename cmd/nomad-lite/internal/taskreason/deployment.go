package taskreason

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/runtime/explain/jobhealth"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

// DeploymentFailure describes a failed deployment.
type DeploymentFailure struct {
	Reason string // in one line; empty if the agent does not report it
	Remedy string // what the user can do; can be empty
	Works  bool   // the job runs the version by now, and passes its checks
}

// DescribeFailedDeployment returns why a deployment has failed, and what the user can do, from the health of the job, if the agent
// reports it. It returns the zero value for a deployment that has not failed. The job can be nil.
func DescribeFailedDeployment(ctx context.Context, c *api.Client, d *api.Deployment, job *api.Job) (f DeploymentFailure) {
	if d == nil || d.Status != api.DeploymentStatusFailed {
		return f
	}
	f.Remedy = reason.RemedyForFailedDeployment(d, job)
	health := apiclient.ReadJobHealth(ctx, c, d.JobID, d.Namespace)
	if health == nil {
		return f
	}
	if failed := health.FailedDeployment; failed != nil && failed.ID == d.ID {
		f.Reason = failed.Reason
	}
	switch {
	case f.Remedy == "": // the job has another version by now
	case health.Health == string(jobhealth.Running):
		f.Remedy, f.Works = "", true
	case health.Remedy != "":
		f.Remedy = health.Remedy
	}
	return f
}
