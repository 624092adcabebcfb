package httpapi

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// deploymentView adds the fields that a server sends and the client's type lacks. Their values come from the
// deployment's job version, as long as that version is stored.
type deploymentView struct {
	*api.Deployment
	EvalPriority int
	TaskGroups   map[string]deploymentStateView
}

type deploymentStateView struct {
	*api.DeploymentState
	AutoPromote bool
}

// newDeploymentView adds the server's fields to a deployment. It adds the objects that these fields depend on to ws, which may
// be nil.
func newDeploymentView(s *store.Snapshot, ws store.WatchSet, d *api.Deployment) deploymentView {
	job := s.JobVersion(ws, d.Namespace, d.JobID, d.JobVersion)
	whole := deploymentView{
		Deployment:   d,
		EvalPriority: model.DeploymentEvalPriority(d, job, s.EvaluationsByJob(ws, d.Namespace, d.JobID)),
		TaskGroups:   make(map[string]deploymentStateView, len(d.TaskGroups)),
	}
	for name, state := range d.TaskGroups {
		whole.TaskGroups[name] = deploymentStateView{state, model.AutoPromotes(job, name)}
	}
	return whole
}

// pageOfDeployments returns the page of deployments that a request asks for.
func (r *request) pageOfDeployments(s *store.Snapshot, ws store.WatchSet, found []*api.Deployment) ([]deploymentView, error) {
	return listPage(r, found, r.deploymentSortKey, func(d *api.Deployment) deploymentView { return newDeploymentView(s, ws, d) })
}

// deploymentHandler serves the routes of deployments.
type deploymentHandler struct {
	store     *store.Store
	scheduler *scheduler.Scheduler
}

func (r *request) deploymentSortKey(d *api.Deployment) sortKey {
	return r.newCreationSortKey(d.CreateIndex, d.ID)
}

func (h *deploymentHandler) list(r *request) (any, error) {
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := slices.DeleteFunc(s.Deployments(ws, r.query.Get("prefix")), func(d *api.Deployment) bool {
			return !r.includesNamespace(d.Namespace)
		})
		deployments, err := r.pageOfDeployments(s, ws, found)
		return deployments, s.LatestTableIndex(ws, store.Deployments), err
	})
}

func (h *deploymentHandler) read(r *request) (any, error) {
	if err := checkIDIsUUID("deployment", r.pathID); err != nil {
		return nil, err
	}
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		d := s.Deployment(ws, r.pathID)
		if d == nil {
			return nil, s.LatestTableIndex(ws, store.Deployments), notFoundError("deployment not found")
		}
		return newDeploymentView(s, nil, d), d.ModifyIndex, nil
	})
}

func (h *deploymentHandler) allocations(r *request) (any, error) {
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		stubs, err := r.pageOfAllocStubs(s, r.allocListReader(s).AllocationsByDeployment(ws, r.pathID), true, false)
		return stubs, s.LatestTableIndex(ws, store.Allocations), err
	})
}

// newDeploymentWriteReply returns the reply to a change of a deployment, or the error of the change.
func (r *request) newDeploymentWriteReply(o scheduler.RequestOutcome, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return struct {
		EvalID                string
		EvalCreateIndex       uint64
		DeploymentModifyIndex uint64
		RevertedJobVersion    *uint64
		replyMeta
	}{o.EvalID, o.EvalCreateIndex, o.DeploymentModifyIndex, o.RevertedToJobVersion, r.replyMetaOfWrite(o.Index)}, nil
}

// deploymentIDBody is the part that the bodies of all requests to change a deployment have.
type deploymentIDBody struct{ DeploymentID string }

// checkIDMatchesPath checks that the deployment ID in the body is the deployment ID in the path.
func (b deploymentIDBody) checkIDMatchesPath(r *request) error {
	switch b.DeploymentID {
	case "":
		return badRequestError("DeploymentID must be specified")
	case r.pathID:
		return nil
	}
	return badRequestError("Deployment ID does not match")
}

func (h *deploymentHandler) fail(r *request) (any, error) {
	var body deploymentIDBody
	if err := r.decodeBody(&body, maxBodyBytes, true); err != nil {
		return nil, err
	}
	if body.DeploymentID != "" && body.DeploymentID != r.pathID {
		return nil, body.checkIDMatchesPath(r)
	}
	if err := r.requireDeployment(h.store, r.pathID); err != nil {
		return nil, err
	}
	return r.newDeploymentWriteReply(h.scheduler.FailDeployment(r.Context(), r.pathID))
}

// unblock does nothing: it is for deployments in several regions, and there is one region.
func (h *deploymentHandler) unblock(r *request) (any, error) {
	var body deploymentIDBody
	if err := r.decodeBodyAndCheckID(&body, false); err != nil {
		return nil, err
	}
	if err := r.requireDeployment(h.store, r.pathID); err != nil {
		return nil, err
	}
	return r.newDeploymentWriteReply(h.scheduler.CheckDeploymentForUnblock(r.Context(), r.pathID))
}

func (h *deploymentHandler) pause(r *request) (any, error) {
	var body struct {
		deploymentIDBody
		Pause bool
	}
	if err := r.decodeBodyAndCheckID(&body, false); err != nil {
		return nil, err
	}
	if err := r.requireDeployment(h.store, r.pathID); err != nil {
		return nil, err
	}
	return r.newDeploymentWriteReply(h.scheduler.PauseOrResumeDeployment(r.Context(), r.pathID, body.Pause))
}

func (h *deploymentHandler) promote(r *request) (any, error) {
	var body struct {
		deploymentIDBody
		All    bool
		Groups []string
	}
	if err := r.decodeBodyAndCheckID(&body, false); err != nil {
		return nil, err
	}
	switch {
	case body.All && len(body.Groups) > 0:
		return nil, badRequestError("all and groups cannot be used together")
	case !body.All && len(body.Groups) == 0:
		return nil, badRequestError("Must specify at least one group to promote, or all")
	case body.All:
		body.Groups = nil
	}
	if err := r.requireDeployment(h.store, r.pathID); err != nil {
		return nil, err
	}
	return r.newDeploymentWriteReply(h.scheduler.PromoteDeployment(r.Context(), r.pathID, body.Groups))
}

func (h *deploymentHandler) setAllocationHealth(r *request) (any, error) {
	var body struct {
		deploymentIDBody
		HealthyAllocationIDs, UnhealthyAllocationIDs []string
	}
	if err := r.decodeBodyAndCheckID(&body, false); err != nil {
		return nil, err
	}
	if err := r.requireDeployment(h.store, r.pathID); err != nil {
		return nil, err
	}
	return r.newDeploymentWriteReply(h.scheduler.SetAllocHealth(r.Context(), r.pathID, body.HealthyAllocationIDs, body.UnhealthyAllocationIDs))
}
