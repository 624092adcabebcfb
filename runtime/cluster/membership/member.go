package membership

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const (
	// recordChangeDelay collects changes of the node's record that come together, because the servers evaluate the node's jobs after
	// each registration with a change.
	recordChangeDelay = 2 * time.Second
	// maxEvents limits the events per call; the servers keep as many.
	maxEvents = 10
	// minBeatInterval limits the heartbeats servers can cause with short times.
	minBeatInterval = 100 * time.Millisecond
	// The server list and the identity are stored at each heartbeat.
	maxServers       = 1000
	maxAddrBytes     = 300
	maxIdentityBytes = 64 << 10
)

// serverPool is the part of servers.Pool a Member needs.
type serverPool interface {
	Call(ctx context.Context, method string, request, response any) error
	CallBlocking(ctx context.Context, maxBlock time.Duration, method string, request, response any) error
	SetServers(list []*protocol.Server, nodes int32)
	WaitRetry(ctx context.Context, max time.Duration) error
	Addrs() []string
}

// nodeStore is the part of store.Store a Member needs.
type nodeStore interface {
	Snapshot() *store.Snapshot
	Update(ctx context.Context, fn func(*store.Txn) error) (index uint64, err error)
}

// Config configures a Member.
type Config struct {
	Region string
	NodeID string
	Host   fingerprint.Host // for the node's record, with its networks and processors
	// IntroductionToken is the token for the first registration; empty means none.
	IntroductionToken string
	CredentialsPath   string // Credentials file; empty means none
	Pool              serverPool
	Store             nodeStore
	Logger            hclog.Logger
}

// Member keeps the node registered. Its methods may be called concurrently.
type Member struct {
	config     Config
	registered chan struct{} // closed after the first successful registration under any agent, while mu is held
	wake       chan struct{} // receives a value when Run must send a heartbeat; capacity 1

	credentialsMu sync.Mutex
	written       Credentials // content of the file, or the zero value if it is not known

	isRestored bool // the record is from the credentials file, because the state was lost

	mu             sync.Mutex
	reportStates   func()                  // the argument of Run; nil before Run
	record         state.ClusterMembership // credentials; stored
	forceRenewal   bool                    // the servers must sign a new identity
	lastSent       *protocol.Node          // the last successfully registered record; nil before it
	lastEventIndex uint64                  // the node's events up to this store index were sent
}

// New returns a Member with earlier agents' credentials. It stores new credentials before it returns if there are none. It fails
// if the stored credentials are unreadable or belong to another region.
func New(ctx context.Context, c Config) (*Member, error) {
	m := &Member{config: c, registered: make(chan struct{}), wake: make(chan struct{}, 1)}
	known, err := c.Store.Snapshot().ReadAgentRecord(state.ClusterMembershipName, &m.record)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the credentials of the node: %w", err)
	case known && m.record.Region != c.Region:
		return nil, fmt.Errorf("this data directory belongs to a node of region %q, and the configuration has region %q: write region = %q, or use another data directory", m.record.Region, c.Region, m.record.Region)
	case !known:
		m.record = state.ClusterMembership{Region: c.Region, NodeSecret: uuid.NewString()}
		if saved, err := ReadCredentials(c.CredentialsPath); err != nil {
			c.Logger.Warn("the node registers as a new one", "error", err)
		} else if record, ok := saved.record(c.NodeID, c.Region); ok {
			m.record, m.isRestored = record, true
			c.Logger.Warn("the state is lost, the node keeps its id and its credentials", "node_id", c.NodeID)
		}
		if err := m.storeRecord(ctx, m.record); err != nil {
			return nil, fmt.Errorf("store the secret of the node: %w", err)
		}
	}
	if m.record.Registered {
		close(m.registered)
	}
	m.writeCredentials(m.record)
	return m, nil
}

// KnownServers returns the server addresses an earlier agent has known last.
func KnownServers(s *store.Store) []string {
	var record state.ClusterMembership
	if _, err := s.Snapshot().ReadAgentRecord(state.ClusterMembershipName, &record); err != nil {
		return nil
	}
	return record.Servers
}

// Registered returns a channel that is closed when the servers have accepted a registration, by this agent or an earlier one.
// From then on, other calls than the registration are possible.
func (m *Member) Registered() <-chan struct{} { return m.registered }

