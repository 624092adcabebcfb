package httpapi

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/jobsummary"
)

// jobReadHandler serves the routes that read jobs and the objects of a job.
type jobReadHandler struct{ store *store.Store }

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

func (jo *jobReadHandler) list(r *request) (any, error) {
	return jo.listMatching(r, func(*api.Job) bool { return true })
}

// listMatching replies with a page of the jobs for which the function matches returns true.
func (jo *jobReadHandler) listMatching(r *request, matches func(*api.Job) bool) (any, error) {
	return r.blockingListQuery(jo.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := slices.DeleteFunc(s.Jobs(ws, r.namespace, r.query.Get("prefix")), func(j *api.Job) bool { return !matches(j) })
		stubs, err := listPage(r, found, jobSortKey, func(j *api.Job) jobStub {
			stub := jobStub{
				ID: pointer.Value(j.ID), ParentID: pointer.Value(j.ParentID), Name: pointer.Value(j.Name), Namespace: pointer.Value(j.Namespace), NodePool: pointer.Value(j.NodePool),
				Type: pointer.Value(j.Type), Status: pointer.Value(j.Status), StatusDescription: pointer.Value(j.StatusDescription), Datacenters: j.Datacenters,
				Multiregion: j.Multiregion, Priority: pointer.Value(j.Priority), Periodic: j.Periodic != nil, ParameterizedJob: j.IsParameterized(),
				Stop: pointer.Value(j.Stop), JobSummary: jobsummary.New(s, ws, j), CreateIndex: pointer.Value(j.CreateIndex), ModifyIndex: pointer.Value(j.ModifyIndex),
				JobModifyIndex: pointer.Value(j.JobModifyIndex), SubmitTime: pointer.Value(j.SubmitTime),
			}
			if r.query.Get("meta") == "true" {
				stub.Meta = j.Meta
			}
			return stub
		})
		return stubs, s.LatestTableIndex(ws, store.Jobs, store.Allocations), err
	})
}

func jobSortKey(j *api.Job) sortKey {
	return newNameSortKey(pointer.Value(j.Namespace), pointer.Value(j.ID))
}
