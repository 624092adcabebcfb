package httpapi

import (
	"errors"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/jobsummary"
)

// scalingHandler serves the routes that scale jobs and list scaling policies.
type scalingHandler struct {
	store     *store.Store
	scheduler *scheduler.Scheduler
}

func (h *scalingHandler) status(r *request) (any, error) {
	return replyWithJobData(r, h.store, func(s *store.Snapshot, ws store.WatchSet, j *api.Job) (any, uint64) {
		status := &api.JobScaleStatusResponse{
			JobID: r.pathID, Namespace: r.namespace, JobCreateIndex: pointer.Value(j.CreateIndex), JobModifyIndex: pointer.Value(j.JobModifyIndex), JobStopped: pointer.Value(j.Stop),
			TaskGroups: make(map[string]api.TaskGroupScaleStatus),
		}
		events := s.ScalingEvents(ws, r.namespace, r.pathID)
		for _, g := range j.TaskGroups {
			status.TaskGroups[pointer.Value(g.Name)] = api.TaskGroupScaleStatus{Desired: pointer.Value(g.Count), Events: emptyIfNil(events[pointer.Value(g.Name)])}
		}
		index := max(pointer.Value(j.ModifyIndex), s.LatestTableIndex(ws, store.ScalingEvents))
		for _, alloc := range jobsummary.AllocationsWithoutPurgedJob(s, ws, j) {
			index = max(index, alloc.ModifyIndex)
			g, known := status.TaskGroups[alloc.TaskGroup]
			if !known || model.AllocTerminal(alloc) {
				continue
			}
			g.Placed++
			if alloc.ClientStatus == api.AllocClientStatusRunning {
				g.Running++
			}
			if health := alloc.DeploymentStatus; health != nil && health.Healthy != nil {
				if *health.Healthy {
					g.Healthy++
				} else {
					g.Unhealthy++
				}
			}
			status.TaskGroups[alloc.TaskGroup] = g
		}
		return status, index
	})
}

func (h *scalingHandler) scale(r *request) (any, error) {
	var body struct {
		Count          *int64
		Target         map[string]string
		Message        string
		Error          bool
		Meta           map[string]any
		JobModifyIndex uint64
	}
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	if job := body.Target["Job"]; job != "" && job != r.pathID {
		return nil, badRequestError("job ID in payload did not match URL")
	}
	if body.Target["Group"] == "" {
		return nil, badRequestError("missing task group name for scaling action")
	}
	if err := checkRegistrationAccepted(h.store); err != nil {
		return nil, err
	}
	out, err := h.scheduler.ScaleGroup(r.Context(), r.jobKey(), scheduler.ScaleRequest{
		Group: body.Target["Group"], Count: body.Count, Message: body.Message, IsErrorEvent: body.Error, Meta: body.Meta,
		JobModifyIndex: body.JobModifyIndex,
	})
	var requestErr *scheduler.RequestError
	if errors.As(err, &requestErr) && requestErr.Kind == scheduler.RequestNotFound {
		return nil, notFoundError(requestErr.Text)
	}
	if err != nil {
		return nil, err
	}
	return r.newJobWriteReply(out), nil
}

// newScalingPolicy returns the scaling block of a group as a scaling policy.
func newScalingPolicy(g *api.TaskGroup) *api.ScalingPolicy {
	p := *g.Scaling
	if p.Type == "" {
		p.Type = "horizontal"
	}
	return &p
}

func scalingPolicies(s *store.Snapshot, ws store.WatchSet, namespace string) (all []*api.ScalingPolicy) {
	for _, j := range s.Jobs(ws, namespace, "") {
		for _, g := range j.TaskGroups {
			if g.Scaling != nil {
				all = append(all, newScalingPolicy(g))
			}
		}
	}
	return all
}

func (h *scalingHandler) listPolicies(r *request) (any, error) {
	job, kind, prefix := r.query.Get("job"), r.query.Get("type"), r.query.Get("prefix")
	bare := func(id string) string { return strings.ReplaceAll(strings.ToLower(id), "-", "") }
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		stubs := []*api.ScalingPolicyListStub{}
		for _, p := range scalingPolicies(s, ws, r.namespace) {
			if (job == "" || p.Target["Job"] == job) && (kind == "" || p.Type == kind) && strings.HasPrefix(bare(p.ID), bare(prefix)) {
				stubs = append(stubs, &api.ScalingPolicyListStub{
					ID: p.ID, Enabled: pointer.Value(p.Enabled), Type: p.Type, Target: p.Target, CreateIndex: p.CreateIndex, ModifyIndex: p.ModifyIndex,
				})
			}
		}
		return stubs, scalingPoliciesIndex(s, ws), nil
	})
}

// scalingPoliciesIndex is the index of the last change of a scaling policy. It is the highest index of the
// policies if the record of the indexes was damaged.
func scalingPoliciesIndex(s *store.Snapshot, ws store.WatchSet) uint64 {
	index := s.LatestTableIndex(ws, store.ScalingPolicies)
	if index == 0 {
		for _, p := range scalingPolicies(s, ws, store.AnyNamespace) {
			index = max(index, p.ModifyIndex)
		}
	}
	return index
}

func (h *scalingHandler) readPolicy(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		for _, p := range scalingPolicies(s, ws, store.AnyNamespace) {
			if p.ID == r.pathID {
				return p, p.ModifyIndex, nil
			}
		}
		return nil, scalingPoliciesIndex(s, ws), notFoundError("policy not found")
	})
}