// Token returns the node's token for calls, which is secret.
func (m *Member) Token() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tokenLocked(identity)
}

// Secret returns the node's secret.
func (m *Member) Secret() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record.NodeSecret
}

// CredentialsRejected reports whether servers have rejected the node's credentials: they may not be the servers that have
// assigned a lost state's allocations.
func (m *Member) CredentialsRejected() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record.CredentialsRejected
}

// LastContact returns the time of the last successful registration or heartbeat, by this agent or an earlier one.
func (m *Member) LastContact() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record.LastContact
}

// Beat makes Run send a heartbeat at once. It does not block.
func (m *Member) Beat() {
	wait.Notify(m.wake)
}

// RenewIdentity makes the servers sign a new identity at the next heartbeat, which is sent at once.
func (m *Member) RenewIdentity() {
	m.mu.Lock()
	m.forceRenewal = true
	m.mu.Unlock()
	m.Beat()
}

// RegisterAgain makes Run register the node soon, because restored servers may have an earlier record of it. It does not block.
func (m *Member) RegisterAgain() {
	m.mu.Lock()
	m.lastSent = nil
	m.mu.Unlock()
	m.Beat()
}

// ConfirmRegistered asks the servers whether they have the node. It blocks until they have answered.
func (m *Member) ConfirmRegistered(ctx context.Context) error {
	_, err := m.sendHeartbeat(ctx, identity)
	if err != nil {
		m.Beat() // Run registers the node if the servers do not have it
	}
	return err
}

// Run registers the node and keeps it registered until ctx ends. It must be called once. The store must have the node, or
// get it later.
//
// Run calls reportStates when the servers have marked the node otherwise than ready. They mark it ready again after its
// allocations' states were reported, and a further heartbeat. reportStates must return soon, and may be nil.
func (m *Member) Run(ctx context.Context, reportStates func()) {
	m.mu.Lock()
	m.reportStates = reportStates
	m.mu.Unlock()
	if m.waitNodeRecord(ctx) != nil {
		return
	}
	next := registerUnknown
	if m.isRegistered() || m.isRestored {
		next = registerKnown
	}
	m.lastEventIndex = m.config.Store.Snapshot().Index()
	var ttl time.Duration
	for failures := 0; ; {
		ttlOfCall, result, err := m.execute(ctx, next)
		if ctx.Err() != nil {
			return
		}
		t := transitions[next][result]
		if result == accepted {
			failures, ttl = 0, ttlOfCall
		} else {
			failures++
		}
		m.log(next, t, err, failures)
		if t.forget {
			m.forgetRegistration(ctx)
		}
		next = t.next
		var waitErr error
		switch t.pause {
		case untilNextBeat:
			next, waitErr = m.waitNextBeat(ctx, next, ttl)
		case shortPause:
			waitErr = m.config.Pool.WaitRetry(ctx, 2*shortDelay)
		case longPause:
			waitErr = m.config.Pool.WaitRetry(ctx, longDelay)
		case retryPause:
			waitErr = m.config.Pool.WaitRetry(ctx, retryDelay(failures, time.Until(m.LastContact().Add(ttl+heartbeatGrace))))
		}
		if waitErr != nil {
			return
		}
	}
}

// retryDelay returns the maximum delay after the given number of failures: short while the servers still wait for the heartbeat,
// then growing.
func retryDelay(failures int, untilMissed time.Duration) time.Duration {
	if untilMissed > 0 {
		return 2 * shortDelay
	}
	return min(maxRetryDelay, time.Duration(failures)*2*shortDelay)
}

// log logs a transition's notice, and the first of several failures.
func (m *Member) log(s step, t transition, err error, failures int) {
	switch {
	case t.notice != "":
		m.config.Logger.Error(t.notice, "error", err)
	case err != nil && failures == 1:
		m.config.Logger.Warn("the servers cannot be reached; tasks continue to run", "call", s.action, "error", err)
	case err != nil:
		m.config.Logger.Debug("call failed again", "call", s.action, "failures", failures, "error", err)
	}
}

func (a action) String() string {
	return map[action]string{register: protocol.MethodRegisterNode, heartbeat: protocol.MethodUpdateNodeStatus}[a]
}

