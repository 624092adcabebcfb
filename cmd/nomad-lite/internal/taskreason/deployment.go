package taskreason

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobhealth"
	"github.com/nomad-lite/nomad-lite/runtime/job/reason"
)

// RemedyForFailedDeployment returns what the user can do after a failed deployment of the current version of a job: the remedy
// in the health of the job, if the agent reports it. If the job runs this version by now and passes its checks, works is true and
// the remedy is empty. The job can be nil.
func RemedyForFailedDeployment(ctx context.Context, c *api.Client, d *api.Deployment, job *api.Job) (remedy string, works bool) {
	remedy = reason.RemedyForFailedDeployment(d, job)
	if remedy == "" {
		return "", false
	}
	switch health := apiclient.ReadJobHealth(ctx, c, d.JobID, d.Namespace); {
	case health == nil:
	case health.Health == string(jobhealth.Running):
		return "", true
	case health.Remedy != "":
		remedy = health.Remedy
	}
	return remedy, false
}
