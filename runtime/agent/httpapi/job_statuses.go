package httpapi

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/jobsummary"
)

// jobStatus is a job with the fields that the job list of the web UI shows.
type jobStatus struct {
	ID, Namespace, Name, Type, NodePool, ParentID, Status string
	Datacenters                                           []string
	Priority                                              int
	Version, ModifyIndex                                  uint64
	SubmitTime                                            int64
	Stop, IsPack                                          bool
	Allocs                                                []jobStatusAlloc
	GroupCountSum                                         int
	ChildStatuses                                         []string
	LatestDeployment                                      *jobStatusDeployment
}

type jobStatusAlloc struct {
	ID, Group, ClientStatus, NodeID, FollowupEvalID string
	DeploymentStatus                                struct {
		Canary  bool
		Healthy *bool
	}
	JobVersion    uint64
	HasPausedTask bool
}

type jobStatusDeployment struct {
	ID, Status, StatusDescription               string
	IsActive, AllAutoPromote, RequiresPromotion bool
	JobVersion                                  uint64
}

func (jo *jobReadHandler) statuses(r *request) (any, error) {
	var body api.JobStatusesRequest
	if r.Method != "GET" {
		if err := r.decodeBody(&body, maxBodyBytes, true); err != nil {
			return nil, err
		}
	}
	children, err := r.boolParam("include_children")
	if err != nil {
		return nil, err
	}
	children = children || body.IncludeChildren
	return r.blockingQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		jobs := slices.DeleteFunc(s.Jobs(ws, r.namespace, r.query.Get("prefix")), func(j *api.Job) bool {
			return !children && pointer.Value(j.ParentID) != ""
		})
		if len(body.Jobs) > 0 {
			jobs = nil
			for _, wanted := range body.Jobs {
				if j := s.Job(ws, wanted.Namespace, wanted.ID); j != nil {
					jobs = append(jobs, j)
				}
			}
		}
		byChange := func(j *api.Job) sortKey {
			return sortKey{createIndex: pointer.Value(j.ModifyIndex), name: pointer.Value(j.Namespace) + "/" + pointer.Value(j.ID)}
		}
		statuses, err := listPage(r, jobs, byChange, func(j *api.Job) jobStatus { return newJobStatus(s, ws, j) })
		return statuses, s.LatestTableIndex(ws, store.Jobs, store.Allocations, store.Deployments), err
	})
}

func newJobStatus(s *store.Snapshot, ws store.WatchSet, j *api.Job) jobStatus {
	status := jobStatus{
		ID: pointer.Value(j.ID), Namespace: pointer.Value(j.Namespace), Name: pointer.Value(j.Name), Type: pointer.Value(j.Type), NodePool: pointer.Value(j.NodePool),
		ParentID: pointer.Value(j.ParentID), Status: pointer.Value(j.Status), Datacenters: j.Datacenters, Priority: pointer.Value(j.Priority),
		Version: pointer.Value(j.Version), ModifyIndex: pointer.Value(j.ModifyIndex), SubmitTime: pointer.Value(j.SubmitTime), Stop: pointer.Value(j.Stop),
		IsPack: j.Meta["pack.name"] != "", Allocs: []jobStatusAlloc{},
	}
	for _, g := range j.TaskGroups {
		status.GroupCountSum += pointer.Value(g.Count)
	}
	if model.CanHaveChildren(j) {
		status.ChildStatuses = []string{}
		for _, child := range s.JobChildren(ws, status.Namespace, status.ID) {
			status.ChildStatuses = append(status.ChildStatuses, pointer.Value(child.Status))
		}
	}
	for _, alloc := range sortByCreation(jobsummary.AllocationsWithoutPurgedJob(s, ws, j)) {
		one := jobStatusAlloc{
			ID: alloc.ID, Group: alloc.TaskGroup, ClientStatus: alloc.ClientStatus, NodeID: alloc.NodeID,
			FollowupEvalID: alloc.FollowupEvalID, JobVersion: pointer.Value(alloc.Job.Version),
		}
		if health := alloc.DeploymentStatus; health != nil {
			one.DeploymentStatus.Canary, one.DeploymentStatus.Healthy = health.Canary, health.Healthy
		}
		status.Allocs = append(status.Allocs, one)
	}
	if d := s.LatestDeployment(ws, status.Namespace, status.ID); d != nil && d.JobCreateIndex == pointer.Value(j.CreateIndex) {
		status.LatestDeployment = newJobStatusDeployment(d, j)
	}
	return status
}

func newJobStatusDeployment(d *api.Deployment, j *api.Job) *jobStatusDeployment {
	status := &jobStatusDeployment{
		ID: d.ID, Status: d.Status, StatusDescription: d.StatusDescription, JobVersion: d.JobVersion,
		IsActive: model.DeploymentActive(d), AllAutoPromote: len(d.TaskGroups) > 0,
	}
	for name, state := range d.TaskGroups {
		status.AllAutoPromote = status.AllAutoPromote && model.AutoPromotes(j, name)
		status.RequiresPromotion = status.RequiresPromotion || state.DesiredCanaries > 0 && !state.Promoted
	}
	return status
}
