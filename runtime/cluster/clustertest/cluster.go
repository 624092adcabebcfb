package clustertest

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
)

// Config has the settings of a cluster. The zero value is a cluster of Nomad 2.0 without TLS and access control.
type Config struct {
	Region string // "global" if empty
	// TLS makes the servers accept only connections with TLS.
	TLS     *tls.Config
	Profile Profile
	// AccessControl requires tokens of users and tasks, as "acl { enabled = true }" does.
	AccessControl bool
	Introduction  Introduction
	// HeartbeatTTL is the TTL in the answers to registrations and heartbeats, without jitter; 15 seconds if zero.
	HeartbeatTTL time.Duration
	// HeartbeatGrace is how much later than the TTL a heartbeat may arrive; 10 seconds if zero.
	HeartbeatGrace time.Duration
	// FailoverHeartbeatTTL is how long a new leader waits for the first heartbeat of each node; 5 minutes if zero.
	FailoverHeartbeatTTL time.Duration
	// NodeIdentityTTL is the lifetime of the identities of nodes; 24 hours if zero.
	NodeIdentityTTL time.Duration
	Clock           Clock // the real time if nil
	// InMemory makes the servers listen on no sockets: nodes connect with Cluster.Dial, without TLS. With the real time as Clock
	// the cluster then has the virtual time of package synctest.
	InMemory bool
}

// Profile says of which version of Nomad the servers are.
type Profile int

// The profiles differ in what servers of a version do not have.
const (
	Version20  Profile = iota // everything
	Version110                // 1.7 to 1.10: no identities of nodes
	Version16                 // before 1.7: no Alloc.SignIdentities either, and Processors of nodes are ignored
)

func (p Profile) nodeIdentities() bool { return p == Version20 }
func (p Profile) signIdentities() bool { return p != Version16 }
func (p Profile) processors() bool     { return p != Version16 }

// Introduction says how servers treat the first registration of a node that has no introduction token.
type Introduction int

// The values are those of "client_introduction { enforcement }".
const (
	IntroductionWarn   Introduction = iota // accept it without a token, reject it with a wrong token
	IntroductionNone                       // accept it, also with a token for other nodes
	IntroductionStrict                     // reject it
)

// Cluster is the state that the servers of a region share, and its operator. Its methods may be called concurrently. A
// method without an error in its results reports a misuse, such as an unknown id, with Fatal, so that it must be called by
// the goroutine of the test. It is large because all tables of a server change together under one lock, and each method of
// the protocol is a method of it.
type Cluster struct {
	t       testing.TB
	config  Config
	clock   Clock
	ctx     context.Context // ends with the test
	signer  *tokenSigner
	faults  faultList
	calls   callLog
	serving sync.WaitGroup // all goroutines of all servers

	mu               sync.Mutex
	closed           bool
	changed          chan struct{} // closed and replaced at each change
	servers          []*Server
	leader           *Server // nil without a leader; a killed server until the test has set another leader
	lastUse          uint64  // counts uses of sessions
	index            uint64  // of the last write
	restores         int     // restored snapshots; each ends the reads that block
	tables           map[string]uint64
	nodes            map[string]*nodeEntry
	pools            map[string]bool
	jobs             map[[2]string]*job // by namespace and id
	allocs           map[string]*allocation
	nodeWrite        map[string]uint64 // index of the last change of the allocations of a node
	lastPort         int
	services         map[string]*api.ServiceRegistration
	variables        map[[2]string]*api.Variable // by namespace and path
	policies         map[string]*policyEntry
	roles            map[string]*roleEntry
	tokens           map[string]*tokenEntry // by secret
	managementSecret string                 // secret of the management token
}

// StartCluster starts n servers with one state. The first is the leader. They stop at the end of the test.
func StartCluster(t testing.TB, n int, config Config) *Cluster {
	t.Helper()
	setDefault(&config.Region, "global")
	setDefault(&config.HeartbeatTTL, 15*time.Second)
	setDefault(&config.HeartbeatGrace, 10*time.Second)
	setDefault(&config.FailoverHeartbeatTTL, 5*time.Minute)
	setDefault(&config.NodeIdentityTTL, 24*time.Hour)
	if config.Clock == nil {
		config.Clock = realClock{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Cluster{
		t: t, config: config, clock: config.Clock, ctx: ctx, signer: newTokenSigner(t),
		calls:   callLog{changed: make(chan struct{})},
		changed: make(chan struct{}), index: 10, tables: map[string]uint64{},
		nodes: map[string]*nodeEntry{}, pools: map[string]bool{"default": true}, jobs: map[[2]string]*job{},
		allocs: map[string]*allocation{}, nodeWrite: map[string]uint64{},
		services: map[string]*api.ServiceRegistration{}, variables: map[[2]string]*api.Variable{},
		policies: map[string]*policyEntry{}, roles: map[string]*roleEntry{}, tokens: map[string]*tokenEntry{},
	}
	c.addManagementToken()
	t.Cleanup(func() {
		c.close()
		cancel()
		c.serving.Wait()
	})
	for i := range n {
		s := &Server{Cluster: c}
		addr := "127.0.0.1:0"
		if config.InMemory {
			addr = fmt.Sprintf("server-%d:4647", i)
		}
		if err := s.start(addr); err != nil {
			t.Fatal(err)
		}
		c.servers = append(c.servers, s)
	}
	c.leader = c.servers[0]
	return c
}

// Start starts one server. It stops at the end of the test.
func Start(t testing.TB, config Config) *Server {
	t.Helper()
	return StartCluster(t, 1, config).servers[0]
}

func setDefault[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}

// close stops the servers and the timers.
func (c *Cluster) close() {
	c.mu.Lock()
	c.closed = true
	for _, n := range c.nodes {
		n.stopTimer()
	}
	servers := c.servers
	c.mu.Unlock()
	for _, s := range servers {
		s.Kill()
	}
}

// Servers returns all servers, killed ones included.
func (c *Cluster) Servers() []*Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Server(nil), c.servers...)
}

// Leader returns the leader, nil if there is none. It is a killed server if the leader was killed and SetLeader was not
// called since.
func (c *Cluster) Leader() *Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader
}

// SetLeader makes s the leader; with nil there is none, and writes and consistent reads fail with "No cluster leader". A
// new leader waits FailoverHeartbeatTTL for the next heartbeat of each node.
func (c *Cluster) SetLeader(s *Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = s
	for id, n := range c.nodes {
		if s == nil {
			n.stopTimer()
		} else if n.Status != statusDown && n.Status != statusDisconnected {
			c.startHeartbeatTimerLocked(id, c.config.FailoverHeartbeatTTL)
		}
	}
	c.changedLocked()
}

// Index returns the index of the last write.
func (c *Cluster) Index() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index
}

// writeLocked starts a write to tables and returns its index.
func (c *Cluster) writeLocked(tables ...string) uint64 {
	c.index++
	for _, table := range tables {
		c.tables[table] = c.index
	}
	c.changedLocked()
	return c.index
}

// tableIndexLocked returns the index of the last write to a table, at least 1.
func (c *Cluster) tableIndexLocked(table string) uint64 { return max(c.tables[table], 1) }

// changedLocked wakes everything that waits for a change.
func (c *Cluster) changedLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// wait waits until match, which is called with mu held, returns true.
func (c *Cluster) wait(ctx context.Context, subject string, match func() bool) error {
	for {
		c.mu.Lock()
		matched, changed := match(), c.changed
		c.mu.Unlock()
		if matched {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", subject, context.Cause(ctx))
		}
	}
}

func newID() string { return uuid.NewString() }
