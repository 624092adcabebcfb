package services

import (
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"
)

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

// Memory is a Registry that forgets everything with the process. The zero value
// is empty.
type Memory struct {
	mu    sync.Mutex
	known map[string]*api.ServiceRegistration // by namespace and id
}

// ServicesByAllocation implements Registry.
func (m *Memory) ServicesByAllocation(allocID string) []*api.ServiceRegistration {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*api.ServiceRegistration
	for _, key := range slices.Sorted(maps.Keys(m.known)) {
		if s := m.known[key]; s.AllocID == allocID {
			found = append(found, s)
		}
	}
	return found
}

// ChangeServices implements Registry.
func (m *Memory) ChangeServices(put, remove []*api.ServiceRegistration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known = make(map[string]*api.ServiceRegistration)
	}
	key := func(s *api.ServiceRegistration) string { return s.Namespace + "\x00" + s.ID }
	for _, s := range put {
		m.known[key(s)] = s
	}
	for _, s := range remove {
		delete(m.known, key(s))
	}
	return nil
}
