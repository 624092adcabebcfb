package clustertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	goversion "github.com/hashicorp/go-version"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// maxNodeEvents is the number of events that a server keeps for a node.
const maxNodeEvents = 10

// firstNodeIdentityVersion is the first version of nodes that get an identity.
var firstNodeIdentityVersion = goversion.Must(goversion.NewVersion("1.11.0-beta.1"))

var nodePoolName = regexp.MustCompile("^[a-zA-Z0-9-_]{1,128}$")

// nodeEntry is a node and its timer.
type nodeEntry struct {
	node
	generation int // of the timer, because a timer that is stopped can be about to act
	stop       func() bool
}

func (n *nodeEntry) stopTimer() {
	n.generation++
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

// Node is what servers know about a node.
type Node struct {
	// Record is the last record that the node has sent.
	Record                   protocol.Node
	Status                   string
	SchedulingEligibility    string
	Events                   []protocol.NodeEvent
	Draining                 bool
	LastMissedHeartbeatIndex uint64
	LastAllocUpdateIndex     uint64
	CreateIndex, ModifyIndex uint64
}

// recode copies the fields of src to those of dst with the same names.
func recode(src, dst any) error {
	b, err := wire.EncodeBytes(src)
	if err != nil {
		return err
	}
	return wire.DecodeBytes(b, dst)
}

// Node returns a node, or false if the cluster has no node with the id.
func (c *Cluster) Node(id string) (Node, bool) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.nodeLocked(id)
	if err != nil {
		c.t.Fatal(err)
	}
	return n, n.Record.ID != ""
}

// nodeLocked returns a node, the zero value if the cluster has no node with the id.
func (c *Cluster) nodeLocked(id string) (Node, error) {
	entry, known := c.nodes[id]
	if !known {
		return Node{}, nil
	}
	n := Node{
		Status: entry.Status, SchedulingEligibility: entry.SchedulingEligibility, Draining: entry.DrainStrategy != nil,
		LastMissedHeartbeatIndex: entry.LastMissedHeartbeatIndex, LastAllocUpdateIndex: entry.LastAllocUpdateIndex,
		CreateIndex: entry.CreateIndex, ModifyIndex: entry.ModifyIndex,
	}
	for _, e := range entry.Events {
		n.Events = append(n.Events, protocol.NodeEvent{Message: e.Message, Subsystem: e.Subsystem, Details: e.Details, Timestamp: e.Timestamp})
	}
	if err := recode(&entry.node, &n.Record); err != nil {
		return Node{}, fmt.Errorf("copy node %s: %w", id, err)
	}
	return n, nil
}

// WaitNode waits until match returns true for a node, and returns it. A node that does not exist is the zero value. The
// error is that of ctx.
func (c *Cluster) WaitNode(ctx context.Context, id string, match func(Node) bool) (found Node, err error) {
	var failed error
	err = c.wait(ctx, "node "+id, func() bool {
		found, failed = c.nodeLocked(id)
		return failed != nil || match(found)
	})
	return found, errors.Join(err, failed)
}

// MissHeartbeat lets the time for the next heartbeat of a node be over now.
func (c *Cluster) MissHeartbeat(id string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[id] == nil {
		c.t.Fatalf("no node %s", id)
	}
	c.missHeartbeatLocked(id)
}

// SetEligibility makes a node "eligible" or "ineligible".
func (c *Cluster) SetEligibility(id, eligibility string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[id]
	if n == nil {
		c.t.Fatalf("no node %s", id)
	}
	n.SchedulingEligibility = eligibility
	n.ModifyIndex = c.writeLocked("nodes")
}

// PurgeNode removes a node and its allocations, as "nomad node purge" does. Its polls return an empty map at once.
func (c *Cluster) PurgeNode(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, known := c.nodes[id]; known {
		c.removeNodeLocked(n)
	}
}

// removeNodeLocked removes a node. A server keeps the allocations as lost until they are collected; they come back to the
// node when it registers again.
func (c *Cluster) removeNodeLocked(n *nodeEntry) uint64 {
	n.stopTimer()
	delete(c.nodes, n.ID)
	index := c.writeLocked("nodes", "allocs")
	c.nodeWrite[n.ID] = index
	for _, a := range c.allocsOfLocked(n.ID) {
		if !serverTerminal(a) && !clientTerminal(a.ClientStatus) {
			c.loseAllocLocked(a)
		}
	}
	return index
}

