package state

import "strings"

// Names of the agent's records. A name ending with a slash is a prefix; an id follows it.
const (
	BootIDName     = "boot_id"   // the machine's boot id during the last agent
	NodeMetaName   = "node_meta" // node metadata set through the API
	HookKeyName    = "hook_key"  // key for signing capability tokens of hooks
	PluginInfoName = "plugin_info"

	DirectoryOwnerName = "directory_owner"  // the state's data directory
	VolumeCallName     = "host_volume_call" // id of the external volume plugin call in progress
	ACLBootstrapName   = "acl_bootstrap"    // the index of the last bootstrap of access control

	ClusterMembershipName  = "cluster"              // a cluster node's credentials
	ClusterReportIndexName = "cluster_report_index" // the servers' index after the last allocation status they have accepted

	PluginProcessPrefix = "plugin/"   // running plugins
	NetworkPrefix       = "network/"  // allocation networks
	CleanupPrefix       = "cleanup/"  // pending hook cleanups
	IdentityPrefix      = "identity/" // workload identity tokens

	EndedAllocPrefix        = "ended/"            // the allocation has ended; a Reader has the record only until the allocation's row stands for it: see store.Reader.AllocationEnded
	CollectAllocAtEndPrefix = "collect/"          // the allocation's directory must be removed when it has ended
	AttachedHooksPrefix     = "attached/"         // an ended allocation's hooks, called when it is removed from the disk
	PendingRemovalPrefix    = "remains/"          // an allocation that is deleted and still on the disk
	ClusterAllocPrefix      = "cluster_alloc/"    // indexes and tokens for an allocation assigned by servers
	ClusterReportedPrefix   = "cluster_reported/" // an allocation's index when the servers accepted its status
	// ClusterServiceRemovalPrefix is the prefix for removed service registrations that servers may still have.
	ClusterServiceRemovalPrefix = "cluster_service_removal/"
	DeploymentFailurePrefix     = "deployment_failure/" // why an ended allocation was unhealthy for its deployment
	UnknownAllocPrefix          = "unknown_alloc/"      // an unknown allocation: its directory exists, and the state with its records was lost
)

// AgentRecordKind defines one agent record, or all agent records with one prefix.
type AgentRecordKind struct {
	// NameOrPrefix is the record's name, or, if it ends with a slash, the prefix of the names.
	NameOrPrefix string
	// NewRecord returns a pointer to a zero record.
	NewRecord func() any
	// IsSealed: the whole record is encrypted in the state file.
	IsSealed bool
}

// AgentRecordKinds are the kinds of agent records.
var AgentRecordKinds = []AgentRecordKind{
	newAgentRecordKind[string](BootIDName),
	newAgentRecordKind[map[string]*string](NodeMetaName),
	newAgentRecordKind[HookTokenSigningKey](HookKeyName),
	newAgentRecordKind[[]PluginInfo](PluginInfoName),
	newAgentRecordKind[DirectoryOwner](DirectoryOwnerName),
	newAgentRecordKind[string](VolumeCallName),
	newAgentRecordKind[uint64](ACLBootstrapName),
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

// AgentRecordKindOf returns the agent record kind for the given name, or nil if this build has no such record.
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
