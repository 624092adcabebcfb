package scheduler

import (
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// ScaleRequest is the request to set a group's count, or only to add a scaling event.
type ScaleRequest struct {
	Group        string
	Count        *int64 // nil if only a scaling event is added
	Message      string
	IsErrorEvent bool
	Meta         map[string]any
	// JobModifyIndex makes ScaleGroup reject the request if the stored job has another index; zero disables this check.
	JobModifyIndex uint64
}

// ScaleGroup changes a group's count and adds a scaling event.
func (s *Scheduler) ScaleGroup(ctx context.Context, key JobKey, r ScaleRequest) (out RequestOutcome, err error) {
	env := s.newPreparedEnv()
	if g := findGroupOrNil(s.store.Snapshot().Job(nil, key.Namespace, key.ID), r.Group); g != nil && r.Count != nil && *r.Count > int64(*g.Count) {
		env.expectPlacements(g, int(*r.Count)-*g.Count)
	}
	out.Index, err = s.updateAndReconcileWithEnv(ctx, env, func(c *schedulerTxn) error {
		out = RequestOutcome{}
		job := c.tx.Job(nil, key.Namespace, key.ID)
		if job == nil {
			return requestErrorf(RequestNotFound, "job %q not found", key.ID)
		}
		g := model.FindGroup(job, r.Group)
		if err := c.checkScaleRequest(job, g, r); err != nil {
			return err
		}
		event := api.ScalingEvent{
			Count: r.Count, PreviousCount: int64(*g.Count), Error: r.IsErrorEvent, Message: r.Message, Meta: r.Meta,
			Time: uint64(c.now.UnixNano()), CreateIndex: c.tx.Index(),
		}
		out.JobModifyIndex = *job.ModifyIndex
		if r.Count != nil {
			// The caller could not validate the count, because it depends on the stored job.
			scaled := withGroupCount(job, r.Group, int(*r.Count))
			if err := validateJob(scaled, c.scheduler.limits.jobs, c.tx.Reader); err != nil {
				return err
			}
			c.evaluateUnlessParentJob(&out, jobVersions{c}.putNewVersion(scaled, job, c.tx.JobSubmission(nil, key.Namespace, key.ID, *job.Version)), triggerScaling, 0)
			if out.EvalID != "" {
				event.EvalID = &out.EvalID
			}
		}
		c.tx.AddScalingEvent(key.Namespace, key.ID, r.Group, event)
		return nil
	})
	return out, err
}

func (t *schedulerTxn) checkScaleRequest(job *api.Job, g *api.TaskGroup, r ScaleRequest) error {
	switch {
	case g == nil:
		return requestErrorf(RequestInvalid, "task group %q specified for scaling does not exist in job", r.Group)
	case r.JobModifyIndex != 0 && r.JobModifyIndex != *job.JobModifyIndex:
		return requestErrorf(RequestRefused, "job exists with conflicting job modify index: %d", *job.JobModifyIndex)
	case r.IsErrorEvent && r.Count != nil:
		return requestErrorf(RequestInvalid, "scaling action should not contain count if error is true")
	case r.Count == nil:
		return nil
	case *r.Count < 0:
		return requestErrorf(RequestInvalid, "scaling action count can't be negative")
	case *job.Type == api.JobTypeSystem && *r.Count > 1:
		return requestErrorf(RequestInvalid, `jobs of type "system" can only be scaled between 0 and 1`)
	}
	if d := t.tx.LatestDeployment(nil, *job.Namespace, *job.ID); d != nil && model.DeploymentActive(d) && d.JobCreateIndex == *job.CreateIndex {
		return requestErrorf(RequestInvalid, "job scaling blocked due to active deployment")
	}
	if p := g.Scaling; p != nil {
		if p.Min != nil && *r.Count < *p.Min {
			return requestErrorf(RequestInvalid, "group count was less than scaling policy minimum: %d < %d", *r.Count, *p.Min)
		}
		if p.Max != nil && *r.Count > *p.Max {
			return requestErrorf(RequestInvalid, "group count was greater than scaling policy maximum: %d > %d", *r.Count, *p.Max)
		}
	}
	return nil
}

// withGroupCount returns a job copy with another count for a group. The copy shares all other parts with the job.
func withGroupCount(job *api.Job, group string, count int) *api.Job {
	c := *job
	c.TaskGroups = slices.Clone(job.TaskGroups)
	for i, g := range c.TaskGroups {
		if *g.Name == group {
			scaled := *g
			scaled.Count = &count
			c.TaskGroups[i] = &scaled
		}
	}
	return &c
}
