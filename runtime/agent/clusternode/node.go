package clusternode

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/access"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/membership"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/migration"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/nodeapi"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/registrations"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/replica"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/workload"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Config makes an agent a Nomad cluster node: the servers schedule, and the agent runs what they assign to it.
type Config struct {
	// Servers are the first servers' addresses, a host or a host with a port each. The servers add the others.
	Servers []string
	// IntroductionToken is the first registration's token; empty means none.
	IntroductionToken string
	TLS               *wire.TLSFiles // nil means unencrypted connections to servers
	Multiplex         wire.MultiplexSettings
	// AccessControl means that the servers have access control, so commands in tasks without an isolated file system need the
	// capability alloc-node-exec.
	AccessControl     bool
	DisableRemoteExec bool // no user can run commands in tasks
	// ServerHTTPAddr is the URL of a server's HTTP API; nil means the servers' hosts with the port 4646, over HTTPS if
	// ServersUseHTTPS is set.
	ServerHTTPAddr  *url.URL
	ServersUseHTTPS bool
	// PeerTLS has the certificates for the HTTP APIs of servers and other nodes; nil means none.
	PeerTLS *wire.TLSFiles
	// Reads has the limits and retry delays for reads of variables and services from the servers.
	Reads workload.ReadSettings
}

// Node is the part of an agent that makes it a cluster node.
type Node struct {
	config        *Config
	nodeID        string
	region        string
	pool          *servers.Pool
	member        *membership.Member
	replica       *replica.Replica
	registrations *registrations.Registrations
	identities    *workload.Identities
	data          *workload.Data
	access        *access.Checker
	peers         *peerConnections
	store         *store.Store
	tlsConfig     atomic.Pointer[tls.Config] // for new connections; nil without TLS
	methods       wire.Methods               // called by servers; set before Run
	logger        hclog.Logger
}

// Input is what New needs of the agent.
type Input struct {
	Region, NodeID, DataDir string
	Host                    fingerprint.Host
	Store                   *store.Store
	Identities              *identity.Issuer // has the records of the tokens
	OnAllocsChanged         func()           // called after each change to the assigned allocations in the store; it must return soon
	Logger                  hclog.Logger
}