// waitNodeRecord blocks until the store has the node.
func (m *Member) waitNodeRecord(ctx context.Context) error {
	for {
		ws := store.NewWatchSet()
		if m.config.Store.Snapshot().Node(ws, m.config.NodeID) != nil {
			return nil
		}
		if err := ws.WatchCtx(ctx); err != nil {
			return err
		}
	}
}

// waitNextBeat blocks until the next heartbeat is due or was requested, and returns the next step: a registration if the node's
// record has changed. It sends the node's events meanwhile.
func (m *Member) waitNextBeat(ctx context.Context, next step, ttl time.Duration) (step, error) {
	// Servers add the jitter to ttl. A tenth less keeps the heartbeat in time if the machine is busy.
	due := time.NewTimer(max(ttl-ttl/10, minBeatInterval))
	defer due.Stop()
	for {
		ws := store.NewWatchSet()
		node := m.config.Store.Snapshot().Node(ws, m.config.NodeID)
		if node != nil {
			if m.hasChanged(node) {
				return registerKnown, wait.Sleep(ctx, recordChangeDelay)
			}
			m.sendNewEvents(ctx, node)
		}
		watchCtx, cancel := context.WithCancel(ctx)
		select {
		case <-due.C:
			cancel()
			return next, nil
		case <-m.wake:
			cancel()
			return next, nil
		case <-ws.WatchCh(watchCtx):
			cancel()
			if ctx.Err() != nil {
				return next, context.Cause(ctx)
			}
		}
	}
}

// hasChanged reports whether the node's record differs from the registered one.
func (m *Member) hasChanged(node *api.Node) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !reflect.DeepEqual(m.lastSent, newNodeRecord(node, &m.config.Host, m.record.NodeSecret))
}

// execute makes a step's call.
func (m *Member) execute(ctx context.Context, s step) (ttl time.Duration, result outcome, err error) {
	switch s.action {
	case register:
		ttl, err = m.sendRegistration(ctx, s.credential)
	default:
		ttl, err = m.sendHeartbeat(ctx, s.credential)
	}
	return ttl, outcomeOf(err), err
}

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return accepted
	case servers.IsPermissionDenied(err):
		return denied
	case servers.IsSecretMismatch(err):
		return secretMismatch
	case servers.IsNodeNotFound(err):
		return nodeUnknown
	default:
		return failed
	}
}

// tokenLocked returns a call's token.
func (m *Member) tokenLocked(c credential) string {
	switch {
	case c == introduction:
		return m.config.IntroductionToken
	case c == identity && m.record.Identity != "":
		return m.record.Identity
	default:
		return m.record.NodeSecret
	}
}

func (m *Member) writeOptions(c credential) protocol.WriteOptions {
	m.mu.Lock()
	defer m.mu.Unlock()
	return protocol.WriteOptions{Region: m.config.Region, AuthToken: m.tokenLocked(c)}
}

// sendRegistration registers the node.
func (m *Member) sendRegistration(ctx context.Context, c credential) (ttl time.Duration, err error) {
	node := m.config.Store.Snapshot().Node(nil, m.config.NodeID)
	if node == nil {
		return 0, errors.New("the store does not have the node")
	}
	record := newNodeRecord(node, &m.config.Host, m.Secret())
	request := protocol.RegisterNodeRequest{Node: record, WriteOptions: m.writeOptions(c)}
	var response protocol.NodeUpdateResponse
	if err := m.config.Pool.Call(ctx, protocol.MethodRegisterNode, &request, &response); err != nil {
		return 0, err
	}
	m.mu.Lock()
	m.lastSent = record
	m.mu.Unlock()
	m.config.Logger.Info("registered with the servers", "node_id", record.ID, "region", m.config.Region, "node_pool", record.NodePool)
	return response.HeartbeatTTL, m.applyResponse(ctx, &response)
}

// sendHeartbeat tells the servers that the node is alive.
func (m *Member) sendHeartbeat(ctx context.Context, c credential) (ttl time.Duration, err error) {
	request := protocol.UpdateNodeStatusRequest{NodeID: m.config.NodeID, Status: protocol.NodeStatusReady, WriteOptions: m.writeOptions(c)}
	m.mu.Lock()
	request.ForceIdentityRenewal = m.forceRenewal
	m.mu.Unlock()
	var response protocol.NodeUpdateResponse
	if err := m.config.Pool.Call(ctx, protocol.MethodUpdateNodeStatus, &request, &response); err != nil {
		return 0, err
	}
	if err := m.applyResponse(ctx, &response); err != nil {
		return 0, err
	}
	m.mu.Lock()
	reportStates := m.reportStates
	m.mu.Unlock()
	if response.Index > 0 && response.SignedIdentity == nil && reportStates != nil {
		reportStates() // the node's status has changed
	}
	return response.HeartbeatTTL, nil
}

