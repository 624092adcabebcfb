package services

import "github.com/hashicorp/nomad/api"

// Registry stores the service registrations of all allocations. Its methods are called
// concurrently for different allocations.
type Registry interface {
	// ServicesByAllocation returns the registrations of one allocation. The caller must not change
	// them.
	ServicesByAllocation(allocID string) []*api.ServiceRegistration
	// PutAndRemoveServices adds the registrations in put, or replaces those with the same ids, and removes the
	// registrations in remove, in one transaction, so that a service whose registration gets another id is always
	// registered. The registry owns the registrations in put.
	PutAndRemoveServices(put, remove []*api.ServiceRegistration) error
}

// CheckResultStore stores the latest results of checks for the next agent. A result is written when it has
// changed, not at each run of the check.
type CheckResultStore interface {
	// StoredResultByCheckID returns check id -> stored result.
	StoredResultByCheckID(allocID string) (map[string]*api.AllocCheckStatus, error)
	// PutCheckResult stores a result, which the store owns after the call.
	PutCheckResult(allocID string, result *api.AllocCheckStatus) error
	DeleteCheckResults(allocID string, checkIDs []string) error
}
