package scheduler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// GCConfig has the ages at which unneeded records are deleted. Zero values mean the
// defaults.
type GCConfig struct {
	// Interval is the time between two sweeps; default: 5 minutes.
	Interval time.Duration
	// Jobs is the minimum age of dead jobs; default: 4 hours.
	Jobs time.Duration
	// Evals is the minimum age of evaluations and allocations; default: 1 hour.
	Evals time.Duration
	// BatchEvals replaces Evals for batch jobs that are not dead; default: 24
	// hours.
	BatchEvals time.Duration
	// Deployments is the minimum age of deployments; default: 1 hour.
	Deployments time.Duration
	// MaxAllocs and MaxEvals limit the number of unneeded records that are kept,
	// whatever their age; defaults: 5000 and 10000.
	MaxAllocs, MaxEvals int
}

func (g GCConfig) orDefault() GCConfig {
	return GCConfig{
		Interval:    cmp.Or(g.Interval, 5*time.Minute),
		Jobs:        cmp.Or(g.Jobs, 4*time.Hour),
		Evals:       cmp.Or(g.Evals, time.Hour),
		BatchEvals:  cmp.Or(g.BatchEvals, 24*time.Hour),
		Deployments: cmp.Or(g.Deployments, time.Hour),
		MaxAllocs:   cmp.Or(g.MaxAllocs, 5000),
		MaxEvals:    cmp.Or(g.MaxEvals, 10000),
	}
}

// runGarbageCollection deletes old records every Interval, until ctx ends.
func (s *Scheduler) runGarbageCollection(ctx context.Context) {
	ticker := time.NewTicker(s.gc.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.updateWithRetry(ctx, "collection of records", nil, func(c *txn) { garbageCollection{c, s.gc}.collectAll() })
		case <-ctx.Done():
			return
		}
	}
}

// CollectGarbage deletes all unneeded records at once, whatever their age.
func (s *Scheduler) CollectGarbage(ctx context.Context) (index uint64, err error) {
	return s.update(ctx, func(c *txn) error {
		garbageCollection{c, GCConfig{}}.collectAll()
		return nil
	})
}

// garbageCollection deletes unneeded records.
type garbageCollection struct {
	*txn
	GCConfig
}

// collectAll deletes records that are older than the configuration allows. It never deletes an
// allocation that has not ended.
func (c garbageCollection) collectAll() {
	c.setOperation(opJobsCollected)
	var deadJobs []*api.Job
	for _, job := range c.tx.Jobs(nil, store.AnyNamespace, "") {
		if c.isJobDead(job, c.Jobs) {
			deadJobs = append(deadJobs, job)
		}
	}
	for _, job := range deadJobs {
		c.removeJob(job)
	}
	c.collectAllocs()
	c.collectEvals()
	c.collectDeployments()
}

func (c garbageCollection) isOlderThan(nanoseconds int64, age time.Duration) bool {
	return c.now.Sub(time.Unix(0, nanoseconds)) >= age
}

// isJobDead reports whether a job and all its records have been dead for at least
// age.
func (c garbageCollection) isJobDead(job *api.Job, age time.Duration) bool {
	if pointer.Value(job.Status) != model.JobDead || !pointer.Value(job.Stop) && (model.HasChildren(job) || !isBatchLike(job)) || !c.isOlderThan(pointer.Value(job.SubmitTime), age) {
		return false
	}
	key := KeyOf(job)
	for _, a := range c.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		if !model.AllocTerminal(a) || !c.tx.AllocationEnded(a.ID) || !c.isOlderThan(a.ModifyTime, age) {
			return false
		}
	}
	for _, e := range c.tx.EvaluationsByJob(nil, key.Namespace, key.ID) {
		if model.EvalPending(e) || !c.isOlderThan(e.ModifyTime, age) {
			return false
		}
	}
	return true
}

