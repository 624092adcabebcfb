package httpapi

import (
	"context"
	"net"
	"strconv"

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

func (a *API) agentHealth(r *request) (any, error) {
	type health struct {
		Message string `json:"message"`
		Ok      bool   `json:"ok"`
	}
	all := make(map[string]health)
	for _, kind := range []string{"client", "server"} {
		if asked := r.query.Get("type"); asked == "" || asked == kind {
			all[kind] = health{"ok", true}
		}
	}
	return all, nil
}

// rpcAddress is where a server would be: Nomad's clients show it, and nothing
// listens there.
func (a *API) rpcAddress() (host string, port int) {
	host, text, err := net.SplitHostPort(a.config.Advertise)
	if err != nil {
		return "127.0.0.1", 4647
	}
	port, _ = strconv.Atoi(text)
	return host, port + 1
}

func (a *API) member(n *api.Node) map[string]any {
	host, port := a.rpcAddress()
	return map[string]any{
		"Name": n.Name + "." + a.config.Region, "Addr": host, "Port": port + 1, "Status": "alive",
		"ProtocolMin": 1, "ProtocolMax": 5, "ProtocolCur": 2, "DelegateMin": 2, "DelegateMax": 5, "DelegateCur": 4,
		"Tags": map[string]string{
			"role": "nomad", "region": a.config.Region, "dc": n.Datacenter, "build": a.config.Version, "id": n.ID,
			"port": strconv.Itoa(port), "rpc_addr": host, "raft_vsn": "3", "vsn": "1", "expect": "1", "bootstrap": "1",
		},
	}
}

func (a *API) agentSelf(*request) (any, error) {
	n := a.config.Store.Snapshot().Node(nil, a.config.NodeID)
	if n == nil {
		n = &api.Node{ID: a.config.NodeID} // it is still being looked at
	}
	running := 0
	for _, alloc := range a.config.Store.Snapshot().AllocationsByNode(nil, a.config.NodeID) {
		if alloc.ClientStatus == api.AllocClientStatusRunning {
			running++
		}
	}
	return map[string]any{
		"config": a.config.Self,
		"member": a.member(n),
		"stats": map[string]map[string]string{
			"client": {"node_id": a.config.NodeID, "known_servers": "", "num_allocations": strconv.Itoa(running)},
			"nomad":  {"server": "true", "leader": "true", "bootstrap": "true", "known_regions": "1"},
		},
	}, nil
}

func (a *API) regions(*request) (any, error) { return []string{a.config.Region}, nil }

func (a *API) leader(*request) (any, error) {
	host, port := a.rpcAddress()
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

func (a *API) peers(r *request) (any, error) {
	leader, err := a.leader(r)
	return []any{leader}, err
}

// collectRecords goes on when the client has gone, as it promises.
func (a *API) collectRecords(r *request) (any, error) {
	a.config.Node.CollectAllocs()
	if _, err := a.config.Scheduler.CollectGarbage(context.WithoutCancel(r.Context())); err != nil {
		return nil, err
	}
	return nothing{}, nil
}
