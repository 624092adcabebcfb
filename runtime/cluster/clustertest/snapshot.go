package clustertest

import (
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Snapshot is the state of a cluster at one time.
type Snapshot struct {
	tables    map[string]uint64
	nodes     map[string]node
	jobs      map[[2]string]*job
	allocs    map[string]allocation
	nodeWrite map[string]uint64
	services  map[string]*api.ServiceRegistration
	variables map[[2]string]*api.Variable
}

// Snapshot returns the state of the cluster, as "nomad operator snapshot save" does.
func (c *Cluster) Snapshot() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &Snapshot{
		tables: maps.Clone(c.tables), nodes: map[string]node{}, jobs: maps.Clone(c.jobs), allocs: map[string]allocation{},
		nodeWrite: maps.Clone(c.nodeWrite), services: maps.Clone(c.services), variables: maps.Clone(c.variables),
	}
	for id, n := range c.nodes {
		s.nodes[id] = n.node
	}
	for id, a := range c.allocs {
		s.allocs[id] = a.clone()
	}
	return s
}

// clone returns a copy that does not change when a does.
func (a *allocation) clone() allocation {
	copied := *a
	copied.AllocStates = slices.Clone(a.AllocStates)
	if a.DeploymentStatus != nil {
		health := *a.DeploymentStatus
		copied.DeploymentStatus = &health
	}
	return copied
}

// Restore replaces the state of the cluster by an earlier one, as "nomad operator snapshot restore" does. The records have
// their earlier indexes, the next write has a higher one than all before. Nodes have FailoverHeartbeatTTL until their next
// heartbeat. Reads that block are answered at once, with the earlier index.
func (c *Cluster) Restore(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		n.stopTimer()
	}
	c.tables, c.nodeWrite = maps.Clone(s.tables), maps.Clone(s.nodeWrite)
	c.jobs, c.services, c.variables = maps.Clone(s.jobs), maps.Clone(s.services), maps.Clone(s.variables)
	c.nodes, c.allocs = map[string]*nodeEntry{}, map[string]*allocation{}
	for id, a := range s.allocs {
		restored := a.clone()
		c.allocs[id] = &restored
	}
	for id, n := range s.nodes {
		c.nodes[id] = &nodeEntry{node: n}
		switch n.Status {
		case statusDown:
		case statusDisconnected:
			c.startTimerLocked(id, c.config.FailoverHeartbeatTTL, c.loseNodeLocked)
		default:
			c.startHeartbeatTimerLocked(id, c.config.FailoverHeartbeatTTL)
		}
	}
	c.restores++
	c.changedLocked()
}