// New returns a Node with the credentials of earlier agents. It does not wait for servers. The caller must call Close.
func New(ctx context.Context, c *Config, in Input) (n *Node, err error) {
	region, nodeID, logger := in.Region, in.NodeID, in.Logger.Named("cluster")
	n = &Node{config: c, nodeID: nodeID, region: region, peers: &peerConnections{files: c.PeerTLS}, store: in.Store, logger: logger}
	if _, err := n.loadTLS(); err != nil {
		return nil, err
	}
	addrs := c.Servers
	if len(addrs) == 0 {
		return nil, errors.New("no servers are configured: name them in client.servers")
	}
	addrs = slices.Concat(addrs, membership.KnownServers(in.Store)) // a configured server may no longer exist
	n.pool = servers.New(servers.Config{
		Region: region,
		Dial: func(ctx context.Context, addr string) (*wire.Session, error) {
			dialer := wire.Dialer{TLS: n.tlsConfig.Load(), Multiplex: c.Multiplex, Logger: logger}
			return dialer.Dial(ctx, addr)
		},
		Logger: logger,
	}, addrs)
	n.access = access.New(n.pool, region)
	n.member, err = membership.New(ctx, membership.Config{
		Region: region, NodeID: nodeID, Host: in.Host, IntroductionToken: c.IntroductionToken, Pool: n.pool, Store: in.Store,
		CredentialsPath: filepath.Join(in.DataDir, membership.CredentialsFile), Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	n.replica = replica.New(replica.Config{
		Region: region, NodeID: nodeID, Pool: n.pool, Member: n.member, Store: in.Store,
		OnAllocsChanged: in.OnAllocsChanged, Logger: logger,
	})
	n.registrations = registrations.New(registrations.Config{
		Region: region, NodeID: nodeID, Pool: n.pool, Member: n.member, Store: in.Store, Logger: logger,
	})
	n.identities = workload.NewIdentities(workload.IdentitiesConfig{
		Region: region, Pool: n.pool, NodeToken: n.member.Token, Store: in.Store, Records: in.Identities, Logger: logger,
	})
	n.data = workload.NewData(workload.DataConfig{
		Region: region, Pool: n.pool, Registered: n.member.Registered(), Store: in.Store, Logger: logger, ReadSettings: c.Reads,
	})
	n.peers.fetcher = migration.NewFetcher(migration.Config{
		Region: region, NodeID: nodeID, Pool: n.pool, NodeToken: n.member.Token,
		MigrateToken: func(allocID string) string { return n.readAlloc(allocID).MigrateToken },
		HasAlloc:     func(allocID string) bool { return in.Store.Snapshot().Allocation(nil, allocID) != nil },
		TLS:          n.peers.cloneTLS(),
		Logger:       logger,
	})
	return n, nil
}

// FindAllocFunc returns an allocation's runner, or nil if the node has none.
type FindAllocFunc func(allocID string) *allocrunner.Runner

// SetAPI sets the HTTP API through which the servers use the node; it must not check tokens. It is called before Run. It does
// nothing if n is nil.
func (n *Node) SetAPI(handler http.Handler, find FindAllocFunc) {
	if n == nil {
		return
	}
	c := nodeapi.Config{
		NodeID: n.nodeID, API: handler,
		FindAlloc: func(id string) *api.Allocation { return n.store.Snapshot().Allocation(nil, id) },
		FindRunner: func(id string) taskexec.Runner {
			if runner := find(id); runner != nil {
				return runner
			}
			return nil
		},
		DisableRemoteExec: n.config.DisableRemoteExec,
		RenewIdentity:     n.member.RenewIdentity,
		IdentityClaims:    func() (map[string]any, error) { return nodeapi.ParseClaims(n.member.Token()) },
	}
	if n.config.AccessControl {
		c.AllowExec = n.newAllowExec(find)
	}
	n.methods = nodeapi.Methods(c)
}

// newAllowExec returns a function that returns an error if the token's owner may not run commands in a task.
func (n *Node) newAllowExec(find FindAllocFunc) func(ctx context.Context, token, allocID, task string) error {
	return func(ctx context.Context, token, allocID, task string) error {
		runner := find(allocID)
		if runner == nil {
			return nil // the request fails later, because no task runs
		}
		if runner.FSIsolation(task) != driver.FSIsolationNone {
			return nil // the servers have checked alloc-exec
		}
		return n.access.AllocNodeExec(ctx, token, runner.Alloc().Namespace)
	}
}

// loadTLS reads the certificates for new connections to servers and other nodes. It reports whether they differ from those of the
// present connections.
func (n *Node) loadTLS() (changed bool, err error) {
	for _, part := range []struct {
		files *wire.TLSFiles
		to    *atomic.Pointer[tls.Config]
	}{{n.config.TLS, &n.tlsConfig}, {n.peers.files, &n.peers.config}} {
		if part.files == nil {
			continue
		}
		config, err := part.files.Load()
		if err != nil {
			return false, err
		}
		old := part.to.Swap(config)
		changed = changed || old != nil && !(old.RootCAs.Equal(config.RootCAs) && reflect.DeepEqual(old.Certificates[0].Certificate, config.Certificates[0].Certificate))
	}
	return changed, nil
}

// ReloadCertificates reads the certificates for connections to the servers and other nodes again. If they have changed, the node
// connects to the servers again, which ends the servers' open commands and streams. It does nothing if n is nil, or if the
// connections are not encrypted.
func (n *Node) ReloadCertificates() error {
	if n == nil {
		return nil
	}
	changed, err := n.loadTLS()
	if changed {
		n.logger.Info("certificates for the servers have changed, connecting again")
		n.pool.CloseSessions()
	}
	return err
}

// Run keeps the node in the cluster until ctx ends. It adds events to the allocations that find returns. It must be called once.
func (n *Node) Run(ctx context.Context, find FindAllocFunc) {
	emit := func(allocID string, event *api.TaskEvent) {
		if runner := find(allocID); runner != nil {
			runner.EmitEvent("", event)
		}
	}
	var running sync.WaitGroup
	running.Go(func() { n.pool.Run(ctx, n.methods, n.member.Beat) })
	running.Go(func() {
		n.member.Run(ctx, func() {
			n.replica.ReportStates()
			n.registrations.Resend()
		})
	})
	running.Go(func() {
		n.replica.Run(ctx, replica.Events{
			OnReconnected: func(allocID string) { emit(allocID, model.EventReconnected()) },
			OnServersRestored: func() {
				n.member.RegisterAgain()
				n.registrations.Resend()
				n.data.ReadAgain()
			},
		})
	})
	running.Go(func() {
		n.registrations.Run(ctx, func(s *api.ServiceRegistration, reason error) {
			emit(s.AllocID, model.EventHookFailed("services", fmt.Sprintf("the servers refuse to register service %q: %v", s.ServiceName, reason)))
		})
	})
	running.Wait()
}

// lastStatesTimeout is how long an agent's shutdown waits for servers that need its task states. The next agent sends states not
// received by the servers.
const lastStatesTimeout = 5 * time.Second

// SendLastStates sends the states missing at the servers, for five seconds at most. It does nothing if n is nil.
func (n *Node) SendLastStates(ctx context.Context) {
	if n == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastStatesTimeout)
	defer cancel()
	if err := n.replica.SendStates(ctx); err != nil {
		n.logger.Warn("the next agent sends the last states of allocations to the servers", "error", err)
	}
}

// Close ends reads of variables and services that are in progress. Run must have returned. It may be called twice, and does
// nothing if n is nil.
func (n *Node) Close() {
	if n != nil {
		n.data.Close()
	}
}

// Replica returns the node's part of the servers' state.
func (n *Node) Replica() *replica.Replica { return n.replica }

// Registrations returns the registrations of services at the servers.
func (n *Node) Registrations() *registrations.Registrations { return n.registrations }

// Identities returns the issuer of the servers' tokens for tasks.
func (n *Node) Identities() *workload.Identities { return n.identities }

// Data returns the variables and services at the servers.
func (n *Node) Data() *workload.Data { return n.data }

// Fetcher returns the fetcher of data from other nodes.
func (n *Node) Fetcher() *migration.Fetcher { return n.peers.fetcher }

// ServerAddrs returns the addresses of the known servers.
func (n *Node) ServerAddrs() []string { return n.pool.Addrs() }

// CheckMode returns an error if allocations run that the agent would end, because the data directory was used by an agent that
// schedules for itself and the configuration names servers, or the other way around. It stores the mode.
func CheckMode(ctx context.Context, s *store.Store, joinsCluster bool, logger hclog.Logger) error {
	snapshot := s.Snapshot()
	var membership state.ClusterMembership
	known, err := snapshot.ReadAgentRecord(state.ClusterMembershipName, &membership)
	if err != nil {
		return fmt.Errorf("read the credentials of the node: %w", err)
	}
	wasInCluster := known && !membership.Left
	if wasInCluster == joinsCluster {
		return nil
	}
	running := 0
	for _, a := range snapshot.WithoutEndedEvents().Allocations(nil, "") {
		if !snapshot.AllocationEnded(a.ID) && !a.ClientTerminalStatus() {
			running++
		}
	}
	switch {
	case running > 0 && joinsCluster:
		return fmt.Errorf("the configuration names servers, and this data directory has %d allocations of an agent that schedules for itself, which the servers do not know and would end: start the agent without client.servers, stop its jobs (nomad-lite job stop), and start it again with client.servers", running)
	case running > 0:
		return fmt.Errorf("the configuration names no servers, and this data directory has %d allocations of a cluster: start the agent with client.servers, drain the node (nomad-lite node drain -enable -self), and start it again without client.servers", running)
	case !known:
		return nil // membership.New makes the record
	}
	membership.Left = !joinsCluster
	logger.Info("the mode of the data directory has changed", "joins_cluster", joinsCluster)
	_, err = s.Update(ctx, func(tx *store.Txn) error {
		tx.PutAgentRecord(state.ClusterMembershipName, membership)
		return nil
	})
	return err
}
