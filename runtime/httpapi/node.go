package httpapi

import (
	"net"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func (a *API) listNodes(r *request) (any, error) {
	withOS, err := r.flag("os")
	if err != nil {
		return nil, bad(err.Error())
	}
	withResources, err := r.flag("resources")
	if err != nil {
		return nil, bad(err.Error())
	}
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		stubs, err := page(r, s.Nodes(ws, r.query.Get("prefix")), func(n *api.Node) place { return named("", n.ID) }, func(n *api.Node) *api.NodeListStub {
			address, _, err := net.SplitHostPort(n.HTTPAddr)
			if err != nil {
				address = n.HTTPAddr
			}
			stub := &api.NodeListStub{
				Address: address, ID: n.ID, Datacenter: n.Datacenter, Name: n.Name, NodeClass: n.NodeClass, NodePool: n.NodePool,
				Version: n.Attributes["nomad.version"], Drain: n.DrainStrategy != nil, SchedulingEligibility: n.SchedulingEligibility,
				Status: n.Status, StatusDescription: n.StatusDescription, Drivers: n.Drivers, LastDrain: n.LastDrain,
				CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
			}
			if withOS {
				stub.Attributes = map[string]string{"os.name": n.Attributes["os.name"]}
			}
			if withResources {
				stub.NodeResources, stub.ReservedResources = n.NodeResources, n.ReservedResources
			}
			return stub
		})
		return stubs, s.TableIndex(ws, store.Nodes), err
	})
}

func (a *API) readNode(r *request) (any, error) {
	if err := wholeID("node", r.id); err != nil {
		return nil, err
	}
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		n := s.Node(ws, r.id)
		if n == nil {
			return nil, s.TableIndex(ws, store.Nodes), notFound("node not found")
		}
		return n, n.ModifyIndex, nil
	})
}

func (a *API) nodeAllocations(r *request) (any, error) {
	return r.state(a, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		return list(byCreation(s.AllocationsByNode(ws, r.id))), s.TableIndex(ws, store.Allocations), nil
	})
}
