package clustertest

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

// Changed returns a channel that is closed at the next change of the state.
func (c *Cluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// PutAlloc stores an allocation that a scheduler of the test has placed or changed, in place of Place. A known allocation keeps
// what its node has reported. The job must have the form in which schedulers get jobs.
func (c *Cluster) PutAlloc(scheduled *api.Allocation) error {
	j, err := c.canonicalJob(scheduled.Job)
	if err != nil {
		return err
	}
	a := &allocation{}
	if err := recode(scheduled, a); err != nil {
		return fmt.Errorf("convert allocation %s: %w", scheduled.ID, err)
	}
	a.Job = j
	group := a.group()
	if group == nil {
		return fmt.Errorf("job %s has no group %q", j.ID, a.TaskGroup)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.allocs[a.ID]
	if old == nil {
		a.SignedIdentities, a.SigningKeyID = map[string]string{}, c.signer.keyID
		for _, t := range group.Tasks {
			if a.SignedIdentities[t.Name], err = c.signTaskLocked(a, t.Name, t.Identity); err != nil {
				return err
			}
		}
	} else {
		a.ClientStatus, a.ClientDescription = old.ClientStatus, old.ClientDescription
		a.TaskStates, a.AllocStates, a.NetworkStatus = old.TaskStates, old.AllocStates, old.NetworkStatus
		a.SignedIdentities, a.SigningKeyID, a.CreateIndex = old.SignedIdentities, old.SigningKeyID, old.CreateIndex
		if a.DeploymentID == old.DeploymentID && old.DeploymentStatus != nil {
			health := *old.DeploymentStatus
			health.Canary = a.DeploymentStatus != nil && a.DeploymentStatus.Canary
			a.DeploymentStatus = &health
		}
	}
	c.allocs[a.ID] = a
	c.changeAllocLocked(a)
	if old == nil {
		a.CreateIndex = a.ModifyIndex
	}
	return nil
}

// RemoveAlloc removes an allocation. It vanishes from the polls of its node, which stops it.
func (c *Cluster) RemoveAlloc(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeAllocsLocked(func(a *allocation) bool { return a.ID == id })
}

// AllocsAfter returns the allocations of a node that have changed after the write with the index, and the index of the last
// write.
func (c *Cluster) AllocsAfter(nodeID string, index uint64) (changed []protocol.Allocation, last uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.allocsOfLocked(nodeID) {
		if a.ModifyIndex <= index {
			continue
		}
		copied, err := c.allocLocked(a.ID)
		if err != nil {
			return nil, 0, err
		}
		changed = append(changed, copied)
	}
	return changed, c.index, nil
}