// addNodeEventLocked adds an event to a node, which keeps the last events.
func (c *Cluster) addNodeEventLocked(n *nodeEntry, e *nodeEvent) {
	n.Events = append(n.Events, e)
	n.Events = n.Events[max(0, len(n.Events)-maxNodeEvents):]
}

// registerNode answers "Node.Register".
func (c *Cluster) registerNode(r *request) (answer, error) {
	if !r.caller.mayRegister() {
		return answer{}, errPermissionDenied
	}
	var register struct{ Node *node }
	if err := r.decode(&register); err != nil {
		return answer{}, err
	}
	n := register.Node
	if err := validateNode(n); err != nil {
		return answer{}, err
	}
	old, known := c.nodes[n.ID]
	if known && old.SecretID != n.SecretID {
		return answer{}, wire.ServerError("node secret ID does not match. Not registering node.")
	}
	if !known && !c.mayIntroduce(r.caller, n) {
		return answer{}, errPermissionDenied
	}
	now := c.clock.Now()
	c.pools[n.NodePool] = true
	completeResources(n, c.config.Profile)
	n.StatusUpdatedAt, n.ComputedClass = now.Unix(), "v1:"+n.NodeClass+n.Datacenter+n.NodePool
	index := c.writeLocked("nodes")
	n.CreateIndex, n.ModifyIndex = index, index
	if known {
		n.Status, n.SchedulingEligibility, n.DrainStrategy, n.LastDrain = old.Status, old.SchedulingEligibility, old.DrainStrategy, old.LastDrain
		n.Events, n.CreateIndex = old.Events, old.CreateIndex
		n.LastMissedHeartbeatIndex, n.LastAllocUpdateIndex = old.LastMissedHeartbeatIndex, old.LastAllocUpdateIndex
		n.IdentitySigningKeyID = old.IdentitySigningKeyID
		old.node = *n
	} else {
		old = &nodeEntry{node: *n}
		c.nodes[n.ID] = old
		c.addNodeEventLocked(old, &nodeEvent{Message: "Node registered", Subsystem: "Cluster", Timestamp: now})
	}
	r.session.useLocked(n.ID)
	result, err := c.nodeUpdateLocked(r, old, index, false)
	if err == nil && old.Status == statusDown {
		c.evaluateLocked(old, result.body)
	}
	return result, err
}

// mayRegister reports whether the caller may call "Node.Register" at all.
func (cl *caller) mayRegister() bool {
	switch cl.kind {
	case anonymous, nodeCaller, expiredNode, introducedNode:
		return true
	default:
		return false
	}
}

// mayIntroduce reports whether the caller may register a node whose id is not known.
func (c *Cluster) mayIntroduce(by caller, n *node) bool {
	switch by.kind {
	case nodeCaller:
		return by.nodeID == n.ID // the node was purged
	case introducedNode:
		matches := by.claims.NodePool == n.NodePool && (by.claims.NodeName == "" || by.claims.NodeName == n.Name)
		return matches || c.config.Introduction == IntroductionNone
	default:
		return c.config.Introduction != IntroductionStrict
	}
}

// validateNode checks a record, and sets the defaults of a server.
func validateNode(n *node) error {
	if n == nil {
		return errors.New("missing node for client registration")
	}
	for _, field := range []struct {
		missing bool
		name    string
	}{
		{n.ID == "", "node ID"},
		{n.Datacenter == "", "datacenter"},
		{n.Name == "", "node name"},
		{len(n.Attributes) == 0, "attributes"},
		{n.SecretID == "", "node secret ID"},
	} {
		if field.missing {
			return fmt.Errorf("missing %s for client registration", field.name)
		}
	}
	n.Status, n.NodePool = cmp.Or(n.Status, statusInitializing), cmp.Or(n.NodePool, "default")
	n.SchedulingEligibility = cmp.Or(n.SchedulingEligibility, "eligible")
	switch {
	case !slices.Contains([]string{statusInitializing, statusReady, statusDown, statusDisconnected}, n.Status):
		return errors.New("invalid status for node")
	case n.NodePool == "all":
		return errors.New(`node is not allowed to register in node pool "all"`)
	case !nodePoolName.MatchString(n.NodePool):
		return fmt.Errorf("invalid node pool: invalid name %q, must match regex %s", n.NodePool, nodePoolName)
	case len(n.ID) != 36:
		return errors.New("node lookup failed: index error: UUID must be 36 characters")
	}
	return nil
}

