package clustertest

import (
	"cmp"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Services returns the registrations of services in a namespace, sorted by id.
func (c *Cluster) Services(namespace string) []api.ServiceRegistration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []api.ServiceRegistration
	for _, id := range slices.Sorted(maps.Keys(c.services)) {
		if s := c.services[id]; s.Namespace == namespace {
			copied := *s
			copied.Tags = slices.Clone(s.Tags)
			found = append(found, copied)
		}
	}
	return found
}

// deleteServicesOfLocked removes the registrations of an allocation.
func (c *Cluster) deleteServicesOfLocked(allocID string) {
	for id, s := range c.services {
		if s.AllocID == allocID {
			delete(c.services, id)
			c.writeLocked("services")
		}
	}
}

// upsertServices answers ServiceRegistration.Upsert.
func (c *Cluster) upsertServices(r *request) (answer, error) {
	var upsert struct{ Services []*api.ServiceRegistration }
	if err := r.decode(&upsert); err != nil {
		return answer{}, err
	}
	if !r.caller.isNode() {
		return answer{}, errPermissionDenied
	}
	for _, s := range upsert.Services {
		if s.NodeID != r.caller.nodeID {
			return answer{}, errPermissionDenied
		}
	}
	index := c.writeLocked()
	for _, s := range upsert.Services {
		s.CreateIndex, s.ModifyIndex = index, index
		if old, known := c.services[s.ID]; known {
			s.CreateIndex = old.CreateIndex
		}
		c.services[s.ID] = s
		c.tables["services"] = index
	}
	return answer{body: object{"Index": index}}, nil
}

// deleteService answers ServiceRegistration.DeleteByID.
func (c *Cluster) deleteService(r *request) (answer, error) {
	var remove struct{ ID string }
	if err := r.decode(&remove); err != nil {
		return answer{}, err
	}
	s, known := c.services[remove.ID]
	known = known && s.Namespace == cmp.Or(r.Namespace, "default")
	if c.config.AccessControl && (!known || !c.mayDelete(r.caller, s)) {
		return answer{}, errPermissionDenied
	}
	if !known {
		return answer{}, errors.New("service registration not found")
	}
	delete(c.services, remove.ID)
	return answer{body: object{"Index": c.writeLocked("services")}}, nil
}

// mayDelete reports whether the caller may delete a registration: its node is in the pool of the caller.
func (c *Cluster) mayDelete(by caller, s *api.ServiceRegistration) bool {
	if by.kind == userCaller {
		return by.mayUseNamespace(s.Namespace, "submit-job")
	}
	own, other := c.nodes[by.nodeID], c.nodes[s.NodeID]
	return by.isNode() && own != nil && other != nil && own.NodePool == other.NodePool
}

// mayReadServices reports whether the caller may read the services of a namespace.
func (c *Cluster) mayReadServices(by caller, namespace string) bool {
	return !c.config.AccessControl || by.isNode() || by.kind == taskCaller && by.claims.Namespace == namespace || by.mayUseNamespace(namespace, "read-job")
}

// getService answers ServiceRegistration.GetService.
func (c *Cluster) getService(r *request) (answer, error) {
	var get struct{ ServiceName, Choose string }
	if err := r.decode(&get); err != nil {
		return answer{}, err
	}
	namespace := cmp.Or(r.Namespace, "default")
	if !c.mayReadServices(r.caller, namespace) {
		return answer{}, errPermissionDenied
	}
	found := []*api.ServiceRegistration{}
	for _, id := range slices.Sorted(maps.Keys(c.services)) {
		if s := c.services[id]; s.ServiceName == get.ServiceName && s.Namespace == namespace {
			found = append(found, s)
		}
	}
	if get.Choose != "" {
		count, key, ok := strings.Cut(get.Choose, "|")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n < 0 {
			return answer{}, errors.New("RPC Error:: 400,failed to choose services: Parameter for choose must be in form '<number>|<key>'")
		}
		slices.SortFunc(found, func(a, b *api.ServiceRegistration) int { return cmp.Compare(rank(key, a.ID), rank(key, b.ID)) })
		found = found[:min(n, len(found))]
	}
	return answer{body: object{"Services": found}, index: c.tableIndexLocked("services")}, nil
}

// rank orders registrations for a key, so that the same key chooses the same registrations.
func rank(key, id string) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(key + "|" + id))
	return hash.Sum64()
}

// listServices answers ServiceRegistration.List.
func (c *Cluster) listServices(r *request) (answer, error) {
	namespace := cmp.Or(r.Namespace, "default")
	if namespace == "*" && c.config.AccessControl && !r.caller.isManagement() {
		// The namespaces that the caller may read are none for a task and a node.
		return answer{body: object{"Services": []any{}}}, nil
	}
	if namespace != "*" && !c.mayReadServices(r.caller, namespace) {
		return answer{}, errPermissionDenied
	}
	tags := map[string]map[string][]string{} // by namespace and name
	for _, s := range c.services {
		if namespace != "*" && s.Namespace != namespace {
			continue
		}
		if tags[s.Namespace] == nil {
			tags[s.Namespace] = map[string][]string{}
		}
		tags[s.Namespace][s.ServiceName] = append(tags[s.Namespace][s.ServiceName], s.Tags...)
	}
	list := []object{}
	for _, ns := range slices.Sorted(maps.Keys(tags)) {
		var services []object
		for _, name := range slices.Sorted(maps.Keys(tags[ns])) {
			sorted := slices.Clone(tags[ns][name])
			slices.Sort(sorted)
			services = append(services, object{"ServiceName": name, "Tags": slices.Compact(sorted)})
		}
		list = append(list, object{"Namespace": ns, "Services": services})
	}
	return answer{body: object{"Services": list}, index: c.tableIndexLocked("services")}, nil
}
