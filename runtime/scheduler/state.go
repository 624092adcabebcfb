package scheduler

import (
	"context"
	"iter"
	"time"

	"github.com/hashicorp/nomad/api"
)

// JobKey names a job.
type JobKey struct{ Namespace, ID string }

// KeyOf returns the name of a stored job.
func KeyOf(job *api.Job) JobKey { return JobKey{*job.Namespace, *job.ID} }

// State is what the scheduler reads: one consistent view. What it returns is
// shared and is never changed by anybody. What is not there is nil, or empty.
type State interface {
	// Node returns this node.
	Node() *api.Node
	// Namespaces returns the names of the namespaces that were made. The default
	// one need not be among them.
	Namespaces() []string

	Job(JobKey) *api.Job
	Jobs() iter.Seq[*api.Job]
	// Children returns the jobs that were dispatched or launched from this one.
	Children(parent JobKey) []*api.Job
	// JobVersions returns the current version of a job and the older ones that
	// are kept, newest first.
	JobVersions(JobKey) []*api.Job
	Submission(JobKey, uint64) *api.JobSubmission
	// LastLaunch returns the latest launch of a periodic job, zero if there is none.
	LastLaunch(JobKey) time.Time

	Alloc(id string) *api.Allocation
	Allocs() iter.Seq[*api.Allocation]
	AllocsOfJob(JobKey) []*api.Allocation
	// Ended reports whether nothing of the allocation runs any more: its runner
	// has been told to the end. An allocation that is terminal may not have ended.
	Ended(allocID string) bool
	// AllocsIndex returns the index of the last change of any allocation, its end
	// included.
	AllocsIndex() uint64

	Eval(id string) *api.Evaluation
	Evals() iter.Seq[*api.Evaluation]
	EvalsOfJob(JobKey) []*api.Evaluation

	Deployment(id string) *api.Deployment
	Deployments() iter.Seq[*api.Deployment]
	DeploymentsOfJob(JobKey) []*api.Deployment
}

// Tx is one atomic change. It sees what it has written itself. What it is given
// belongs to it: it may set CreateIndex and ModifyIndex, and nobody may change it
// afterwards. A fault in it fails the whole change.
type Tx interface {
	State

	// Index is the index that this change will have.
	Index() uint64
	// Operation names what is written from now on for those who follow events.
	Operation(name string)
	// AnnounceEval adds an event about an evaluation as it is given, and AnnounceNode
	// one about this node. Neither changes the state.
	AnnounceEval(*api.Evaluation)
	AnnounceNode()

	// PutJob makes job the current version of its job. A version that is there
	// already is replaced.
	PutJob(*api.Job)
	// PutJobVersion replaces a version of a job, which need not be the current one.
	PutJobVersion(*api.Job)
	// DeleteJob removes a job with its versions, submissions, launches and
	// scaling events.
	DeleteJob(JobKey)
	DeleteJobVersion(JobKey, uint64)
	PutSubmission(JobKey, uint64, *api.JobSubmission)
	PutLaunch(JobKey, time.Time)
	PutScalingEvent(JobKey, string, api.ScalingEvent)

	// PutAlloc stores an allocation as the scheduler wants it.
	PutAlloc(*api.Allocation)
	// ReportAlloc stores what the node has said about an allocation. It is not a
	// reason for the node to act.
	ReportAlloc(*api.Allocation)
	// PutEnded remembers that the allocation has ended.
	PutEnded(allocID string)
	DeleteAlloc(id string)

	PutEval(*api.Evaluation)
	DeleteEval(id string)

	// PutNode stores this node.
	PutNode(*api.Node)

	PutDeployment(*api.Deployment)
	DeleteDeployment(id string)
}

// Store keeps the state.
type Store interface {
	// View returns the newest state.
	View() State
	// Update calls change, and returns when what it wrote is durable, with the
	// index of the change. Changes run one after the other. If change returns an
	// error, nothing is written and the error is returned. A change that writes
	// nothing takes no index.
	Update(ctx context.Context, change func(Tx) error) (uint64, error)
}
