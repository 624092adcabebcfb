package clustertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// clientUnknown is the client status of an allocation whose node is disconnected.
const clientUnknown = "unknown"

// clientTerminal reports whether a node has ended an allocation with the client status.
func clientTerminal(status string) bool {
	return status == "complete" || status == "failed" || status == "lost"
}

// serverTerminal reports whether the servers want the allocation to end.
func serverTerminal(a *allocation) bool {
	return a.DesiredStatus == "stop" || a.DesiredStatus == "evict"
}

// group returns the group of an allocation.
func (a *allocation) group() *taskGroup { return a.Job.group(a.TaskGroup) }

// group returns a group of the job, nil if it does not exist.
func (j *job) group(name string) *taskGroup {
	for _, g := range j.TaskGroups {
		if g.Name == name {
			return g
		}
	}
	return nil
}

// canReconnect reports whether an allocation survives that its node is disconnected.
func canReconnect(a *allocation) bool {
	disconnect := a.group().Disconnect
	return (a.ClientStatus == "running" || a.ClientStatus == clientUnknown) && !serverTerminal(a) && disconnect != nil && disconnect.LostAfter > 0
}

// changeAllocLocked notes that servers have changed an allocation.
func (c *Cluster) changeAllocLocked(a *allocation) {
	c.touchAllocLocked(a)
	a.AllocModifyIndex = a.ModifyIndex
}

// touchAllocLocked notes that an allocation has changed, by servers or its node.
func (c *Cluster) touchAllocLocked(a *allocation) {
	a.ModifyIndex, a.ModifyTime = c.writeLocked("allocs"), c.clock.Now().UnixNano()
	c.nodeWrite[a.NodeID] = a.ModifyIndex
}

// loseAllocLocked gives up an allocation whose node is down.
func (c *Cluster) loseAllocLocked(a *allocation) {
	a.DesiredStatus, a.DesiredDescription, a.ClientStatus = "stop", "alloc is lost since its node is down", "lost"
	c.deleteServicesOfLocked(a.ID)
	c.changeAllocLocked(a)
}

// disconnectAllocLocked makes an allocation unknown, because its node is disconnected.
func (c *Cluster) disconnectAllocLocked(a *allocation) {
	a.ClientStatus, a.ClientDescription = clientUnknown, "alloc is unknown since its node is disconnected"
	a.AllocStates = append(a.AllocStates, &allocState{Value: clientUnknown, Time: c.clock.Now()})
	a.FollowupEvalID = newID()
	c.changeAllocLocked(a)
}

// allocLocked returns a copy of an allocation, the zero value if it does not exist.
func (c *Cluster) allocLocked(id string) (protocol.Allocation, error) {
	var copied protocol.Allocation
	a, known := c.allocs[id]
	if !known {
		return copied, nil
	}
	if err := recode(a, &copied); err != nil {
		return copied, fmt.Errorf("copy allocation %s: %w", id, err)
	}
	return copied, nil
}

// Alloc returns what servers know about an allocation, with its job and what its node has reported, or false if the
// allocation does not exist.
func (c *Cluster) Alloc(id string) (protocol.Allocation, bool) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	a, err := c.allocLocked(id)
	if err != nil {
		c.t.Fatal(err)
	}
	return a, a.ID != ""
}

// WaitAlloc waits until match returns true for an allocation, and returns it. An allocation that does not exist is the
// zero value. The error is that of ctx.
func (c *Cluster) WaitAlloc(ctx context.Context, id string, match func(protocol.Allocation) bool) (found protocol.Allocation, err error) {
	var failed error
	err = c.wait(ctx, "allocation "+id, func() bool {
		found, failed = c.allocLocked(id)
		return failed != nil || match(found)
	})
	return found, errors.Join(err, failed)
}

// TaskToken returns the default identity of a task, which servers send with its allocation.
func (c *Cluster) TaskToken(allocID, task string) string {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	token := c.mustAllocLocked(allocID).SignedIdentities[task]
	if token == "" {
		c.t.Fatalf("allocation %s has no task %q", allocID, task)
	}
	return token
}

