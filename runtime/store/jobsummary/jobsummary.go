package jobsummary

import (
	"cmp"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// New returns a job's summary: its allocation counts by group and status. For a periodic or parameterized job it counts the
// child jobs by status.
func New(s *store.Snapshot, ws store.WatchSet, j *api.Job) *api.JobSummary {
	namespace, id := pointer.Value(j.Namespace), pointer.Value(j.ID)
	sum := &api.JobSummary{
		JobID: id, Namespace: namespace, Summary: make(map[string]api.TaskGroupSummary), Children: &api.JobChildrenSummary{},
		CreateIndex: pointer.Value(j.CreateIndex), ModifyIndex: pointer.Value(j.ModifyIndex),
	}
	if model.CanHaveChildren(j) {
		for _, child := range s.JobChildren(ws, namespace, id) {
			switch pointer.Value(child.Status) {
			case model.JobPending:
				sum.Children.Pending++
			case model.JobRunning:
				sum.Children.Running++
			default:
				sum.Children.Dead++
			}
			sum.ModifyIndex = max(sum.ModifyIndex, pointer.Value(child.ModifyIndex))
		}
		return sum
	}
	for _, g := range j.TaskGroups {
		sum.Summary[pointer.Value(g.Name)] = api.TaskGroupSummary{}
	}
	if evals := s.EvaluationsByJob(ws, namespace, id); len(evals) > 0 {
		newest := slices.MaxFunc(evals, func(a, b *api.Evaluation) int { return cmp.Compare(a.ModifyIndex, b.ModifyIndex) })
		for group, queued := range newest.QueuedAllocations {
			counts := sum.Summary[group]
			counts.Queued = queued
			sum.Summary[group] = counts
		}
	}
	for _, alloc := range AllocationsWithoutPurgedJob(s, ws, j) {
		counts := sum.Summary[alloc.TaskGroup]
		switch alloc.ClientStatus {
		case api.AllocClientStatusPending:
			counts.Starting++
		case api.AllocClientStatusRunning:
			counts.Running++
		case api.AllocClientStatusComplete:
			counts.Complete++
		case api.AllocClientStatusFailed:
			counts.Failed++
		case api.AllocClientStatusLost:
			counts.Lost++
		default:
			counts.Unknown++
		}
		sum.Summary[alloc.TaskGroup] = counts
		sum.ModifyIndex = max(sum.ModifyIndex, alloc.ModifyIndex)
	}
	return sum
}

// AllocationsWithoutPurgedJob returns a job's allocations, without the allocations of a purged job with the same id.
func AllocationsWithoutPurgedJob(s *store.Snapshot, ws store.WatchSet, j *api.Job) []*api.Allocation {
	return slices.DeleteFunc(s.WithoutEndedEvents().AllocationsByJob(ws, pointer.Value(j.Namespace), pointer.Value(j.ID)), func(a *api.Allocation) bool {
		return pointer.Value(a.Job.CreateIndex) != pointer.Value(j.CreateIndex)
	})
}
