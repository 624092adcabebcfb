package httpapi

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/jobsummary"
)

// replyWithJobData replies with the result of read for the job in the path, or with an error if the job does
// not exist.
func replyWithJobData(r *request, state *store.Store, read func(s *store.Snapshot, ws store.WatchSet, j *api.Job) (any, uint64)) (any, error) {
	return r.blockingQuery(state, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		j := s.Job(ws, r.namespace, r.pathID)
		if j == nil {
			return nil, s.LatestTableIndex(ws, store.Jobs), notFoundError("job not found")
		}
		value, index := read(s, ws, j)
		return value, index, nil
	})
}

func (jo *jobReadHandler) read(r *request) (any, error) {
	return replyWithJobData(r, jo.store, func(_ *store.Snapshot, _ store.WatchSet, j *api.Job) (any, uint64) {
		return j, pointer.Value(j.ModifyIndex)
	})
}

func (jo *jobReadHandler) summary(r *request) (any, error) {
	return replyWithJobData(r, jo.store, func(s *store.Snapshot, ws store.WatchSet, j *api.Job) (any, uint64) {
		sum := jobsummary.New(s, ws, j)
		return sum, sum.ModifyIndex
	})
}

func (jo *jobReadHandler) submission(r *request) (any, error) {
	version, err := strconv.ParseUint(r.query.Get("version"), 10, 64)
	if err != nil {
		return nil, badRequestError("Unable to parse job submission version parameter")
	}
	return r.blockingQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		index := s.LatestTableIndex(ws, store.JobSubmissions)
		submission := s.JobSubmission(ws, r.namespace, r.pathID, version)
		if submission == nil {
			return nil, index, notFoundError("job source not found")
		}
		answer := struct {
			api.JobSubmission
			Namespace, JobID        string
			Version, JobModifyIndex uint64
		}{JobSubmission: *submission, Namespace: r.namespace, JobID: r.pathID, Version: version}
		if j := s.JobVersion(ws, r.namespace, r.pathID, version); j != nil {
			answer.JobModifyIndex = pointer.Value(j.JobModifyIndex)
		}
		return answer, index, nil
	})
}

// includesObjectOfJob reports whether an object of a job with this name is listed: without the parameter
// "all", only objects of the current job with the name are listed.
func (r *request) includesObjectOfJob(currentJob *api.Job, jobCreateIndex uint64) bool {
	all, err := strconv.ParseBool(r.query.Get("all"))
	return err == nil && all || currentJob != nil && jobCreateIndex == pointer.Value(currentJob.CreateIndex)
}

func (jo *jobReadHandler) allocations(r *request) (any, error) {
	return r.blockingListQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		j := s.Job(ws, r.namespace, r.pathID)
		found := slices.DeleteFunc(r.allocListReader(s).AllocationsByJob(ws, r.namespace, r.pathID), func(alloc *api.Allocation) bool {
			return !r.includesObjectOfJob(j, pointer.Value(alloc.Job.CreateIndex))
		})
		stubs, err := r.pageOfAllocStubs(s, found, true, false)
		return stubs, s.LatestTableIndex(ws, store.Allocations), err
	})
}

func (jo *jobReadHandler) evaluations(r *request) (any, error) {
	return r.blockingListQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		evals, err := listPage(r, s.EvaluationsByJob(ws, r.namespace, r.pathID), r.evalSortKey, objectAsStub)
		return evals, s.LatestTableIndex(ws, store.Evaluations), err
	})
}

func (jo *jobReadHandler) deployments(r *request) (any, error) {
	return r.blockingListQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		j := s.Job(ws, r.namespace, r.pathID)
		found := slices.DeleteFunc(s.DeploymentsByJob(ws, r.namespace, r.pathID), func(d *api.Deployment) bool {
			return !r.includesObjectOfJob(j, d.JobCreateIndex)
		})
		deployments, err := r.pageOfDeployments(s, ws, found)
		return deployments, s.LatestTableIndex(ws, store.Deployments), err
	})
}

func (jo *jobReadHandler) latestDeployment(r *request) (any, error) {
	return r.blockingQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		d := s.LatestDeployment(ws, r.namespace, r.pathID)
		if d == nil {
			return nil, s.LatestTableIndex(ws, store.Deployments), nil
		}
		return newDeploymentView(s, nil, d), d.ModifyIndex, nil
	})
}

func (jo *jobReadHandler) services(r *request) (any, error) {
	return replyWithJobData(r, jo.store, func(s *store.Snapshot, ws store.WatchSet, _ *api.Job) (any, uint64) {
		return emptyIfNil(s.ServicesByJob(ws, r.namespace, r.pathID)), s.LatestTableIndex(ws, store.Services)
	})
}

// jobAction is an action and its task.
type jobAction struct {
	api.Action
	TaskName, TaskGroupName string
}

func (jo *jobReadHandler) actions(r *request) (any, error) {
	return r.blockingQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		j := s.Job(ws, r.namespace, r.pathID)
		if j == nil {
			//lint:ignore ST1005 the text is Nomad's
			return nil, s.LatestTableIndex(ws, store.Jobs), fmt.Errorf("Unknown job %q", r.pathID)
		}
		actions := []jobAction{}
		for _, g := range j.TaskGroups {
			for _, t := range g.Tasks {
				for _, action := range t.Actions {
					actions = append(actions, jobAction{*action, t.Name, pointer.Value(g.Name)})
				}
			}
		}
		return actions, pointer.Value(j.ModifyIndex), nil
	})
}
