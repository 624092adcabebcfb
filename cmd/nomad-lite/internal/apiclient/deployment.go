package apiclient

import "github.com/hashicorp/nomad/api"

// PromoteDeploymentGroupsOrAll promotes the canaries of the named groups, or of all groups if groups is empty.
func PromoteDeploymentGroupsOrAll(a *api.Deployments, d *api.Deployment, groups []string, w *api.WriteOptions) (*api.DeploymentUpdateResponse, *api.WriteMeta, error) {
	if len(groups) > 0 {
		return a.PromoteGroups(d.ID, groups, w)
	}
	return a.PromoteAll(d.ID, w)
}
