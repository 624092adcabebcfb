package state

import "strings"

// Names of the agent's records. A name that ends with a slash is a prefix, which an id follows.
const (
	BootIDName     = "boot_id"   // boot id of the machine during the last agent
	NodeMetaName   = "node_meta" // metadata of the node that was set through the API
	HookKeyName    = "hook_key"  // key that signs the capability tokens of hooks
	PluginInfoName = "plugin_info"

	DirectoryOwnerName = "directory_owner"  // data directory to which the state belongs
	VolumeCallName     = "host_volume_call" // id of the call of an external volume plugin that is in progress

	ClusterMembershipName  = "cluster"              // credentials of a node of a cluster
	ClusterReportIndexName = "cluster_report_index" // index of the servers after the last status of an allocation that they have accepted

	PluginProcessPrefix = "plugin/"   // running plugins
	NetworkPrefix       = "network/"  // networks of allocations
	CleanupPrefix       = "cleanup/"  // pending cleanups of hooks
	IdentityPrefix      = "identity/" // tokens of workload identities

	EndedAllocPrefix        = "ended/"            // the allocation has ended
	CollectAllocAtEndPrefix = "collect/"          // the directory of the allocation must be removed when the allocation has ended
	AttachedHooksPrefix     = "attached/"         // the hooks of an ended allocation, which are called when the allocation is removed from the disk
	PendingRemovalPrefix    = "remains/"          // an allocation that is deleted and still on the disk
	ClusterAllocPrefix      = "cluster_alloc/"    // indexes and tokens of an allocation that servers have assigned
	ClusterReportedPrefix   = "cluster_reported/" // index of an allocation when the servers accepted its status
	// ClusterServiceRemovalPrefix is the prefix of the removed service registrations that servers may still have.
	ClusterServiceRemovalPrefix = "cluster_service_removal/"
	DeploymentFailurePrefix     = "deployment_failure/" // why an ended allocation was unhealthy for its deployment
	UnknownAllocPrefix          = "unknown_alloc/"      // an unknown allocation: its directory exists, and the state that had its records was lost
)

// AgentRecordKind defines one record of the agent, or all its records with one prefix.
type AgentRecordKind struct {
	// NameOrPrefix is the name of the record, or, if it ends with a slash, the prefix of the names.
	NameOrPrefix string
	// NewRecord returns a pointer to a zero record.
	NewRecord func() any
	// IsSealed means that the whole record is encrypted in the state file.
	IsSealed bool
}

// AgentRecordKinds are the kinds of the agent's records.
var AgentRecordKinds = []AgentRecordKind{
	newAgentRecordKind[string](BootIDName),
	newAgentRecordKind[map[string]*string](NodeMetaName),
	newAgentRecordKind[HookTokenSigningKey](HookKeyName),
	newAgentRecordKind[[]PluginInfo](PluginInfoName),
	newAgentRecordKind[DirectoryOwner](DirectoryOwnerName),
	newAgentRecordKind[string](VolumeCallName),
	newAgentRecordKind[PluginProcess](PluginProcessPrefix),
	newAgentRecordKind[NetworkRecord](NetworkPrefix),
	newSealedAgentRecordKind[CleanupRecord](CleanupPrefix),
	newSealedAgentRecordKind[TokenByIdentityName](IdentityPrefix),
	newAgentRecordKind[bool](EndedAllocPrefix),
	newAgentRecordKind[bool](CollectAllocAtEndPrefix),
	newAgentRecordKind[map[string]string](AttachedHooksPrefix),
	newAgentRecordKind[PendingRemoval](PendingRemovalPrefix),
	newSealedAgentRecordKind[ClusterMembership](ClusterMembershipName),
	newSealedAgentRecordKind[ClusterAlloc](ClusterAllocPrefix),
	newAgentRecordKind[uint64](ClusterReportIndexName),
	newAgentRecordKind[uint64](ClusterReportedPrefix),
	newAgentRecordKind[ClusterServiceRemoval](ClusterServiceRemovalPrefix),
	newAgentRecordKind[DeploymentFailureRecord](DeploymentFailurePrefix),
	newAgentRecordKind[bool](UnknownAllocPrefix),
}

func newAgentRecordKind[T any](nameOrPrefix string) AgentRecordKind {
	return AgentRecordKind{NameOrPrefix: nameOrPrefix, NewRecord: func() any { return new(T) }}
}

func newSealedAgentRecordKind[T any](nameOrPrefix string) AgentRecordKind {
	r := newAgentRecordKind[T](nameOrPrefix)
	r.IsSealed = true
	return r
}

// AgentRecordKindOf returns the kind of the agent's record with the given name, or nil if this build has no such record.
func AgentRecordKindOf(name string) *AgentRecordKind {
	prefix, _, hasPrefix := strings.Cut(name, "/")
	if hasPrefix {
		name = prefix + "/"
	}
	for i := range AgentRecordKinds {
		if AgentRecordKinds[i].NameOrPrefix == name {
			return &AgentRecordKinds[i]
		}
	}
	return nil
}
