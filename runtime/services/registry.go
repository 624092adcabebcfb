package services

import "github.com/hashicorp/nomad/api"

// Registry holds the registrations of all allocations. Its methods are called
// concurrently for different allocations.
type Registry interface {
	// ServicesByAllocation returns the registrations of one allocation. They
	// must not be changed.
	ServicesByAllocation(allocID string) []*api.ServiceRegistration
	// ChangeServices puts some registrations, in the place of those with their
	// ids, and then removes others, in one step: nobody sees the service gone
	// that only changes its id. What is put belongs to the registry.
	ChangeServices(put, remove []*api.ServiceRegistration) error
}

// Results keeps the results of checks over a restart of the agent. The methods
// are called when what a result says has changed, not at each run.
type Results interface {
	CheckResults(allocID string) (map[string]*api.AllocCheckStatus, error)
	// PutCheckResult stores a result. What is put belongs to the store.
	PutCheckResult(allocID string, result *api.AllocCheckStatus) error
	DeleteCheckResults(allocID string, ids []string) error
}