// completeResources adds to the record what a server derives: the topology of the processors, and the networks of the
// interfaces.
func completeResources(n *node, profile Profile) {
	if n.NodeResources == nil {
		return
	}
	have := n.NodeResources
	if !profile.processors() {
		have.Processors = protocol.Processors{}
	} else if have.Processors.Topology == nil && len(have.Cpu.ReservableCpuCores) > 0 {
		topology := &protocol.Topology{Nodes: []uint8{0}, Distances: [][]uint16{{10}}, OverrideTotalCompute: uint64(have.Cpu.CpuShares)}
		for _, id := range have.Cpu.ReservableCpuCores {
			speed := uint64(have.Cpu.CpuShares) / uint64(len(have.Cpu.ReservableCpuCores))
			topology.Cores = append(topology.Cores, protocol.Core{ID: id, Grade: true, GuessSpeed: speed})
		}
		have.Processors.Topology = topology
	}
	if len(have.NodeNetworks) == 0 {
		for _, network := range have.Networks {
			derived := &protocol.NodeNetwork{Mode: network.Mode, Device: network.Device, Speed: network.MBits}
			if network.IP != "" {
				derived.Addresses = []protocol.NodeNetworkAddress{{Alias: "default", Address: network.IP}}
			}
			have.NodeNetworks = append(have.NodeNetworks, derived)
		}
	}
}

// updateNodeStatus answers "Node.UpdateStatus".
func (c *Cluster) updateNodeStatus(r *request) (answer, error) {
	var update struct {
		NodeID, Status       string
		ForceIdentityRenewal bool
	}
	if err := r.decode(&update); err != nil {
		return answer{}, err
	}
	// A server without access control lets a node update itself only, one with access control lets it update all.
	if !r.caller.isNode() || !c.config.AccessControl && r.caller.nodeID != update.NodeID {
		return answer{}, errPermissionDenied
	}
	if update.NodeID == "" {
		return answer{}, errors.New("missing node ID for client status update")
	}
	if !slices.Contains([]string{statusInitializing, statusReady, statusDown, statusDisconnected}, update.Status) {
		return answer{}, errors.New("invalid status for node")
	}
	n, known := c.nodes[update.NodeID]
	if !known {
		return answer{}, errors.New("node not found")
	}
	r.session.useLocked(n.ID)

	next := update.Status
	if next == statusReady {
		next = nextStatus(n.Status, heartbeatReceived, c.factsLocked(n))
	}
	if next == n.Status {
		return c.nodeUpdateLocked(r, n, 0, update.ForceIdentityRenewal)
	}
	if n.Status == statusDown {
		c.addNodeEventLocked(n, &nodeEvent{Message: "Node reregistered by heartbeat", Subsystem: "Cluster", Timestamp: c.clock.Now(), CreateIndex: c.index + 1})
	}
	evaluate := next == statusReady || n.Status == statusDisconnected
	c.setNodeStatusLocked(n, next)
	if next == statusReady {
		n.LastMissedHeartbeatIndex = 0
	}
	result, err := c.nodeUpdateLocked(r, n, n.ModifyIndex, update.ForceIdentityRenewal)
	if err == nil && evaluate {
		c.evaluateLocked(n, result.body)
	}
	return result, err
}

// evaluateLocked adds to the answer the evaluations of the jobs of a node whose status has changed.
func (c *Cluster) evaluateLocked(n *nodeEntry, body object) {
	allocs := c.allocsOfLocked(n.ID)
	if len(allocs) == 0 {
		return
	}
	ids := map[string]string{}
	for _, a := range allocs {
		if !serverTerminal(a) && !clientTerminal(a.ClientStatus) {
			ids[a.JobID] = newID()
		}
	}
	if len(ids) > 0 {
		body["EvalIDs"] = slices.Collect(maps.Values(ids))
	}
	body["EvalCreateIndex"] = c.writeLocked("evals")
}

