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

// GCConfig configures the garbage collection: how often it runs, and how old an unneeded record must be to be
// deleted. Zero values mean the defaults.
type GCConfig struct {
	// SweepInterval is the time between two garbage collections; default: 5 minutes.
	SweepInterval time.Duration
	// MinDeadJobAge is the minimum age for deleting dead jobs; default: 4 hours.
	MinDeadJobAge time.Duration
	// MinEvalAndAllocAge is the minimum age for ended evaluations and allocations; default: 1 hour.
	MinEvalAndAllocAge time.Duration
	// MinBatchEvalAndAllocAge replaces MinEvalAndAllocAge for batch and sysbatch jobs until they are dead; default: 24 hours.
	MinBatchEvalAndAllocAge time.Duration
	// MinDeploymentAge is the minimum age for ended deployments; default: 1 hour.
	MinDeploymentAge time.Duration
	// MaxUnneededAllocs and MaxUnneededEvals limit the unneeded records. The oldest records above the limit are deleted
	// whatever their age; defaults: 5000 and 10000.
	MaxUnneededAllocs, MaxUnneededEvals int
}

func (g GCConfig) withDefaults() GCConfig {
	return GCConfig{
		SweepInterval:           cmp.Or(g.SweepInterval, 5*time.Minute),
		MinDeadJobAge:           cmp.Or(g.MinDeadJobAge, 4*time.Hour),
		MinEvalAndAllocAge:      cmp.Or(g.MinEvalAndAllocAge, time.Hour),
		MinBatchEvalAndAllocAge: cmp.Or(g.MinBatchEvalAndAllocAge, 24*time.Hour),
		MinDeploymentAge:        cmp.Or(g.MinDeploymentAge, time.Hour),
		MaxUnneededAllocs:       cmp.Or(g.MaxUnneededAllocs, 5000),
		MaxUnneededEvals:        cmp.Or(g.MaxUnneededEvals, 10000),
	}
}

// runGarbageCollection deletes old records every SweepInterval, until ctx ends.
func (s *Scheduler) runGarbageCollection(ctx context.Context) {
	ticker := time.NewTicker(s.limits.gc.SweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.updateWithRetry(ctx, "collection of records", nil, func(c *schedulerTxn) { garbageCollection{c, s.limits.gc}.deleteUnneededRecords() })
		case <-ctx.Done():
			return
		}
	}
}

// DeleteUnneededRecordsOfAnyAge deletes all unneeded records at once, whatever their age.
func (s *Scheduler) DeleteUnneededRecordsOfAnyAge(ctx context.Context) (index uint64, err error) {
	return s.updateAndReconcile(ctx, func(c *schedulerTxn) error {
		garbageCollection{c, GCConfig{}}.deleteUnneededRecords()
		return nil
	})
}

// garbageCollection is a schedulerTxn for deleting unneeded records.
// It is large because it has the methods of the transaction, too.
type garbageCollection struct {
	*schedulerTxn
	GCConfig
}

// deleteUnneededRecords deletes the unneeded jobs, allocations, evaluations and deployments if old enough. It never deletes an
// allocation that has not ended.
func (c garbageCollection) deleteUnneededRecords() {
	c.setEventOperation(opJobsCollected)
	var deadJobs []*api.Job
	for _, job := range c.tx.Jobs(nil, store.AnyNamespace, "") {
		if c.isJobCollectible(job, c.MinDeadJobAge) {
			deadJobs = append(deadJobs, job)
		}
	}
	for _, job := range deadJobs {
		c.deleteJobAndRecords(job)
	}
	c.deleteOldUnneededAllocs()
	c.deleteOldUnneededEvals()
	c.deleteOldUnneededDeployments()
}

func (c garbageCollection) isOlderThan(unixNanos int64, age time.Duration) bool {
	return c.now.Sub(time.Unix(0, unixNanos)) >= age
}

// isJobCollectible reports whether a job can be deleted: the job is dead, and the job, its evaluations and its
// ended allocations were last modified at least minAge ago. A job must also have been stopped by a user, unless it
// is a batch or sysbatch job without children.
func (c garbageCollection) isJobCollectible(job *api.Job, minAge time.Duration) bool {
	if pointer.Value(job.Status) != model.JobDead || !pointer.Value(job.Stop) && (model.CanHaveChildren(job) || !isBatchOrSysbatch(job)) || !c.isOlderThan(pointer.Value(job.SubmitTime), minAge) {
		return false
	}
	key := JobKeyOf(job)
	for _, a := range c.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		if !model.AllocTerminal(a) || !c.tx.AllocationEnded(a.ID) || !c.isOlderThan(a.ModifyTime, minAge) {
			return false
		}
	}
	for _, e := range c.tx.EvaluationsByJob(nil, key.Namespace, key.ID) {
		if model.IsEvalPendingOrBlocked(e) || !c.isOlderThan(e.ModifyTime, minAge) {
			return false
		}
	}
	return true
}

