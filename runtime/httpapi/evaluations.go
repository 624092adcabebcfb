package httpapi

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func (a *API) listEvaluations(r *request) (any, error) {
	status, job := r.query.Get("status"), r.query.Get("job")
	if (status != "" || job != "") && r.query.Get("filter") != "" {
		return nil, bad("Filter expression cannot be used with other filter parameters")
	}
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := slices.DeleteFunc(s.Evaluations(ws, r.query.Get("prefix")), func(e *api.Evaluation) bool {
			return !r.sees(e.Namespace) || status != "" && e.Status != status || job != "" && e.JobID != job
		})
		evals, err := page(r, found, func(e *api.Evaluation) place { return r.created(e.CreateIndex, e.ID) }, asIs)
		return evals, s.TableIndex(ws, store.Evaluations), err
	})
}

func (a *API) readEvaluation(r *request) (any, error) {
	if err := wholeID("eval", r.id); err != nil {
		return nil, err
	}
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		e := s.Evaluation(ws, r.id)
		if e == nil {
			return nil, s.TableIndex(ws, store.Evaluations), notFound("eval not found")
		}
		if r.query.Get("related") == "true" {
			copied := *e
			for _, other := range s.EvaluationsByJob(ws, e.Namespace, e.JobID) {
				if other.PreviousEval == e.ID || e.PreviousEval == other.ID {
					copied.RelatedEvals = append(copied.RelatedEvals, &api.EvaluationStub{
						ID: other.ID, Priority: other.Priority, Type: other.Type, TriggeredBy: other.TriggeredBy, Namespace: other.Namespace,
						JobID: other.JobID, NodeID: other.NodeID, DeploymentID: other.DeploymentID, Status: other.Status,
						StatusDescription: other.StatusDescription, WaitUntil: other.WaitUntil, NextEval: other.NextEval,
						PreviousEval: other.PreviousEval, BlockedEval: other.BlockedEval, CreateIndex: other.CreateIndex,
						ModifyIndex: other.ModifyIndex, CreateTime: other.CreateTime, ModifyTime: other.ModifyTime,
					})
				}
			}
			return &copied, e.ModifyIndex, nil
		}
		return e, e.ModifyIndex, nil
	})
}

func (a *API) evaluationAllocations(r *request) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		stubs := []*api.AllocationListStub{}
		for _, alloc := range byCreation(s.AllocationsByEvaluation(ws, r.id)) {
			stubs = append(stubs, stubOf(alloc, true, false))
		}
		return stubs, s.TableIndex(ws, store.Allocations), nil
	})
}

func (a *API) listDeployments(r *request) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := slices.DeleteFunc(s.Deployments(ws, r.query.Get("prefix")), func(d *api.Deployment) bool {
			return !r.sees(d.Namespace)
		})
		deployments, err := page(r, found, func(d *api.Deployment) place { return r.created(d.CreateIndex, d.ID) }, asIs)
		return deployments, s.TableIndex(ws, store.Deployments), err
	})
}

func (a *API) readDeployment(r *request) (any, error) {
	if err := wholeID("deployment", r.id); err != nil {
		return nil, err
	}
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		d := s.Deployment(ws, r.id)
		if d == nil {
			return nil, s.TableIndex(ws, store.Deployments), notFound("deployment not found")
		}
		return d, d.ModifyIndex, nil
	})
}

func (a *API) deploymentAllocations(r *request) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		stubs := []*api.AllocationListStub{}
		for _, alloc := range byCreation(s.AllocationsByDeployment(ws, r.id)) {
			stubs = append(stubs, stubOf(alloc, true, false))
		}
		return stubs, s.TableIndex(ws, store.Allocations), nil
	})
}

// deploymentWritten is the answer to a change of a deployment.
func (r *request) deploymentWritten(o scheduler.Outcome, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return struct {
		EvalID                string
		EvalCreateIndex       uint64
		DeploymentModifyIndex uint64
		RevertedJobVersion    *uint64
		meta
	}{o.EvalID, o.EvalCreateIndex, o.DeploymentModifyIndex, o.RevertedJobVersion, r.meta(o.Index)}, nil
}

func (a *API) failDeployment(r *request) (any, error) {
	return r.deploymentWritten(a.config.Scheduler.FailDeployment(r.Context(), r.id))
}

func (a *API) pauseDeployment(r *request) (any, error) {
	var body struct{ Pause bool }
	if err := r.body(&body, maxBody, false); err != nil {
		return nil, err
	}
	return r.deploymentWritten(a.config.Scheduler.PauseDeployment(r.Context(), r.id, body.Pause))
}

func (a *API) promoteDeployment(r *request) (any, error) {
	var body struct {
		All    bool
		Groups []string
	}
	if err := r.body(&body, maxBody, false); err != nil {
		return nil, err
	}
	switch {
	case body.All && len(body.Groups) > 0:
		return nil, bad("all and groups cannot be used together")
	case !body.All && len(body.Groups) == 0:
		return nil, bad("Must specify at least one group to promote, or all")
	case body.All:
		body.Groups = nil
	}
	return r.deploymentWritten(a.config.Scheduler.PromoteDeployment(r.Context(), r.id, body.Groups))
}
