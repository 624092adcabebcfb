package state

import (
	"errors"
	"time"
)

// ClusterMembership is what a Nomad cluster node keeps for its next start. It is secret.
type ClusterMembership struct {
	Region     string `store:"region"`
	NodeSecret string `store:"node_secret,secret"` // UUID by which the servers know this node
	// Identity is the node's token, signed by the servers; empty if they have signed none.
	Identity   string `store:"identity,secret"`
	Registered bool   `store:"registered"` // the servers have accepted a registration
	Left       bool   `store:"left"`       // the agent schedules for itself
	// CredentialsRejected: servers have rejected the node's credentials, and it has then registered with new ones.
	CredentialsRejected bool `store:"credentials_rejected"`
	// LastContact is the last successful registration or heartbeat; zero means never.
	LastContact time.Time `store:"last_contact"`
	Servers     []string  `store:"servers"` // last known server addresses
}

// CheckRecord returns an error if the secret is missing.
func (m ClusterMembership) CheckRecord() error {
	if m.NodeSecret == "" {
		return errors.New("the record of the cluster membership lacks the secret of the node")
	}
	return nil
}

// ClusterAlloc is what a Nomad cluster node keeps about an allocation from the servers besides the allocation itself. It is
// secret.
type ClusterAlloc struct {
	// ModifyIndex and CreateIndex are the indexes on the servers, which differ from those in the store.
	ModifyIndex uint64 `store:"modify_index"`
	CreateIndex uint64 `store:"create_index"`
	// StoppedByNode: the node has stopped the allocation because it had no contact with the servers for too long.
	StoppedByNode bool `store:"stopped_by_node"`
	// RemovedByServers: the servers no longer have the allocation, so it is deleted when it has ended.
	RemovedByServers bool `store:"removed_by_servers"`
	// MigrateToken authorizes the node to fetch the previous allocation's directory from another node.
	MigrateToken string `store:"migrate_token,secret"`
	// IdentityByTask is each task's default workload identity, signed by the servers.
	IdentityByTask map[string]string `store:"identity_by_task,secret"`
}

// ClusterServiceRemoval is a service registration that a Nomad cluster node has removed and servers may still have. Its id is
// in the record's name.
type ClusterServiceRemoval struct {
	Namespace   string `store:"namespace"`
	ServiceName string `store:"service_name"`
	AllocID     string `store:"alloc_id"`
}
