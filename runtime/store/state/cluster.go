package state

import (
	"errors"
	"time"
)

// ClusterMembership is what a node of a Nomad cluster keeps for its next start. It is secret.
type ClusterMembership struct {
	Region     string `store:"region"`
	NodeSecret string `store:"node_secret,secret"` // UUID that the servers know this node by
	// Identity is the token of the node that the servers have signed; empty if they have signed none.
	Identity   string `store:"identity,secret"`
	Registered bool   `store:"registered"` // the servers have accepted a registration
	Left       bool   `store:"left"`       // the agent schedules for itself
	// CredentialsRejected means that servers have rejected credentials of the node, which then has registered with new ones.
	CredentialsRejected bool `store:"credentials_rejected"`
	// LastContact is the time of the last successful registration or heartbeat; zero means never.
	LastContact time.Time `store:"last_contact"`
	Servers     []string  `store:"servers"` // addresses of the servers that were known last
}

// CheckRecord returns an error if the secret is missing.
func (m ClusterMembership) CheckRecord() error {
	if m.NodeSecret == "" {
		return errors.New("the record of the cluster membership lacks the secret of the node")
	}
	return nil
}

// ClusterAlloc is what a node of a Nomad cluster keeps about an allocation of the servers beside the allocation itself. It
// is secret.
type ClusterAlloc struct {
	// ModifyIndex and CreateIndex are the indexes of the servers, which differ from those of the store.
	ModifyIndex uint64 `store:"modify_index"`
	CreateIndex uint64 `store:"create_index"`
	// StoppedByNode means that the node has stopped the allocation because it had no contact with the servers for too long.
	StoppedByNode bool `store:"stopped_by_node"`
	// RemovedByServers means that the servers no longer have the allocation, so that it is deleted when it has ended.
	RemovedByServers bool `store:"removed_by_servers"`
	// MigrateToken authorizes the node to fetch the directory of the previous allocation from another node.
	MigrateToken string `store:"migrate_token,secret"`
	// IdentityByTask is the default workload identity of each task, which the servers have signed.
	IdentityByTask map[string]string `store:"identity_by_task,secret"`
}

// ClusterServiceRemoval is a service registration that a node of a Nomad cluster has removed, and that servers may still
// have. Its id is in the name of the record.
type ClusterServiceRemoval struct {
	Namespace   string `store:"namespace"`
	ServiceName string `store:"service_name"`
	AllocID     string `store:"alloc_id"`
}