func (c *Cluster) mustAllocLocked(id string) *allocation {
	c.t.Helper()
	a := c.allocs[id]
	if a == nil {
		c.t.Fatalf("no allocation %s", id)
	}
	return a
}

// StopAlloc makes an allocation desired to stop.
func (c *Cluster) StopAlloc(id string) {
	c.SetDesired(id, "stop", "alloc not needed due to job update")
}

// SetDesired changes the desired status of an allocation, "run", "stop" or "evict", and its description.
func (c *Cluster) SetDesired(id, status, description string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.mustAllocLocked(id)
	a.DesiredStatus, a.DesiredDescription = status, description
	c.changeAllocLocked(a)
}

// GC removes the allocations that have ended, as "nomad system gc" does. They vanish from the polls of their nodes.
func (c *Cluster) GC() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeAllocsLocked(func(a *allocation) bool { return clientTerminal(a.ClientStatus) })
}

// removeAllocsLocked removes the allocations for which match returns true.
func (c *Cluster) removeAllocsLocked(match func(*allocation) bool) {
	for id, a := range c.allocs {
		if match(a) {
			delete(c.allocs, id)
			c.deleteServicesOfLocked(id)
			c.nodeWrite[a.NodeID] = c.writeLocked("allocs")
		}
	}
}

// getClientAllocs answers "Node.GetClientAllocs".
func (c *Cluster) getClientAllocs(r *request) (answer, error) {
	var get struct{ NodeID string }
	if err := r.decode(&get); err != nil {
		return answer{}, err
	}
	if !r.caller.isNode() {
		return answer{}, errPermissionDenied
	}
	if get.NodeID == "" {
		return answer{}, errors.New("missing node ID")
	}
	if get.NodeID != r.caller.nodeID {
		return answer{}, errPermissionDenied
	}
	indexes, tokens := map[string]uint64{}, map[string]string{}
	// A node that was purged has an empty map, although its allocations exist.
	if _, known := c.nodes[get.NodeID]; known {
		r.session.useLocked(get.NodeID)
		for _, a := range c.allocsOfLocked(get.NodeID) {
			indexes[a.ID] = a.AllocModifyIndex
			token, err := c.migrateTokenLocked(a)
			if err != nil {
				return answer{}, err
			}
			if token != "" {
				tokens[a.ID] = token
			}
		}
	}
	return answer{object{"Allocs": indexes, "MigrateTokens": tokens}, c.tableIndexLocked("allocs"), max(1, c.nodeWrite[get.NodeID])}, nil
}

// migrateTokenLocked returns the token for the directory of the previous allocation, empty if a does not migrate it from
// another node.
func (c *Cluster) migrateTokenLocked(a *allocation) (string, error) {
	previous, known := c.allocs[a.PreviousAllocation]
	disk := a.group().EphemeralDisk
	if !known || previous.NodeID == a.NodeID || disk == nil || !disk.Migrate || !disk.Sticky {
		return "", nil
	}
	source, known := c.nodes[previous.NodeID]
	if !known {
		return "", nil
	}
	return MigrateToken(previous.ID, source.SecretID)
}

// maySeeAlloc reports whether a node may see the allocation: it is in the pool of the node.
func (c *Cluster) maySeeAlloc(by caller, a *allocation) bool {
	if !by.isNode() {
		return false
	}
	if by.nodeID == a.NodeID {
		return true
	}
	own, other := c.nodes[by.nodeID], c.nodes[a.NodeID]
	return own != nil && other != nil && own.NodePool == other.NodePool
}

// getAllocs answers Alloc.GetAllocs.
func (c *Cluster) getAllocs(r *request) (answer, error) {
	var get struct{ AllocIDs []string }
	if err := r.decode(&get); err != nil {
		return answer{}, err
	}
	if !r.caller.isNode() {
		return answer{}, errPermissionDenied
	}
	var found []*allocation
	var index uint64
	for _, id := range get.AllocIDs {
		a, known := c.allocs[id]
		if !known {
			continue
		}
		if !c.maySeeAlloc(r.caller, a) {
			return answer{}, errPermissionDenied
		}
		found, index = append(found, a), max(index, a.ModifyIndex)
	}
	if len(found) == 0 {
		index = c.tableIndexLocked("allocs")
	}
	return answer{body: object{"Allocs": found, "SignedIdentities": nil}, index: index}, nil
}

