package workloaddata

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// Source has the variables and services used by workloads. Its methods return the current data in a workload's namespace, and its
// last change index. They add channels to ws that are closed when the data may have changed. The channels are not watched after
// ctx has ended. A method blocks until the data is known or ctx ends. The methods may be called concurrently.
type Source interface {
	// Variable returns a variable, nil if it does not exist. The caller must not change it. An empty namespace means the workload's.
	Variable(ctx context.Context, ws store.WatchSet, w identity.Workload, namespace, path string) (v *api.Variable, index uint64, err error)
	// Variables returns the variables with a prefix, sorted by namespace and path. The namespace * means all.
	Variables(ctx context.Context, ws store.WatchSet, w identity.Workload, namespace, prefix string) (list []*api.VariableMetadata, index uint64, err error)
	// Services returns a service's instances, or all services' instances if name is empty, by name and then ID. All services'
	// instances may be incomplete, as described at [hook.Host].
	Services(ctx context.Context, ws store.WatchSet, w identity.Workload, name string) (instances []hook.Service, index uint64, err error)
	// HasConsulServices reports whether a job in the workload's namespace has a service with provider consul. Services lists it
	// nevertheless. It does not block.
	HasConsulServices(ws store.WatchSet, w identity.Workload) (has bool, index uint64)
}

// StoreSource is the Source for an agent that schedules for itself: the store has all variables and services. Its jobs can read
// variables in all namespaces, because a user who may register a job may register it in any namespace.
type StoreSource struct{ Store *store.Store }

var _ Source = StoreSource{}

// Variable implements Source.
func (d StoreSource) Variable(_ context.Context, ws store.WatchSet, w identity.Workload, namespace, path string) (*api.Variable, uint64, error) {
	r := d.Store.Snapshot()
	index := r.LatestTableIndex(nil, store.Variables)
	v := r.Variable(ws, cmp.Or(namespace, w.Namespace), path)
	if v == nil {
		return nil, index, nil
	}
	if err := r.VariableDecryptErr(v); err != nil {
		return nil, 0, err
	}
	return v, v.ModifyIndex, nil
}

// Variables implements Source.
func (d StoreSource) Variables(_ context.Context, ws store.WatchSet, w identity.Workload, namespace, prefix string) (list []*api.VariableMetadata, index uint64, err error) {
	r := d.Store.Snapshot()
	index = r.LatestTableIndex(ws, store.Variables)
	for _, v := range r.Variables(ws, cmp.Or(namespace, w.Namespace), prefix) {
		list = append(list, v.Metadata())
	}
	SortVariables(list)
	return list, index, nil
}

// SortVariables sorts variables by namespace and path.
func SortVariables(list []*api.VariableMetadata) {
	slices.SortFunc(list, func(a, b *api.VariableMetadata) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Path, b.Path))
	})
}

// Services implements Source. All instances are complete.
func (d StoreSource) Services(_ context.Context, ws store.WatchSet, w identity.Workload, name string) ([]hook.Service, uint64, error) {
	r := d.Store.Snapshot()
	index := r.LatestTableIndex(ws, store.Services)
	registrations := r.Services(ws, w.Namespace)
	if name != "" {
		registrations = r.ServicesByName(ws, w.Namespace, name)
	}
	return NewHookServices(registrations, func(s *api.ServiceRegistration) string {
		if r.ServicePasses(s) {
			return hook.ServicePassing
		}
		return hook.ServiceCritical
	}), index, nil
}

// HasConsulServices implements Source.
func (d StoreSource) HasConsulServices(ws store.WatchSet, w identity.Workload) (bool, uint64) {
	r := d.Store.Snapshot()
	index := r.LatestTableIndex(ws, store.Jobs)
	isConsul := func(s *api.Service) bool { return s.Provider == api.ServiceProviderConsul }
	for _, j := range r.Jobs(nil, w.Namespace, "") {
		for _, g := range j.TaskGroups {
			if slices.ContainsFunc(g.Services, isConsul) || slices.ContainsFunc(g.Tasks, func(t *api.Task) bool { return slices.ContainsFunc(t.Services, isConsul) }) {
				return true, index
			}
		}
	}
	return false, index
}

// NewHookServices returns the services for registrations, by name and then ID. statusOf returns an instance's status. A nil
// statusOf means unknown status.
func NewHookServices(registrations []*api.ServiceRegistration, statusOf func(*api.ServiceRegistration) string) []hook.Service {
	if statusOf == nil {
		statusOf = func(*api.ServiceRegistration) string { return "" }
	}
	var list []hook.Service
	for _, r := range registrations {
		list = append(list, hook.Service{
			ID: r.ID, Name: r.ServiceName, Address: r.Address, Port: r.Port, Tags: r.Tags, AllocID: r.AllocID, NodeID: r.NodeID,
			Datacenter: r.Datacenter, JobID: r.JobID, Status: statusOf(r),
		})
	}
	slices.SortFunc(list, func(a, b hook.Service) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return list
}
