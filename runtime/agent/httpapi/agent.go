package httpapi

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// localAgent is the agent that serves the API: one server and one node, or only a node of a cluster.
type localAgent struct {
	store           *store.Store
	nodeID          string
	region          string
	advertiseAddr   string   // host:port that other programs use to reach the agent
	nomadAPIVersion string   // the Nomad version whose API is implemented
	cluster         *Cluster // nil if the agent is not a node of a cluster
}

// checkNodeAndServerParams returns an error if a request has the parameter node_id or server_id for another node or server.
func (l *localAgent) checkNodeAndServerParams(r *request) error {
	if id := r.query.Get("node_id"); id != "" && id != l.nodeID {
		return notFoundError("Unknown node " + keepPrintableASCII(id))
	}
	switch id := r.query.Get("server_id"); id {
	case "", "leader", l.nodeID, l.newSerfMember().Name:
		return nil
	default:
		return notFoundError("Unknown server " + strconv.Quote(id))
	}
}

// agentHandler serves the routes about the agent, its region and its machine.
type agentHandler struct {
	agent       *localAgent
	store       *store.Store
	scheduler   *scheduler.Scheduler
	allocs      Allocs
	conditions  ConditionReporter
	funcs       AgentFuncs
	hostStats   func(context.Context) hoststats.Stats
	deviceStats func(context.Context) []*api.DeviceGroupStats
}

// componentHealth is the health of one part of the agent: of the client, which runs tasks, or of the server, which
// stores the state.
type componentHealth struct {
	Message string `json:"message"`
	OK      bool   `json:"ok"`
}

// health replies with an error if a requested part is unhealthy. A client needs no token for it, so the reply has only the names of
// warnings: their texts can have output of plugins.
func (h *agentHandler) health(r *request) (any, error) {
	parts := []conditions.Part{conditions.Client, conditions.Server}
	if h.agent.cluster != nil {
		parts = parts[:1]
	}
	found := h.conditions.Report().Conditions
	answer, allHealthy := make(map[conditions.Part]componentHealth), true
	for _, part := range parts {
		if asked := r.query.Get("type"); asked != "" && asked != string(part) {
			continue
		}
		var errorTexts, warnings []string
		for _, c := range found {
			switch {
			case c.Part != part && len(parts) > 1:
			case c.Severity == conditions.Error:
				errorTexts = append(errorTexts, c.Summary)
			default:
				warnings = append(warnings, c.Kind)
			}
		}
		switch {
		case len(errorTexts) > 0:
			answer[part], allHealthy = componentHealth{strings.Join(errorTexts, "; "), false}, false
		case len(warnings) > 0:
			answer[part] = componentHealth{"ok, with warnings: " + strings.Join(slices.Compact(warnings), ", "), true}
		default:
			answer[part] = componentHealth{"ok", true}
		}
	}
	if !allHealthy {
		text, err := json.Marshal(answer)
		if err != nil {
			return nil, err
		}
		return nil, &statusError{http.StatusInternalServerError, string(text)}
	}
	return answer, nil
}

// readConditions replies with the conditions of the agent and its machine.
func (h *agentHandler) readConditions(*request) (any, error) { return h.conditions.Report(), nil }

// fakeRPCAddress returns the RPC address that Nomad's clients show. No server listens there. The port is the next one after
// the HTTP port, as in Nomad's defaults: 4646 for HTTP, 4647 for RPC, 4648 for Serf.
func (l *localAgent) fakeRPCAddress() (host string, port int) {
	host, text, err := net.SplitHostPort(l.advertiseAddr)
	if err != nil {
		return "127.0.0.1", 4647
	}
	port, _ = strconv.Atoi(text)
	return host, port + 1
}

