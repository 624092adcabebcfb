package services

import "github.com/hashicorp/nomad/api"

// Registry stores all allocations' service registrations. Its methods are called concurrently for different allocations.
type Registry interface {
	// ServicesByAllocation returns one allocation's registrations. The caller must not change them.
	ServicesByAllocation(allocID string) []*api.ServiceRegistration
	// PutAndRemoveServices adds the registrations in put, or replaces those with the same ids, and removes the registrations in
	// remove. It does so in one transaction, so that a service is always registered, even if its registration gets another id. The
	// registry owns the registrations in put.
	PutAndRemoveServices(put, remove []*api.ServiceRegistration) error
}

// CheckResultStore stores the latest check results for the next agent. A result is written only when it has changed.
type CheckResultStore interface {
	// StoredResultByCheckID returns check id -> stored result.
	StoredResultByCheckID(allocID string) (map[string]*api.AllocCheckStatus, error)
	// PutCheckResult stores a result, which the store owns after the call.
	PutCheckResult(allocID string, result *api.AllocCheckStatus) error
	DeleteCheckResults(allocID string, checkIDs []string) error
}