func (c garbageCollection) removeJob(job *api.Job) {
	key := KeyOf(job)
	for _, a := range c.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		c.deleteAlloc(a)
	}
	for _, e := range c.tx.EvaluationsByJob(nil, key.Namespace, key.ID) {
		c.tx.DeleteEvaluation(e.ID)
	}
	for _, d := range c.tx.DeploymentsByJob(nil, key.Namespace, key.ID) {
		c.tx.DeleteDeployment(d.ID)
	}
	jobVersions{c.txn}.deleteJob(key)
}

// isSurplus reports whether a record of an allocation can be deleted because no plan needs it.
func (c garbageCollection) isSurplus(a *api.Allocation) bool {
	if !model.AllocTerminal(a) || !c.tx.AllocationEnded(a.ID) {
		return false
	}
	job := c.tx.Job(nil, a.Namespace, a.JobID)
	switch {
	case job == nil || pointer.Value(job.Stop):
		return true
	case *a.Job.CreateIndex != *job.CreateIndex:
		return true
	}
	if d := c.tx.Deployment(nil, a.DeploymentID); a.DeploymentID != "" && d != nil && model.DeploymentActive(d) {
		return false
	}
	if isBatchLike(job) && *a.Job.Version != *job.Version {
		return true
	}
	if a.NextAllocation != "" || a.DesiredStatus != api.AllocDesiredStatusRun && !stoppedWithoutReplacement(a) {
		return true
	}
	// Plans count completed allocations, and failed ones that are not replaced, if they have the current version of the
	// job.
	return terminalAllocActions[*job.Type][a.ClientStatus] == replaceAlloc
}

func (c garbageCollection) collectAllocs() {
	var candidates []*api.Allocation
	for _, a := range c.tx.Allocations(nil, "") {
		if c.isSurplus(a) {
			candidates = append(candidates, a)
		}
	}
	slices.SortFunc(candidates, func(a, b *api.Allocation) int { return cmp.Compare(a.ModifyTime, b.ModifyTime) })
	for i, a := range candidates {
		if c.isOlderThan(a.ModifyTime, c.minAge(a.Namespace, a.JobID)) || c.MaxAllocs > 0 && len(candidates)-i > c.MaxAllocs {
			c.deleteAlloc(a)
		}
	}
}

// minAge returns the minimum age for deleting evaluations and allocations of a job.
func (c garbageCollection) minAge(namespace, id string) time.Duration {
	if job := c.tx.Job(nil, namespace, id); job != nil && isBatchLike(job) && pointer.Value(job.Status) != model.JobDead {
		return c.BatchEvals
	}
	return c.Evals
}

// collectEvals deletes old evaluations that have no allocations left.
func (c garbageCollection) collectEvals() {
	placed := make(map[string]bool)
	for _, a := range c.tx.Allocations(nil, "") {
		placed[a.EvalID] = true
		placed[a.FollowupEvalID] = true
	}
	var candidates []*api.Evaluation
	for _, e := range c.tx.Evaluations(nil, "") {
		if !model.EvalPending(e) && !placed[e.ID] {
			candidates = append(candidates, e)
		}
	}
	slices.SortFunc(candidates, func(a, b *api.Evaluation) int { return cmp.Compare(a.ModifyTime, b.ModifyTime) })
	for i, e := range candidates {
		if c.isOlderThan(e.ModifyTime, c.minAge(e.Namespace, e.JobID)) || c.MaxEvals > 0 && len(candidates)-i > c.MaxEvals {
			c.tx.DeleteEvaluation(e.ID)
		}
	}
}

// collectDeployments deletes deployments that are neither active nor the newest of
// their job.
func (c garbageCollection) collectDeployments() {
	var unneededDeployments []*api.Deployment
	for _, d := range c.tx.Deployments(nil, "") {
		key := JobKey{d.Namespace, d.JobID}
		newest := c.tx.Job(nil, key.Namespace, key.ID) != nil && c.tx.LatestDeployment(nil, key.Namespace, key.ID).ID == d.ID
		if !model.DeploymentActive(d) && !newest && c.isOlderThan(d.ModifyTime, c.Deployments) {
			unneededDeployments = append(unneededDeployments, d)
		}
	}
	for _, d := range unneededDeployments {
		c.tx.DeleteDeployment(d.ID)
	}
}