// setNodeStatusLocked changes the status of a node.
func (c *Cluster) setNodeStatusLocked(n *nodeEntry, status string) {
	n.Status, n.StatusUpdatedAt = status, c.clock.Now().Unix()
	n.ModifyIndex = c.writeLocked("nodes")
}

// factsLocked returns the facts for the next status of a node.
func (c *Cluster) factsLocked(n *nodeEntry) nodeFacts {
	facts := nodeFacts{reported: true}
	for _, a := range c.allocsOfLocked(n.ID) {
		if clientTerminal(a.ClientStatus) {
			continue
		}
		if n.LastMissedHeartbeatIndex > n.LastAllocUpdateIndex {
			facts.reported = false
		}
		if canReconnect(a) {
			facts.reconnectable = true
		}
	}
	return facts
}

// nodeUpdateLocked returns the answer to a registration or a heartbeat whose write had the index, zero without a write.
func (c *Cluster) nodeUpdateLocked(r *request, n *nodeEntry, index uint64, renew bool) (answer, error) {
	ttl := c.config.HeartbeatTTL
	if n.Status == statusDown {
		ttl = 0
	} else if n.Status != statusDisconnected {
		c.startHeartbeatTimerLocked(n.ID, ttl+c.config.HeartbeatGrace)
	}
	var servers []object
	for _, s := range c.servers {
		if s.listener != nil {
			servers = append(servers, object{"RPCAdvertiseAddr": s.addr, "Datacenter": "dc1", "RPCMajorVersion": 0, "RPCMinorVersion": 0})
		}
	}
	var identity any
	if c.needsIdentity(r.caller, n, renew) {
		cl := claims{
			Subject: fmt.Sprintf("node:%s:%s:%s:default", c.config.Region, n.NodePool, n.ID),
			NodeID:  n.ID, NodePool: n.NodePool, NodeClass: n.NodeClass, NodeDatacenter: n.Datacenter,
		}
		token, err := c.signer.sign(cl, c.clock.Now(), c.config.NodeIdentityTTL)
		if err != nil {
			return answer{}, fmt.Errorf("failed to sign node identity claims: %w", err)
		}
		identity, n.IdentitySigningKeyID = token, c.signer.keyID
	}
	leader := ""
	if c.leader != nil {
		leader = c.leader.addr
	}
	return answer{body: object{
		"HeartbeatTTL": ttl, "SignedIdentity": identity, "Servers": servers, "LeaderRPCAddr": leader, "NumNodes": len(c.nodes),
		"SchedulingEligibility": n.SchedulingEligibility, "Features": 0, "EvalIDs": nil, "EvalCreateIndex": 0,
		"NodeModifyIndex": index, "Index": index, "LastContact": 0, "KnownLeader": false, "NextToken": "",
	}}, nil
}

// needsIdentity reports whether the answer to a registration or a heartbeat has a new identity.
func (c *Cluster) needsIdentity(by caller, n *nodeEntry, renew bool) bool {
	version, err := goversion.NewVersion(n.Attributes["nomad.version"])
	if err != nil || version.LessThan(firstNodeIdentityVersion) || !c.config.Profile.nodeIdentities() {
		return false
	}
	left := time.Duration(by.claims.Expiry-c.clock.Now().Unix()) * time.Second
	return renew || by.kind != nodeCaller || by.bySecret || left < c.config.NodeIdentityTTL/3 ||
		by.claims.NodePool != n.NodePool || by.claims.NodeClass != n.NodeClass || by.claims.NodeDatacenter != n.Datacenter
}

// startHeartbeatTimerLocked makes a node miss its heartbeat after d.
func (c *Cluster) startHeartbeatTimerLocked(id string, d time.Duration) {
	c.startTimerLocked(id, d, c.missHeartbeatLocked)
}

// startTimerLocked calls act for a node after d, unless the timer of the node is started or stopped before.
func (c *Cluster) startTimerLocked(id string, d time.Duration, act func(id string)) {
	n := c.nodes[id]
	n.stopTimer()
	generation := n.generation
	n.stop = c.clock.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.closed && c.nodes[id] == n && n.generation == generation {
			act(id)
		}
	})
}

