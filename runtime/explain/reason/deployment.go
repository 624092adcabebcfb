package reason

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// RemedyForFailedDeployment returns what the user can do after a failed deployment, or "" if the deployment has not failed or the
// job now has another version, as after a rollback. d and job can be nil.
func RemedyForFailedDeployment(d *api.Deployment, job *api.Job) string {
	if d == nil || job == nil || d.Status != api.DeploymentStatusFailed || d.JobVersion != pointer.Value(job.Version) || pointer.Value(job.Stop) {
		return ""
	}
	text := fmt.Sprintf("Version %d is not deployed again, not even by job run with an unchanged file. Correct the file and run it: nomad-lite job run FILE", d.JobVersion)
	if d.JobVersion > 0 {
		text += fmt.Sprintf(", or go back to an earlier version: nomad-lite job revert %s VERSION", pointer.Value(job.ID))
	}
	return text
}