// applyResponse stores the servers' answer: first the new identity, which counts from then on.
func (m *Member) applyResponse(ctx context.Context, r *protocol.NodeUpdateResponse) error {
	if err := checkResponse(r); err != nil {
		m.config.Logger.Error("rejected a response of a server", "server", r.Server, "error", err)
		return fmt.Errorf("response of server %s: %w", r.Server, err)
	}
	m.config.Pool.SetServers(r.Servers, r.NumNodes)
	m.mu.Lock()
	m.record.LastContact = time.Now() // also if the disk is full: the servers have answered
	record := m.record
	m.mu.Unlock()
	if r.SignedIdentity != nil {
		record.Identity = *r.SignedIdentity
	}
	record.Registered = true
	record.Servers = slices.Sorted(slices.Values(m.config.Pool.Addrs()))
	if err := m.storeRecord(ctx, record); err != nil {
		return fmt.Errorf("store the credentials of the node: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record = record
	if r.SignedIdentity != nil {
		m.forceRenewal = false
	}
	wait.CloseUnlessClosed(m.registered)
	return nil
}

// checkResponse returns an error, which names the field, if a response has something no Nomad server sends.
func checkResponse(r *protocol.NodeUpdateResponse) error {
	switch {
	case r.HeartbeatTTL < 0:
		return fmt.Errorf("field HeartbeatTTL is %v", r.HeartbeatTTL)
	case len(r.Servers) > maxServers:
		return fmt.Errorf("field Servers has %d entries, and may have %d", len(r.Servers), maxServers)
	case r.SignedIdentity != nil && len(*r.SignedIdentity) > maxIdentityBytes:
		return fmt.Errorf("field SignedIdentity has %d bytes, and may have %d", len(*r.SignedIdentity), maxIdentityBytes)
	}
	for i, server := range r.Servers {
		if server == nil || len(server.RPCAdvertiseAddr) > maxAddrBytes {
			return fmt.Errorf("field Servers[%d] has no address, or one of more than %d bytes", i, maxAddrBytes)
		}
	}
	return nil
}

func (m *Member) isRegistered() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record.Registered
}

// forgetRegistration makes the node count as never registered.
func (m *Member) forgetRegistration(ctx context.Context) {
	m.mu.Lock()
	m.record.Registered, m.record.Identity, m.record.CredentialsRejected = false, "", true
	record := m.record
	m.mu.Unlock()
	if err := m.storeRecord(ctx, record); err != nil {
		m.config.Logger.Error("credentials of the node not stored", "error", err)
	}
}

func (m *Member) storeRecord(ctx context.Context, record state.ClusterMembership) error {
	_, err := m.config.Store.Update(ctx, func(tx *store.Txn) error {
		tx.PutAgentRecord(state.ClusterMembershipName, record)
		return nil
	})
	m.writeCredentials(record)
	return err
}

// sendNewEvents sends the node's events stored since the last call. Events that cannot be sent are sent with the next ones.
func (m *Member) sendNewEvents(ctx context.Context, node *api.Node) {
	var events []*protocol.NodeEvent
	newest := m.lastEventIndex
	for _, e := range node.Events {
		if e.CreateIndex > m.lastEventIndex {
			newest = max(newest, e.CreateIndex)
			events = append(events, &protocol.NodeEvent{Message: e.Message, Subsystem: e.Subsystem, Details: e.Details, Timestamp: e.Timestamp})
		}
	}
	if len(events) == 0 {
		return
	}
	request := protocol.EmitNodeEventsRequest{
		NodeEvents:   map[string][]*protocol.NodeEvent{node.ID: events[max(0, len(events)-maxEvents):]},
		WriteOptions: m.writeOptions(identity),
	}
	if err := m.config.Pool.Call(ctx, protocol.MethodEmitNodeEvents, &request, &protocol.WriteMeta{}); err != nil {
		m.config.Logger.Debug("events of the node not sent", "error", err)
		return
	}
	m.lastEventIndex = newest
}
