package httpapi

import (
	"cmp"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// jobReader serves the routes that read jobs and the objects of a job.
type jobReader struct{ store *store.Store }

// jobStub is an entry of a list of jobs.
type jobStub struct {
	ID, ParentID, Name, Namespace, NodePool, Type, Status, StatusDescription string
	Datacenters                                                              []string
	Multiregion                                                              *api.Multiregion
	Priority                                                                 int
	Periodic, ParameterizedJob, Stop                                         bool
	JobSummary                                                               *api.JobSummary
	CreateIndex, ModifyIndex, JobModifyIndex                                 uint64
	SubmitTime                                                               int64
	Meta                                                                     map[string]string `json:",omitempty"`
}

func (h *jobReader) list(r *request) (any, error) {
	return h.listMatching(r, func(*api.Job) bool { return true })
}

// listMatching lists the jobs for which the function which returns true.
func (h *jobReader) listMatching(r *request, which func(*api.Job) bool) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := slices.DeleteFunc(s.Jobs(ws, r.namespace, r.query.Get("prefix")), func(j *api.Job) bool { return !which(j) })
		stubs, err := listPage(r, found, jobSortKey, func(j *api.Job) jobStub {
			stub := jobStub{
				ID: val(j.ID), ParentID: val(j.ParentID), Name: val(j.Name), Namespace: val(j.Namespace), NodePool: val(j.NodePool),
				Type: val(j.Type), Status: val(j.Status), StatusDescription: val(j.StatusDescription), Datacenters: j.Datacenters,
				Multiregion: j.Multiregion, Priority: val(j.Priority), Periodic: j.Periodic != nil, ParameterizedJob: j.IsParameterized(),
				Stop: val(j.Stop), JobSummary: newJobSummary(s, ws, j), CreateIndex: val(j.CreateIndex), ModifyIndex: val(j.ModifyIndex),
				JobModifyIndex: val(j.JobModifyIndex), SubmitTime: val(j.SubmitTime),
			}
			if r.query.Get("meta") == "true" {
				stub.Meta = j.Meta
			}
			return stub
		})
		return stubs, s.TableIndex(ws, store.Jobs, store.Allocations), err
	})
}

func jobSortKey(j *api.Job) sortKey { return nameKey(val(j.Namespace), val(j.ID)) }

// newJobSummary counts the allocations of a job, or the children of a periodic or parameterized job.
func newJobSummary(s *store.Snapshot, ws store.WatchSet, j *api.Job) *api.JobSummary {
	namespace, id := val(j.Namespace), val(j.ID)
	sum := &api.JobSummary{
		JobID: id, Namespace: namespace, Summary: make(map[string]api.TaskGroupSummary), Children: &api.JobChildrenSummary{},
		CreateIndex: val(j.CreateIndex), ModifyIndex: val(j.ModifyIndex),
	}
	if model.HasChildren(j) {
		for _, child := range s.JobChildren(ws, namespace, id) {
			switch val(child.Status) {
			case model.JobPending:
				sum.Children.Pending++
			case model.JobRunning:
				sum.Children.Running++
			default:
				sum.Children.Dead++
			}
			sum.ModifyIndex = max(sum.ModifyIndex, val(child.ModifyIndex))
		}
		return sum
	}
	for _, g := range j.TaskGroups {
		sum.Summary[val(g.Name)] = api.TaskGroupSummary{}
	}
	if evals := s.EvaluationsByJob(ws, namespace, id); len(evals) > 0 {
		newest := slices.MaxFunc(evals, func(a, b *api.Evaluation) int { return cmp.Compare(a.ModifyIndex, b.ModifyIndex) })
		for group, queued := range newest.QueuedAllocations {
			counts := sum.Summary[group]
			counts.Queued = queued
			sum.Summary[group] = counts
		}
	}
	for _, alloc := range jobAllocations(s, ws, j) {
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

// jobAllocations returns the allocations of a job, without the allocations of a purged job of the
// same name.
func jobAllocations(s *store.Snapshot, ws store.WatchSet, j *api.Job) []*api.Allocation {
	return slices.DeleteFunc(s.AllocationsByJob(ws, val(j.Namespace), val(j.ID)), func(a *api.Allocation) bool {
		return val(a.Job.CreateIndex) != val(j.CreateIndex)
	})
}
