package services

import "github.com/hashicorp/nomad/api"

// Registry holds the registrations of all allocations. Its methods are called
// concurrently for different allocations.
type Registry interface {
	// ServicesByAllocation returns the registrations of one allocation. The caller must not change
	// them.
	ServicesByAllocation(allocID string) []*api.ServiceRegistration
	// ChangeServices puts some registrations, which replace registrations with the same ids, and
	// then removes others, in one transaction: a reader never misses a service that only changes
	// its id. The registry owns the registrations in put.
	ChangeServices(put, remove []*api.ServiceRegistration) error
}

// CheckResultStore keeps the results of checks over a restart of the agent. Its methods are called when a
// result has changed, not at each run.
type CheckResultStore interface {
	CheckResults(allocID string) (map[string]*api.AllocCheckStatus, error)
	// PutCheckResult stores a result, which the store owns after the call.
	PutCheckResult(allocID string, result *api.AllocCheckStatus) error
	DeleteCheckResults(allocID string, ids []string) error
}
