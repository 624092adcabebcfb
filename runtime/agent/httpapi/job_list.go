package httpapi

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/jobsummary"
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
				Stop: val(j.Stop), JobSummary: jobsummary.New(s, ws, j), CreateIndex: val(j.CreateIndex), ModifyIndex: val(j.ModifyIndex),
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
