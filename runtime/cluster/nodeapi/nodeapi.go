package nodeapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
)

// Config has the parts of the agent that servers call. Its functions are called concurrently.
type Config struct {
	NodeID string
	// API is the agent's HTTP API without access control. It must flush each frame of a stream.
	API http.Handler
	// FindAlloc returns one of this node's allocations, or nil if the node does not know the ID.
	FindAlloc func(allocID string) *api.Allocation
	// FindRunner returns an allocation's runner, or nil if the node does not run the allocation.
	FindRunner func(allocID string) taskexec.Runner

	// AllowExec returns an error, which is sent to the user, if token's owner may not run commands in the task. task can be empty or
	// unknown. A nil AllowExec allows all commands. Servers have checked the capability alloc-exec.
	AllowExec func(ctx context.Context, token, allocID, task string) error
	// DisableRemoteExec rejects all commands in tasks.
	DisableRemoteExec bool

	// RenewIdentity makes the next heartbeat request a new node identity.
	RenewIdentity func()
	// IdentityClaims returns the claims in the node's identity. It returns an error if the node has none.
	IdentityClaims func() (map[string]any, error)
}

// node serves the methods.
type node struct{ Config }

// Methods returns the methods that servers call, for wire.Session.Serve. They may be called concurrently. Stream functions return
// when the server closes its end, when its session ends, or when the stream is complete.
func Methods(c Config) wire.Methods {
	n := &node{c}
	return wire.Methods{
		Calls: map[string]wire.CallFunc{
			protocol.MethodSignalAlloc:       wire.Method(n.signalAlloc),
			protocol.MethodRestartAlloc:      wire.Method(n.restartAlloc),
			protocol.MethodAllocStats:        wire.Method(n.allocStats),
			protocol.MethodAllocChecks:       wire.Method(n.allocChecks),
			protocol.MethodCollectAlloc:      wire.Method(n.collectAlloc),
			protocol.MethodCollectAllocs:     wire.Method(n.collectAllocs),
			protocol.MethodSetPauseState:     wire.Method(rejectPause),
			protocol.MethodGetPauseState:     wire.Method(rejectPause),
			protocol.MethodHostStats:         wire.Method(n.hostStats),
			protocol.MethodListFiles:         wire.Method(n.listFiles),
			protocol.MethodStatFile:          wire.Method(n.statFile),
			protocol.MethodApplyNodeMeta:     wire.Method(n.applyNodeMeta),
			protocol.MethodReadNodeMeta:      wire.Method(n.readNodeMeta),
			protocol.MethodGetNodeIdentity:   wire.Method(n.getNodeIdentity),
			protocol.MethodRenewNodeIdentity: wire.Method(n.renewNodeIdentity),
			protocol.MethodAgentHost:         wire.Method(n.agentHost),
			protocol.MethodAgentProfile:      wire.Method(n.agentProfile),
		},
		Streams: map[string]wire.StreamFunc{
			protocol.MethodExec:               n.exec,
			protocol.MethodStreamLogs:         n.streamLogs,
			protocol.MethodStreamFile:         n.streamFile,
			protocol.MethodMonitorAgent:       n.monitorAgent,
			protocol.MethodExportAgentMonitor: rejectMonitorExport,
		},
	}
}

// checkNodeID rejects a call for another node.
func (n *node) checkNodeID(id string) error {
	if id != "" && id != n.NodeID {
		return &replyError{http.StatusNotFound, "Unknown node " + id}
	}
	return nil
}

// checkAllocID rejects an ID that cannot be part of an API path.
func checkAllocID(id string) error {
	if id == "" || strings.Contains(id, "/") {
		return &replyError{http.StatusBadRequest, "must provide a valid alloc id"}
	}
	return nil
}