// getAlloc answers Alloc.GetAlloc.
func (c *Cluster) getAlloc(r *request) (answer, error) {
	var get struct{ AllocID string }
	if err := r.decode(&get); err != nil {
		return answer{}, err
	}
	if len(get.AllocID) != 36 {
		return answer{}, errors.New("alloc lookup failed: index error: UUID must be 36 characters")
	}
	a, known := c.allocs[get.AllocID]
	if c.config.AccessControl && (known && !c.maySeeAlloc(r.caller, a) && !r.caller.mayUseNamespace(a.Namespace, "read-job") || !known && !r.caller.isNode() && !r.caller.isManagement()) {
		return answer{}, wire.ServerError(fmt.Sprintf("Unknown allocation %q", get.AllocID))
	}
	if !known {
		return answer{body: object{"Alloc": nil}, index: c.tableIndexLocked("allocs")}, nil
	}
	found := *a
	found.SignedIdentities = nil
	return answer{body: object{"Alloc": &found}, index: a.ModifyIndex}, nil
}

// updateAllocs answers "Node.UpdateAlloc".
func (c *Cluster) updateAllocs(r *request) (answer, error) {
	var update struct {
		Alloc []*allocation
		Evals []any
	}
	if err := r.decode(&update); err != nil {
		return answer{}, err
	}
	if !r.caller.isNode() {
		return answer{}, errPermissionDenied
	}
	if len(update.Alloc) == 0 {
		return answer{}, errors.New("must update at least one allocation")
	}
	if len(update.Evals) > 0 {
		return answer{}, errors.New("evals field must not be set")
	}
	nodeID := update.Alloc[0].NodeID
	if nodeID == "" {
		return answer{}, errors.New("missing node ID")
	}
	n, known := c.nodes[nodeID]
	if !known {
		return answer{}, fmt.Errorf("node %s not found", nodeID)
	}
	if nodeID != r.caller.nodeID {
		return answer{}, errPermissionDenied
	}
	if n.Status == statusDown || n.Status == statusDisconnected {
		return answer{}, fmt.Errorf("node %s is not allowed to update allocs while in status %s", nodeID, n.Status)
	}
	index := c.writeLocked("allocs")
	n.LastAllocUpdateIndex = index
	for _, reported := range update.Alloc {
		if a := c.allocs[reported.ID]; a != nil {
			c.mergeReportLocked(a, reported, index)
		}
	}
	if n.DrainStrategy != nil {
		c.finishDrainLocked(n)
	}
	return answer{body: object{"Index": index}}, nil
}

// mergeReportLocked takes over the parts of a report that belong to the node.
func (c *Cluster) mergeReportLocked(a, reported *allocation, index uint64) {
	reconnected := a.ClientStatus == clientUnknown
	a.ClientStatus, a.ClientDescription = reported.ClientStatus, reported.ClientDescription
	a.TaskStates, a.NetworkStatus = reported.TaskStates, reported.NetworkStatus
	a.ModifyIndex, a.ModifyTime = index, c.clock.Now().UnixNano()
	c.nodeWrite[a.NodeID] = index
	if health := reported.DeploymentStatus; health != nil && health.Healthy != nil {
		have := a.DeploymentStatus
		if have == nil {
			have = &protocol.DeploymentStatus{}
			a.DeploymentStatus = have
		}
		if have.Healthy == nil || *have.Healthy != *health.Healthy {
			have.Healthy, have.Timestamp, have.ModifyIndex = health.Healthy, health.Timestamp, index
		}
	}
	if clientTerminal(a.ClientStatus) {
		c.deleteServicesOfLocked(a.ID)
	}
	key := [2]string{a.Namespace, a.JobID}
	if j := c.jobs[key]; j != nil && j.Status == "pending" && a.ClientStatus == "running" {
		running := *j // allocations have the job as it was
		running.Status = "running"
		c.jobs[key] = &running
	}
	if reconnected && !clientTerminal(a.ClientStatus) {
		// The scheduler decides in favour of the allocation that is back.
		a.AllocStates = append(a.AllocStates, &allocState{Value: a.ClientStatus, Time: c.clock.Now()})
		a.FollowupEvalID = ""
		if j := c.jobs[key]; j != nil && j.Version == a.Job.Version {
			a.Job = j
		}
		c.changeAllocLocked(a)
	}
}