// missHeartbeatLocked changes a node, and its allocations, whose heartbeat has not arrived.
func (c *Cluster) missHeartbeatLocked(id string) {
	n := c.nodes[id]
	n.stopTimer()
	facts := c.factsLocked(n)
	c.setNodeStatusLocked(n, nextStatus(n.Status, heartbeatMissed, facts))
	n.LastMissedHeartbeatIndex = n.ModifyIndex
	c.addNodeEventLocked(n, &nodeEvent{Message: "Node heartbeat missed", Subsystem: "Cluster", Timestamp: c.clock.Now(), CreateIndex: n.ModifyIndex})
	var lostAfter time.Duration
	for _, a := range c.allocsOfLocked(id) {
		switch {
		case clientTerminal(a.ClientStatus) || serverTerminal(a):
		case canReconnect(a):
			c.disconnectAllocLocked(a)
			lostAfter = max(lostAfter, a.group().Disconnect.LostAfter)
		default:
			c.loseAllocLocked(a)
		}
	}
	if n.Status == statusDisconnected {
		c.startTimerLocked(id, lostAfter, c.loseNodeLocked)
	}
}

// loseNodeLocked makes a disconnected node down, because none of its allocations can be reconnected any longer.
func (c *Cluster) loseNodeLocked(id string) {
	n := c.nodes[id]
	c.setNodeStatusLocked(n, nextStatus(n.Status, allLost, nodeFacts{}))
	for _, a := range c.allocsOfLocked(id) {
		if a.ClientStatus == clientUnknown {
			c.loseAllocLocked(a)
		}
	}
}

// emitNodeEvents answers "Node.EmitEvents".
func (c *Cluster) emitNodeEvents(r *request) (answer, error) {
	var emit struct{ NodeEvents map[string][]*nodeEvent }
	if err := r.decode(&emit); err != nil {
		return answer{}, err
	}
	if !r.caller.isNode() {
		return answer{}, errPermissionDenied
	}
	if len(emit.NodeEvents) == 0 {
		return answer{}, errors.New("no node events given")
	}
	for id, events := range emit.NodeEvents {
		if len(events) == 0 {
			return answer{}, fmt.Errorf("no node events given for node %q", id)
		}
		if id != r.caller.nodeID || c.nodes[id] == nil {
			return answer{}, errPermissionDenied
		}
	}
	index := c.writeLocked("nodes")
	for id, events := range emit.NodeEvents {
		for _, e := range events {
			e.CreateIndex = index
			c.addNodeEventLocked(c.nodes[id], e)
		}
	}
	return answer{body: object{"Index": index}}, nil
}

// updateNodeDrain answers "Node.UpdateDrain". The drain stops all allocations at once, and ends at once if there are none.
func (c *Cluster) updateNodeDrain(r *request) (answer, error) {
	var drain struct {
		NodeID        string
		DrainStrategy *drainStrategy
		MarkEligible  bool
		Meta          map[string]string
	}
	if err := r.decode(&drain); err != nil {
		return answer{}, err
	}
	if c.config.AccessControl && !(r.caller.isNode() && r.caller.nodeID == drain.NodeID) && !r.caller.mayUseNodes("write") {
		return answer{}, errPermissionDenied
	}
	if drain.NodeID == "" {
		return answer{}, errors.New("missing node ID for drain update")
	}
	n, known := c.nodes[drain.NodeID]
	if !known {
		return answer{}, errors.New("node not found")
	}
	now := c.clock.Now()
	n.DrainStrategy = drain.DrainStrategy
	index := c.writeLocked("nodes")
	n.ModifyIndex = index
	switch {
	case n.DrainStrategy != nil:
		n.SchedulingEligibility = "ineligible"
		n.DrainStrategy.StartedAt, n.DrainStrategy.ForceDeadline = now, now.Add(n.DrainStrategy.Deadline)
		accessor := "token:acls-disabled"
		if c.config.AccessControl {
			accessor = "client:" + r.caller.nodeID
		}
		n.LastDrain = &drainRecord{StartedAt: now, UpdatedAt: now, Status: "draining", AccessorID: accessor, Meta: drain.Meta}
		c.addNodeEventLocked(n, &nodeEvent{Message: "Node drain strategy set", Subsystem: "Drain", Timestamp: now, CreateIndex: index})
		for _, a := range c.allocsOfLocked(n.ID) {
			if !serverTerminal(a) && !clientTerminal(a.ClientStatus) && (!n.DrainStrategy.IgnoreSystemJobs || a.Job.Type != "system") {
				migrate := true
				a.DesiredTransition = &desiredTransition{Migrate: &migrate}
				c.changeAllocLocked(a)
				a.DesiredStatus, a.DesiredDescription = "stop", "alloc is being migrated"
				c.changeAllocLocked(a)
			}
		}
		c.finishDrainLocked(n)
	default:
		if n.LastDrain != nil && n.LastDrain.Status == "draining" {
			n.LastDrain.Status, n.LastDrain.UpdatedAt = "canceled", now
		}
		if drain.MarkEligible {
			n.SchedulingEligibility = "eligible"
		}
	}
	return answer{body: object{"Index": index, "NodeModifyIndex": index, "EvalIDs": nil, "EvalCreateIndex": 0}}, nil
}

