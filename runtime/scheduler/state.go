package scheduler

import (
	"context"
	"iter"
	"time"

	"github.com/hashicorp/nomad/api"
)

// JobKey identifies a job.
type JobKey struct{ Namespace, ID string }

// KeyOf returns the key of a stored job.
func KeyOf(job *api.Job) JobKey { return JobKey{*job.Namespace, *job.ID} }

// State is a consistent view of the store. Returned objects are shared and
// immutable. Missing objects are nil or empty.
type State interface {
	// Node returns this node.
	Node() *api.Node
	// Namespaces returns the names of the stored namespaces. The default namespace
	// may be missing.
	Namespaces() []string

	Job(JobKey) *api.Job
	Jobs() iter.Seq[*api.Job]
	// Children returns the jobs that were dispatched or launched from parent.
	Children(parent JobKey) []*api.Job
	// JobVersions returns the current version of a job and the kept older ones,
	// newest first.
	JobVersions(JobKey) []*api.Job
	Submission(JobKey, uint64) *api.JobSubmission
	// LastLaunch returns the time of the latest launch of a periodic job, or zero.
	LastLaunch(JobKey) time.Time

	Alloc(id string) *api.Allocation
	Allocs() iter.Seq[*api.Allocation]
	AllocsOfJob(JobKey) []*api.Allocation
	// Ended reports whether the runner of the allocation has finished for good. A
	// terminal allocation may not have ended yet.
	Ended(allocID string) bool
	// AllocsIndex returns the index of the last change of any allocation, including
	// its end.
	AllocsIndex() uint64

	Eval(id string) *api.Evaluation
	Evals() iter.Seq[*api.Evaluation]
	EvalsOfJob(JobKey) []*api.Evaluation

	Deployment(id string) *api.Deployment
	Deployments() iter.Seq[*api.Deployment]
	DeploymentsOfJob(JobKey) []*api.Deployment
}

// Tx is an atomic change. It sees its own writes. It owns the objects that it gets:
// it may set CreateIndex and ModifyIndex, and callers must not modify them
// afterwards. A fault in an object fails the whole change.
type Tx interface {
	State

	// Index returns the index of this change.
	Index() uint64
	// Operation sets the operation of the following writes, for followers of
	// events.
	Operation(name string)
	// AnnounceEval adds an event about an evaluation as given, and AnnounceNode an
	// event about this node. Neither changes the state.
	AnnounceEval(*api.Evaluation)
	AnnounceNode()

	// PutJob makes job the current version of its job. An existing version with the
	// same number is replaced.
	PutJob(*api.Job)
	// PutJobVersion replaces a version of a job, which need not be the current
	// version.
	PutJobVersion(*api.Job)
	// DeleteJob deletes a job with its versions, submissions, launches and scaling
	// events.
	DeleteJob(JobKey)
	DeleteJobVersion(JobKey, uint64)
	PutSubmission(JobKey, uint64, *api.JobSubmission)
	PutLaunch(JobKey, time.Time)
	PutScalingEvent(JobKey, string, api.ScalingEvent)

	// PutAlloc stores an allocation that the scheduler has changed.
	PutAlloc(*api.Allocation)
	// ReportAlloc stores an allocation with a report of the node. It does not wake
	// the node.
	ReportAlloc(*api.Allocation)
	// PutEnded records that the allocation has ended.
	PutEnded(allocID string)
	DeleteAlloc(id string)

	PutEval(*api.Evaluation)
	DeleteEval(id string)

	// PutNode stores this node.
	PutNode(*api.Node)

	PutDeployment(*api.Deployment)
	DeleteDeployment(id string)
}

// Store stores the state.
type Store interface {
	// View returns the newest state.
	View() State
	// Update calls change and returns the index of the change when its writes are
	// durable. Changes run one after the other. If change returns an error, nothing
	// is written and the error is returned. A change without writes takes no index.
	Update(ctx context.Context, change func(Tx) error) (uint64, error)
}