// signIdentities answers Alloc.SignIdentities.
func (c *Cluster) signIdentities(r *request) (answer, error) {
	var sign struct{ Identities []*protocol.IdentityRequest }
	if err := r.decode(&sign); err != nil {
		return answer{}, err
	}
	if !r.caller.isNode() {
		return answer{}, errPermissionDenied
	}
	if len(sign.Identities) == 0 {
		return answer{}, errors.New("no identities requested")
	}
	var signed []*protocol.SignedIdentity
	var rejections []*protocol.IdentityRejection
	var index uint64
	for _, wanted := range sign.Identities {
		reject := func(reason string) {
			rejections = append(rejections, &protocol.IdentityRejection{IdentityRequest: *wanted, Reason: reason})
		}
		a, known := c.allocs[wanted.AllocID]
		if !known {
			reject("allocation not found")
			continue
		}
		if !c.maySeeAlloc(r.caller, a) {
			return answer{}, errPermissionDenied
		}
		index = max(index, a.CreateIndex)
		definition, reason := a.findIdentity(wanted)
		if reason != "" {
			reject(reason)
			continue
		}
		now := c.clock.Now()
		token, err := c.signTaskLocked(a, wanted.WorkloadIdentifier, definition)
		if err != nil {
			return answer{}, err
		}
		var expiration time.Time
		if definition.TTL > 0 {
			expiration = now.Add(definition.TTL).UTC()
		}
		signed = append(signed, &protocol.SignedIdentity{IdentityRequest: *wanted, JWT: token, Expiration: expiration})
	}
	if index == 0 {
		index = c.tableIndexLocked("allocs")
	}
	return answer{body: object{"SignedIdentities": signed, "Rejections": rejections}, index: index}, nil
}

// findIdentity returns the definition of an identity, or the reason for which there is none.
func (a *allocation) findIdentity(wanted *protocol.IdentityRequest) (found *workloadIdentity, reason string) {
	const serviceWorkload = 1
	if wanted.WorkloadType == serviceWorkload {
		services := slices.Clone(a.group().Services)
		for _, t := range a.group().Tasks {
			services = append(services, t.Services...)
		}
		for _, s := range services {
			if s.Name == wanted.WorkloadIdentifier && s.Identity != nil && s.Identity.Name == wanted.IdentityName {
				return s.Identity, ""
			}
		}
		return nil, "identity not found"
	}
	for _, t := range a.group().Tasks {
		if t.Name != wanted.WorkloadIdentifier {
			continue
		}
		for _, identity := range t.Identities {
			if identity.Name == wanted.IdentityName {
				return identity, ""
			}
		}
		return nil, "identity not found"
	}
	return nil, "task not found"
}

// signTaskLocked signs an identity of a task.
func (c *Cluster) signTaskLocked(a *allocation, task string, definition *workloadIdentity) (string, error) {
	cl := claims{
		Subject:   fmt.Sprintf("%s:%s:%s:%s:%s:%s", c.config.Region, a.Namespace, a.JobID, a.TaskGroup, task, definition.Name),
		Namespace: a.Namespace, JobID: a.JobID, AllocationID: a.ID, Task: task,
	}
	if len(definition.Audience) == 1 {
		cl.Audience = definition.Audience[0]
	} else if len(definition.Audience) > 1 {
		cl.Audience = definition.Audience
	}
	return c.signer.sign(cl, c.clock.Now(), definition.TTL)
}