func (c garbageCollection) deleteJobAndRecords(job *api.Job) {
	key := JobKeyOf(job)
	for _, a := range c.tx.AllocationsByJob(nil, key.Namespace, key.ID) {
		c.deleteAlloc(a)
	}
	for _, e := range c.tx.EvaluationsByJob(nil, key.Namespace, key.ID) {
		c.tx.DeleteEvaluation(e.ID)
	}
	for _, d := range c.tx.DeploymentsByJob(nil, key.Namespace, key.ID) {
		c.tx.DeleteDeployment(d.ID)
	}
	jobVersions{c.schedulerTxn}.deleteJob(key)
}

// isUnneededAlloc reports whether an allocation has ended and no later plan needs its record.
func (c garbageCollection) isUnneededAlloc(a *api.Allocation) bool {
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
	if isBatchOrSysbatch(job) && *a.Job.Version != *job.Version {
		return true
	}
	if a.NextAllocation != "" || a.DesiredStatus != api.AllocDesiredStatusRun && !isStoppedWithoutReplacement(a) {
		return true
	}
	// The other allocations are needed: plans count completed allocations and unreplaced failed ones.
	return terminalAllocActions[*job.Type][a.ClientStatus] == replaceAlloc
}

func (c garbageCollection) deleteOldUnneededAllocs() {
	var candidates []*api.Allocation
	for _, a := range c.tx.Allocations(nil, "") {
		if c.isUnneededAlloc(a) {
			candidates = append(candidates, a)
		}
	}
	slices.SortFunc(candidates, func(a, b *api.Allocation) int { return cmp.Compare(a.ModifyTime, b.ModifyTime) })
	for i, a := range candidates {
		if c.isOlderThan(a.ModifyTime, c.minEvalAndAllocAge(a.Namespace, a.JobID)) || c.MaxUnneededAllocs > 0 && len(candidates)-i > c.MaxUnneededAllocs {
			c.deleteAlloc(a)
		}
	}
}

// minEvalAndAllocAge returns the age at which a job's unneeded evaluations and allocations can be deleted.
func (c garbageCollection) minEvalAndAllocAge(namespace, jobID string) time.Duration {
	if job := c.tx.Job(nil, namespace, jobID); job != nil && isBatchOrSysbatch(job) && pointer.Value(job.Status) != model.JobDead {
		return c.MinBatchEvalAndAllocAge
	}
	return c.MinEvalAndAllocAge
}

// deleteOldUnneededEvals deletes ended evaluations that are old enough and that no allocation refers to.
func (c garbageCollection) deleteOldUnneededEvals() {
	placed := make(map[string]bool)
	for _, a := range c.tx.Allocations(nil, "") {
		placed[a.EvalID] = true
		placed[a.FollowupEvalID] = true
	}
	var candidates []*api.Evaluation
	for _, e := range c.tx.Evaluations(nil, "") {
		if !model.IsEvalPendingOrBlocked(e) && !placed[e.ID] {
			candidates = append(candidates, e)
		}
	}
	slices.SortFunc(candidates, func(a, b *api.Evaluation) int { return cmp.Compare(a.ModifyTime, b.ModifyTime) })
	for i, e := range candidates {
		if c.isOlderThan(e.ModifyTime, c.minEvalAndAllocAge(e.Namespace, e.JobID)) || c.MaxUnneededEvals > 0 && len(candidates)-i > c.MaxUnneededEvals {
			c.tx.DeleteEvaluation(e.ID)
		}
	}
}

// deleteOldUnneededDeployments deletes old deployments that are neither active nor their job's newest.
func (c garbageCollection) deleteOldUnneededDeployments() {
	var unneededDeployments []*api.Deployment
	for _, d := range c.tx.Deployments(nil, "") {
		key := JobKey{d.Namespace, d.JobID}
		newest := c.tx.Job(nil, key.Namespace, key.ID) != nil && c.tx.LatestDeployment(nil, key.Namespace, key.ID).ID == d.ID
		if !model.DeploymentActive(d) && !newest && c.isOlderThan(d.ModifyTime, c.MinDeploymentAge) {
			unneededDeployments = append(unneededDeployments, d)
		}
	}
	for _, d := range unneededDeployments {
		c.tx.DeleteDeployment(d.ID)
	}
}
