package agent

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
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskexec"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// ClusterConfig makes an agent a Nomad cluster node: the servers schedule, and the agent runs what they assign to it.
type ClusterConfig struct {
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

// clusterNode is the part of an agent that makes it a cluster node.
type clusterNode struct {
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
	tls           *wire.TLSFiles
	config        atomic.Pointer[tls.Config] // for new connections; nil without TLS
	methods       wire.Methods               // called by servers; set before run
	logger        hclog.Logger
}

// clusterNodeConfig is the argument of newClusterNode.
type clusterNodeConfig struct {
	*ClusterConfig
	region, nodeID, dataDir string
	host                    fingerprint.Host
	store                   *store.Store
	identities              *identity.Issuer
	onAllocsChanged         func()
	logger                  hclog.Logger
}

// newClusterNode creates the part for a cluster.
func newClusterNode(ctx context.Context, c clusterNodeConfig) (n *clusterNode, err error) {
	region, nodeID, logger := c.region, c.nodeID, c.logger.Named("cluster")
	n = &clusterNode{region: region, tls: c.TLS, peers: &peerConnections{files: c.PeerTLS}, store: c.store, logger: logger}
	if _, err := n.loadTLS(); err != nil {
		return nil, err
	}
	addrs := c.Servers
	if len(addrs) == 0 {
		return nil, errors.New("no servers are configured: name them in client.servers")
	}
	addrs = slices.Concat(addrs, membership.KnownServers(c.store)) // a configured server may no longer exist
	n.pool = servers.New(servers.Config{
		Region: region,
		Dial: func(ctx context.Context, addr string) (*wire.Session, error) {
			dialer := wire.Dialer{TLS: n.config.Load(), Multiplex: c.Multiplex, Logger: logger}
			return dialer.Dial(ctx, addr)
		},
		Logger: logger,
	}, addrs)
	n.access = access.New(n.pool, region)
	n.member, err = membership.New(ctx, membership.Config{
		Region: region, NodeID: nodeID, Host: c.host, IntroductionToken: c.IntroductionToken, Pool: n.pool, Store: c.store,
		CredentialsPath: filepath.Join(c.dataDir, membership.CredentialsFile), Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	n.replica = replica.New(replica.Config{
		Region: region, NodeID: nodeID, Pool: n.pool, Member: n.member, Store: c.store,
		OnAllocsChanged: c.onAllocsChanged, Logger: logger,
	})
	n.registrations = registrations.New(registrations.Config{
		Region: region, NodeID: nodeID, Pool: n.pool, Member: n.member, Store: c.store, Logger: logger,
	})
	n.identities = workload.NewIdentities(workload.IdentitiesConfig{
		Region: region, Pool: n.pool, NodeToken: n.member.Token, Store: c.store, Records: c.identities, Logger: logger,
	})
	n.data = workload.NewData(workload.DataConfig{
		Region: region, Pool: n.pool, Registered: n.member.Registered(), Store: c.store, Logger: logger, ReadSettings: c.Reads,
	})
	n.peers.fetcher = migration.NewFetcher(migration.Config{
		Region: region, NodeID: nodeID, Pool: n.pool, NodeToken: n.member.Token,
		MigrateToken: func(allocID string) string { return n.readAlloc(allocID).MigrateToken },
		HasAlloc:     func(allocID string) bool { return c.store.Snapshot().Allocation(nil, allocID) != nil },
		TLS:          n.peers.cloneTLS(),
		Logger:       logger,
	})
	return n, nil
}

// SetClusterAPI sets the HTTP API through which the cluster's servers use the node; it must not check tokens. It is called before
// Run, and does nothing if the agent is not a cluster node.
func (a *Agent) SetClusterAPI(handler http.Handler) {
	if a.cluster == nil {
		return
	}
	member := a.cluster.member
	c := nodeapi.Config{
		NodeID: a.node.ID(), API: handler,
		FindAlloc: func(id string) *api.Allocation { return a.store.Snapshot().Allocation(nil, id) },
		FindRunner: func(id string) taskexec.Runner {
			if runner := a.allocs.AllocRunner(id); runner != nil {
				return runner
			}
			return nil
		},
		DisableRemoteExec: a.config.Cluster.DisableRemoteExec,
		RenewIdentity:     member.RenewIdentity,
		IdentityClaims:    func() (map[string]any, error) { return nodeapi.ParseClaims(member.Token()) },
	}
	if a.config.Cluster.AccessControl {
		c.AllowExec = a.allowExec
	}
	a.cluster.methods = nodeapi.Methods(c)
}

// allowExec returns an error if the token's owner may not run commands in a task.
func (a *Agent) allowExec(ctx context.Context, token, allocID, task string) error {
	runner := a.allocs.AllocRunner(allocID)
	if runner == nil {
		return nil // the request fails later, because no task runs
	}
	if runner.FSIsolation(task) != driver.FSIsolationNone {
		return nil // the servers have checked alloc-exec
	}
	return a.cluster.access.AllocNodeExec(ctx, token, runner.Alloc().Namespace)
}

// loadTLS reads the certificates for new connections to servers and other nodes. It reports whether they differ from those of the
// present connections.
func (n *clusterNode) loadTLS() (changed bool, err error) {
	for _, part := range []struct {
		files *wire.TLSFiles
		to    *atomic.Pointer[tls.Config]
	}{{n.tls, &n.config}, {n.peers.files, &n.peers.config}} {
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

// ReloadCertificatesForServers reads the certificates for connections to a cluster's servers and other nodes again. If they have
// changed, the agent reconnects to the servers, which ends the servers' open commands and streams. It does nothing if the agent
// is not a cluster node, or if the connections are not encrypted.
func (a *Agent) ReloadCertificatesForServers() error {
	if a.cluster == nil {
		return nil
	}
	changed, err := a.cluster.loadTLS()
	if changed {
		a.logger.Info("certificates for the servers have changed, connecting again")
		a.cluster.pool.CloseSessions()
	}
	return err
}

// run keeps the node in the cluster until ctx ends. It adds events to the allocations for which findAlloc returns a runner.
func (n *clusterNode) run(ctx context.Context, findAlloc func(id string) *allocrunner.Runner) {
	emit := func(allocID string, event *api.TaskEvent) {
		if runner := findAlloc(allocID); runner != nil {
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

// sendLastStates sends the states missing at the servers.
func (n *clusterNode) sendLastStates(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastStatesTimeout)
	defer cancel()
	if err := n.replica.SendStates(ctx); err != nil {
		n.logger.Warn("the next agent sends the last states of allocations to the servers", "error", err)
	}
}

// allocSource returns what the servers give to allocations. A new start of an unknown allocation waits for the end of its tasks.
func (n *clusterNode) allocSource(cleaner *orphans.Cleaner) *allocSource {
	return &allocSource{
		reports: n.replica, storeAdopted: n.replica.StoreAdoptedAllocs,
		services: n.registrations, tokens: n.identities, data: n.data,
		awaitNewStart: func(ctx context.Context, allocID string, onWait func(spanName string, event *api.TaskEvent)) error {
			err := cleaner.AwaitUnknownTasksEnded(ctx, allocID, func() { onWait(tracespan.WaitUnknownTasks, model.EventWaitingForUnknownTasks()) })
			if err != nil {
				return err
			}
			return n.replica.AwaitNewStart(ctx, allocID, onWait)
		},
		findRemotePrevious: n.peers.fetcher.Previous,
		serverAddrs:        n.pool.Addrs,
	}
}

// checkMode returns an error if allocations run that the agent would end, because the data directory was used by an agent that
// schedules for itself and the configuration names servers, or the other way around. It stores the mode.
func checkMode(ctx context.Context, s *store.Store, joinsCluster bool, logger hclog.Logger) error {
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
	for _, a := range snapshot.Allocations(nil, "") {
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