// finishDrainLocked ends the drain of a node whose allocations have ended.
func (c *Cluster) finishDrainLocked(n *nodeEntry) {
	for _, a := range c.allocsOfLocked(n.ID) {
		if !clientTerminal(a.ClientStatus) && (!n.DrainStrategy.IgnoreSystemJobs || a.Job.Type != "system") {
			return
		}
	}
	n.DrainStrategy = nil
	now := c.clock.Now()
	n.LastDrain.Status, n.LastDrain.UpdatedAt = "complete", now
	n.ModifyIndex = c.writeLocked("nodes")
	c.addNodeEventLocked(n, &nodeEvent{Message: "Node drain complete", Subsystem: "Drain", Timestamp: now, CreateIndex: n.ModifyIndex})
}

// getNode answers "Node.GetNode".
func (c *Cluster) getNode(r *request) (answer, error) {
	var get struct{ NodeID string }
	if err := r.decode(&get); err != nil {
		return answer{}, err
	}
	if c.config.AccessControl && !r.caller.isNode() && !r.caller.mayUseNodes("read") {
		return answer{}, errPermissionDenied
	}
	if get.NodeID == "" {
		return answer{}, errors.New("missing node ID")
	}
	n, known := c.nodes[get.NodeID]
	if !known {
		return answer{body: object{"Node": nil}, index: c.tableIndexLocked("nodes")}, nil
	}
	found := n.node
	found.SecretID = ""
	return answer{body: object{"Node": &found}, index: found.ModifyIndex}, nil
}

// deregisterNode answers "Node.Deregister".
func (c *Cluster) deregisterNode(r *request) (answer, error) {
	var deregister struct{ NodeID string }
	if err := r.decode(&deregister); err != nil {
		return answer{}, err
	}
	if c.config.AccessControl && !r.caller.mayUseNodes("write") {
		return answer{}, errPermissionDenied
	}
	if deregister.NodeID == "" {
		return answer{}, errors.New("missing node ID for client deregistration")
	}
	n, known := c.nodes[deregister.NodeID]
	if !known {
		return answer{}, errors.New("node not found")
	}
	index := c.removeNodeLocked(n)
	return answer{body: object{
		"HeartbeatTTL": 0, "SignedIdentity": nil, "Servers": nil, "LeaderRPCAddr": "", "NumNodes": 0, "SchedulingEligibility": "",
		"Features": 0, "EvalIDs": nil, "EvalCreateIndex": 0, "NodeModifyIndex": index, "Index": index, "LastContact": 0, "KnownLeader": false, "NextToken": "",
	}}, nil
}

// allocsOfLocked returns the allocations of a node in the order of their creation.
func (c *Cluster) allocsOfLocked(nodeID string) []*allocation {
	var allocs []*allocation
	for _, a := range c.allocs {
		if a.NodeID == nodeID {
			allocs = append(allocs, a)
		}
	}
	slices.SortFunc(allocs, func(a, b *allocation) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), strings.Compare(a.ID, b.ID))
	})
	return allocs
}
