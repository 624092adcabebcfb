package allocrunner

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// StatusUpdate is the complete status of an allocation, not the difference to the previous StatusUpdate.
type StatusUpdate struct {
	AllocID           string
	ClientStatus      string
	ClientDescription string
	TaskStates        map[string]*api.TaskState
	NetworkStatus     *api.AllocNetworkStatus
	Health            *DeploymentHealth // health of the allocation; nil until known
	Time              time.Time
}

// Terminal reports whether the client status is final. The runner may still be killing tasks or running
// poststop tasks; its work is complete only when Run has returned.
func (u StatusUpdate) Terminal() bool {
	return u.ClientStatus == api.AllocClientStatusComplete || u.ClientStatus == api.AllocClientStatusFailed
}

// DeploymentHealth is the health of an allocation in its deployment. The caller copies Healthy and DecidedAt to the
// DeploymentStatus of the allocation as long as DeploymentID matches. The runner treats canaries like
// other allocations.
type DeploymentHealth struct {
	DeploymentID string // id of the deployment; empty for an allocation without one
	Healthy      bool
	DecidedAt    time.Time
}
