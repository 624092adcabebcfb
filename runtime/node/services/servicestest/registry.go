// Package servicestest has a service registry for several packages' tests.
package servicestest

import (
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// Registry is a services.Registry in memory. The zero value is empty.
type Registry struct {
	mu               sync.Mutex
	registrationByID map[string]*api.ServiceRegistration // namespace + NUL + id -> registration
}

// ServicesByAllocation implements services.Registry.
func (r *Registry) ServicesByAllocation(allocID string) []*api.ServiceRegistration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*api.ServiceRegistration
	for _, key := range slices.Sorted(maps.Keys(r.registrationByID)) {
		if s := r.registrationByID[key]; s.AllocID == allocID {
			found = append(found, s)
		}
	}
	return found
}

// PutAndRemoveServices implements services.Registry.
func (r *Registry) PutAndRemoveServices(put, remove []*api.ServiceRegistration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.registrationByID == nil {
		r.registrationByID = make(map[string]*api.ServiceRegistration)
	}
	key := func(s *api.ServiceRegistration) string { return s.Namespace + "\x00" + s.ID }
	for _, s := range put {
		r.registrationByID[key(s)] = s
	}
	for _, s := range remove {
		delete(r.registrationByID, key(s))
	}
	return nil
}
