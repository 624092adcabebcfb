package clusternode

import (
	"crypto/subtle"
	"crypto/tls"
	"sync/atomic"

	"github.com/nomad-lite/nomad-lite/runtime/agent/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/forwarding"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/migration"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/nodeapi"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// peerConnections are a cluster node's connections to the HTTP APIs of servers and other nodes.
type peerConnections struct {
	files   *wire.TLSFiles             // nil without certificates
	config  atomic.Pointer[tls.Config] // for new connections; nil without certificates
	fetcher *migration.Fetcher
}

// cloneTLS returns a function that returns TLS settings; its caller may change them. It returns nil without certificates.
func (p *peerConnections) cloneTLS() func() *tls.Config {
	if p.files == nil {
		return nil
	}
	return func() *tls.Config { return p.config.Load().Clone() }
}

// readAlloc returns what the node keeps about a server allocation; the zero value if there is nothing.
func (n *Node) readAlloc(allocID string) state.ClusterAlloc {
	record, err := n.store.Snapshot().ClusterAlloc(allocID)
	if err != nil {
		n.logger.Error("record of an allocation not read", "alloc_id", allocID, "error", err)
	}
	return record
}

// HTTPConfig returns the HTTP API's settings for a cluster. It returns nil if n is nil.
func (n *Node) HTTPConfig(find FindAllocFunc) *httpapi.Cluster {
	if n == nil {
		return nil
	}
	c := n.config
	forward := forwarding.Config{
		Address: c.ServerHTTPAddr, ServerAddrs: n.pool.Addrs, UseTLS: c.ServersUseHTTPS, Region: n.region, Logger: n.logger.Named("forwarding"),
		TLS: n.peers.cloneTLS(),
	}
	api := &httpapi.Cluster{
		Forward: forwarding.New(forward), ServerAddrs: n.pool.Addrs,
		AuthenticateWorkload: n.authenticateWorkload,
		IsMigrateToken: func(allocID, token string) bool {
			return migration.IsValidToken(n.member.Secret(), allocID, token)
		},
	}
	if c.AccessControl {
		api.Rights = n.access
		api.AllowExec = n.newAllowExec(find)
	}
	return api
}

// authenticateWorkload returns this node's task with token as its default workload identity, or nil.
func (n *Node) authenticateWorkload(token string) *identity.Workload {
	claims, err := nodeapi.ParseClaims(token)
	if err != nil {
		return nil
	}
	allocID, _ := claims["nomad_allocation_id"].(string)
	task, _ := claims["nomad_task"].(string)
	alloc := n.store.Snapshot().Allocation(nil, allocID)
	issued := n.readAlloc(allocID).IdentityByTask[task]
	if alloc == nil || issued == "" || subtle.ConstantTimeCompare([]byte(issued), []byte(token)) != 1 || alloc.ClientTerminalStatus() {
		return nil
	}
	w := identity.NewWorkload(alloc, task)
	return &w
}
