package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// health is the health of the client, which runs tasks, or of the server, which keeps the state.
type health struct {
	Message string `json:"message"`
	OK      bool   `json:"ok"`
}

// agentHealth replies with an error if a requested part is unhealthy.
func (a *API) agentHealth(r *request) (any, error) {
	halves := map[string]func() error{
		"client": func() error {
			n := a.config.Store.Snapshot().Node(nil, a.config.NodeID)
			if n == nil || n.Status != api.NodeStatusReady {
				return fmt.Errorf("the node is not ready")
			}
			return nil
		},
		"server": a.config.Store.Fault,
	}
	answer, well := make(map[string]health), true
	for kind, check := range halves {
		if asked := r.query.Get("type"); asked != "" && asked != kind {
			continue
		}
		answer[kind] = health{"ok", true}
		if err := check(); err != nil {
			answer[kind], well = health{err.Error(), false}, false
		}
	}
	if !well {
		text, err := json.Marshal(answer)
		if err != nil {
			return nil, err
		}
		return nil, &statusError{http.StatusInternalServerError, string(text)}
	}
	return answer, nil
}

// rpcAddress returns the RPC address that Nomad's clients show. No server listens there.
func (a *API) rpcAddress() (host string, port int) {
	host, text, err := net.SplitHostPort(a.config.Advertise)
	if err != nil {
		return "127.0.0.1", 4647
	}
	port, _ = strconv.Atoi(text)
	return host, port + 1
}

func (a *API) rpcText() string {
	host, port := a.rpcAddress()
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// node returns the node of the agent, also before its first fingerprint is complete.
func (a *API) node() *api.Node {
	if n := a.config.Store.Snapshot().Node(nil, a.config.NodeID); n != nil {
		return n
	}
	return &api.Node{ID: a.config.NodeID}
}

// member is the agent as a member of its region.
type member struct {
	Name, Addr, Status       string
	Port                     int
	Tags                     map[string]string
	ProtocolMin, ProtocolMax int
	ProtocolCur, DelegateMin int
	DelegateMax, DelegateCur int
}

func (a *API) self() member {
	n := a.node()
	host, port := a.rpcAddress()
	return member{
		Name: n.Name + "." + a.config.Region, Addr: host, Port: port + 1, Status: "alive",
		ProtocolMin: 1, ProtocolMax: 5, ProtocolCur: 2, DelegateMin: 2, DelegateMax: 5, DelegateCur: 4,
		Tags: map[string]string{
			"role": "nomad", "region": a.config.Region, "dc": n.Datacenter, "build": a.config.Version, "id": n.ID,
			"port": strconv.Itoa(port), "rpc_addr": host, "raft_vsn": "3", "vsn": "1", "expect": "1", "bootstrap": "1",
		},
	}
}

// members are all agents of the region: only this one.
type members struct {
	ServerName, ServerRegion, ServerDC string
	Members                            []member
}

func (a *API) agentMembers(*request) (any, error) {
	n := a.node()
	return members{n.Name, a.config.Region, n.Datacenter, []member{a.self()}}, nil
}

// agentState is the agent's own description. It has no secrets.
type agentState struct {
	Config map[string]any               `json:"config"`
	Member member                       `json:"member"`
	Stats  map[string]map[string]string `json:"stats"`
}

func (a *API) agentSelf(*request) (any, error) {
	running := 0
	for _, alloc := range a.config.Store.Snapshot().AllocationsByNode(nil, a.config.NodeID) {
		if alloc.ClientStatus == api.AllocClientStatusRunning {
			running++
		}
	}
	state := agentState{Member: a.self(), Stats: map[string]map[string]string{
		"client": {"node_id": a.config.NodeID, "known_servers": a.rpcText(), "num_allocations": strconv.Itoa(running)},
		"nomad":  {"server": "true", "leader": "true", "leader_addr": a.rpcText(), "bootstrap": "true", "known_regions": "1"},
		"runtime": {
			"arch": runtime.GOARCH, "version": runtime.Version(), "max_procs": strconv.Itoa(runtime.GOMAXPROCS(0)),
			"cpu_count": strconv.Itoa(runtime.NumCPU()), "goroutines": strconv.Itoa(runtime.NumGoroutine()),
			"kernel.name": runtime.GOOS,
		},
	}}
	if a.config.Self != nil {
		state.Config = a.config.Self()
	}
	return state, nil
}

func (a *API) agentServers(*request) (any, error) { return []string{a.rpcText()}, nil }

// agentReload reloads the configuration, as SIGHUP does.
func (a *API) agentReload(*request) (any, error) {
	if a.config.Reload == nil {
		return nil, &statusError{http.StatusNotImplemented, "this agent has no configuration to read again"}
	}
	return noContent{}, a.config.Reload()
}

func (a *API) regions(*request) (any, error) { return []string{a.config.Region}, nil }

func (a *API) leader(*request) (any, error) { return a.rpcText(), nil }

func (a *API) peers(*request) (any, error) { return []string{a.rpcText()}, nil }

// collectRecords continues after the client has disconnected, as documented.
func (a *API) collectRecords(r *request) (any, error) {
	a.config.Node.CollectAllocs()
	if _, err := a.config.Scheduler.CollectGarbage(context.WithoutCancel(r.Context())); err != nil {
		return nil, err
	}
	return noContent{}, nil
}