func (l *localAgent) fakeRPCHostPort() string {
	host, port := l.fakeRPCAddress()
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// currentNode returns the node of the agent, also before its first fingerprint is complete.
func (l *localAgent) currentNode() *api.Node {
	if n := l.store.Snapshot().Node(nil, l.nodeID); n != nil {
		return n
	}
	return &api.Node{ID: l.nodeID}
}

// serfMember is the agent as a member of its region.
type serfMember struct {
	Name, Addr, Status       string
	Port                     int
	Tags                     map[string]string
	ProtocolMin, ProtocolMax int
	ProtocolCur, DelegateMin int
	DelegateMax, DelegateCur int
}

func (l *localAgent) newSerfMember() serfMember {
	n := l.currentNode()
	host, port := l.fakeRPCAddress()
	return serfMember{
		Name: n.Name + "." + l.region, Addr: host, Port: port + 1, Status: "alive",
		ProtocolMin: 1, ProtocolMax: 5, ProtocolCur: 2, DelegateMin: 2, DelegateMax: 5, DelegateCur: 4,
		Tags: map[string]string{
			"role": "nomad", "region": l.region, "dc": n.Datacenter, "build": l.nomadAPIVersion, "id": n.ID,
			"port": strconv.Itoa(port), "rpc_addr": host, "raft_vsn": "3", "vsn": "1", "expect": "1", "bootstrap": "1",
		},
	}
}

// serfMembers are all agents of the region. The only agent is this one.
type serfMembers struct {
	ServerName, ServerRegion, ServerDC string
	Members                            []serfMember
}

func (h *agentHandler) members(*request) (any, error) {
	n := h.agent.currentNode()
	return serfMembers{n.Name, h.agent.region, n.Datacenter, []serfMember{h.agent.newSerfMember()}}, nil
}

// agentSelfReply is the reply of /v1/agent/self: configuration, member and statistics, without secrets.
type agentSelfReply struct {
	Config map[string]any               `json:"config"`
	Member serfMember                   `json:"member"`
	Stats  map[string]map[string]string `json:"stats"`
}

// knownServers returns the addresses of the servers of the node.
func (l *localAgent) knownServers() []string {
	if l.cluster != nil {
		return l.cluster.ServerAddrs()
	}
	return []string{l.fakeRPCHostPort()}
}

func (h *agentHandler) readSelf(*request) (any, error) {
	running := 0
	for _, alloc := range h.store.Snapshot().WithoutEndedEvents().AllocationsByNode(nil, h.agent.nodeID) {
		if alloc.ClientStatus == api.AllocClientStatusRunning {
			running++
		}
	}
	state := agentSelfReply{Member: h.agent.newSerfMember(), Stats: map[string]map[string]string{
		"client": {"node_id": h.agent.nodeID, "known_servers": strings.Join(h.agent.knownServers(), ","), "num_allocations": strconv.Itoa(running)},
		"nomad":  {"server": "true", "leader": "true", "leader_addr": h.agent.fakeRPCHostPort(), "bootstrap": "true", "known_regions": "1"},
		"runtime": {
			"arch": runtime.GOARCH, "version": runtime.Version(), "max_procs": strconv.Itoa(runtime.GOMAXPROCS(0)),
			"cpu_count": strconv.Itoa(runtime.NumCPU()), "goroutines": strconv.Itoa(runtime.NumGoroutine()),
			"kernel.name": runtime.GOOS,
		},
	}}
	if h.agent.cluster != nil { // as an agent of Nomad that is no server
		state.Member = serfMember{}
		delete(state.Stats, "nomad")
	}
	if h.funcs.ConfigWithoutSecrets != nil {
		state.Config = h.funcs.ConfigWithoutSecrets()
	}
	return state, nil
}

func (h *agentHandler) servers(*request) (any, error) {
	return h.agent.knownServers(), nil
}

// reloadConfig reloads the configuration, as SIGHUP does.
func (h *agentHandler) reloadConfig(*request) (any, error) {
	if h.funcs.Reload == nil {
		return nil, &statusError{http.StatusNotImplemented, "this agent has no configuration to read again"}
	}
	return noContent{}, h.funcs.Reload()
}

func (h *agentHandler) regions(*request) (any, error) { return []string{h.agent.region}, nil }

func (h *agentHandler) leader(*request) (any, error) { return h.agent.fakeRPCHostPort(), nil }

func (h *agentHandler) peers(*request) (any, error) { return []string{h.agent.fakeRPCHostPort()}, nil }

// forceGC collects garbage. The collection continues after the client has disconnected, as documented.
func (h *agentHandler) forceGC(r *request) (any, error) {
	h.allocs.RemoveDirsOfAllEndedAllocs()
	if _, err := h.scheduler.DeleteUnneededRecordsOfAnyAge(context.WithoutCancel(r.Context())); err != nil {
		return nil, err
	}
	return noContent{}, nil
}
