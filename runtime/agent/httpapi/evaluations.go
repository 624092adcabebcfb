package httpapi

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// evaluationHandler serves the routes of evaluations.
type evaluationHandler struct {
	store     *store.Store
	scheduler *scheduler.Scheduler
}

// listedEvaluations returns the evaluations that match the parameters of a list request.
func (r *request) listedEvaluations(s *store.Snapshot, ws store.WatchSet) ([]*api.Evaluation, error) {
	status, job := r.query.Get("status"), r.query.Get("job")
	if (status != "" || job != "") && r.query.Get("filter") != "" {
		return nil, badRequestError("Filter expression cannot be used with other filter parameters")
	}
	return slices.DeleteFunc(s.Evaluations(ws, r.query.Get("prefix")), func(e *api.Evaluation) bool {
		return !r.includesNamespace(e.Namespace) || status != "" && e.Status != status || job != "" && e.JobID != job
	}), nil
}

func (r *request) evalSortKey(e *api.Evaluation) sortKey {
	return r.newCreationSortKey(e.CreateIndex, e.ID)
}

func (h *evaluationHandler) list(r *request) (any, error) {
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		index := s.LatestTableIndex(ws, store.Evaluations)
		found, err := r.listedEvaluations(s, ws)
		if err != nil {
			return nil, index, err
		}
		evals, err := listPage(r, found, r.evalSortKey, objectAsStub)
		return evals, index, err
	})
}

type evaluationCount struct {
	Count int
	replyMeta
}

// count counts the evaluations on all pages of a list.
func (h *evaluationHandler) count(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		index := s.LatestTableIndex(ws, store.Evaluations)
		found, err := r.listedEvaluations(s, ws)
		if err != nil {
			return nil, index, err
		}
		matches, err := r.newObjectFilter()
		if err != nil {
			return nil, index, err
		}
		answer := evaluationCount{replyMeta: replyMeta{Index: index, KnownLeader: true}}
		for _, e := range found {
			ok, err := matches(e)
			if err != nil {
				return nil, index, err
			}
			if ok {
				answer.Count++
			}
		}
		return answer, index, nil
	})
}

// delete deletes the evaluations whose IDs are in the body, or those in the request's namespace that match the filter in the body.
func (h *evaluationHandler) delete(r *request) (any, error) {
	var body api.EvalDeleteRequest
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	isInvalid := (len(body.EvalIDs) > 0) == (body.Filter != "")
	matches := func(e *api.Evaluation) (bool, error) { return !isInvalid && slices.Contains(body.EvalIDs, e.ID), nil }
	if body.Filter != "" && !isInvalid {
		filter, err := r.newObjectFilterOfText(body.Filter)
		if err != nil {
			return nil, err
		}
		matches = func(e *api.Evaluation) (bool, error) {
			if !r.includesNamespace(e.Namespace) {
				return false, nil
			}
			return filter(e)
		}
	}
	count, index, err := h.scheduler.DeleteEvals(r.Context(), matches)
	if err != nil {
		return nil, err
	}
	if isInvalid { // as in Nomad, the error that there is no pause comes first
		return nil, badRequestError("evals must be deleted by either ID or filter")
	}
	if count < len(body.EvalIDs) {
		return nil, notFoundError("eval not found")
	}
	return evaluationCount{count, r.replyMetaOfWrite(index)}, nil
}

func (h *evaluationHandler) read(r *request) (any, error) {
	if err := checkIDIsUUID("eval", r.pathID); err != nil {
		return nil, err
	}
	related, err := r.boolParam("related")
	if err != nil {
		return nil, err
	}
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		e := s.Evaluation(ws, r.pathID)
		if e == nil {
			return nil, s.LatestTableIndex(ws, store.Evaluations), notFoundError("eval not found")
		}
		if related {
			copied := *e
			copied.RelatedEvals = relatedEvaluations(e, s.EvaluationsByJob(ws, e.Namespace, e.JobID))
			e = &copied
		}
		return e, e.ModifyIndex, nil
	})
}

// relatedEvaluations returns the evaluations that are linked to e, directly or through other evaluations,
// before or after it.
func relatedEvaluations(e *api.Evaluation, all []*api.Evaluation) (stubs []*api.EvaluationStub) {
	near := func(a, b *api.Evaluation) bool {
		return a.PreviousEval == b.ID || a.NextEval == b.ID || a.BlockedEval == b.ID
	}
	family, known := []*api.Evaluation{e}, map[string]bool{e.ID: true}
	for i := 0; i < len(family); i++ {
		for _, other := range all {
			if !known[other.ID] && (near(family[i], other) || near(other, family[i])) {
				family, known[other.ID] = append(family, other), true
				stubs = append(stubs, &api.EvaluationStub{
					ID: other.ID, Priority: other.Priority, Type: other.Type, TriggeredBy: other.TriggeredBy, Namespace: other.Namespace,
					JobID: other.JobID, NodeID: other.NodeID, DeploymentID: other.DeploymentID, Status: other.Status,
					StatusDescription: other.StatusDescription, WaitUntil: other.WaitUntil, NextEval: other.NextEval,
					PreviousEval: other.PreviousEval, BlockedEval: other.BlockedEval, CreateIndex: other.CreateIndex,
					ModifyIndex: other.ModifyIndex, CreateTime: other.CreateTime, ModifyTime: other.ModifyTime,
				})
			}
		}
	}
	return stubs
}

func (h *evaluationHandler) allocations(r *request) (any, error) {
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		stubs, err := r.pageOfAllocStubs(s, r.allocListReader(s).AllocationsByEvaluation(ws, r.pathID), true, false)
		return stubs, s.LatestTableIndex(ws, store.Allocations), err
	})
}
