package state

import "strings"

// Names and prefixes of the names of the records of the agent. An id follows a prefix.
const (
	BootIDName     = "boot_id"   // boot id of the machine during the last agent
	NodeMetaName   = "node_meta" // metadata of the node that was set through the API
	HookKeyName    = "hook_key"  // key that signs the capability tokens of hooks
	PluginInfoName = "plugin_info"

	DirectoryOwnerName = "directory_owner"  // data directory to which the state belongs
	VolumeCallName     = "host_volume_call" // id of the call of an external volume plugin that is in progress

	PluginProcessPrefix = "plugin/"   // running plugins
	NetworkPrefix       = "network/"  // networks of allocations
	CleanupPrefix       = "cleanup/"  // pending cleanups of hooks
	IdentityPrefix      = "identity/" // tokens of workload identities

	EndedAllocPrefix        = "ended/"         // the allocation has ended
	CollectAllocAtEndPrefix = "collect/"       // the directory of the allocation must be removed when the allocation has ended
	AttachedHooksPrefix     = "attached/"      // the hooks of an ended allocation, which are called when the allocation is removed from the disk
	PendingRemovalPrefix    = "remains/"       // an allocation that is deleted and still on the disk
	UnknownAllocPrefix      = "unknown_alloc/" // an unknown allocation: its directory exists, and the state that had its records was lost
)

// AgentRecord is a kind of the agent's records.
type AgentRecord struct {
	// Name is the name of the record, or, if it ends with a slash, the prefix of the names.
	Name string
	// New returns a pointer to a zero record.
	New func() any
	// Sealed means that the record is sealed as a whole.
	Sealed bool
}

// AgentRecords are the kinds of the agent's records.
var AgentRecords = []AgentRecord{
	newAgentRecord[string](BootIDName),
	newAgentRecord[map[string]*string](NodeMetaName),
	newAgentRecord[HookKey](HookKeyName),
	newAgentRecord[[]PluginInfo](PluginInfoName),
	newAgentRecord[DirectoryOwner](DirectoryOwnerName),
	newAgentRecord[string](VolumeCallName),
	newAgentRecord[PluginProcess](PluginProcessPrefix),
	newAgentRecord[NetworkRecord](NetworkPrefix),
	newSealedAgentRecord[CleanupRecord](CleanupPrefix),
	newSealedAgentRecord[TaskTokens](IdentityPrefix),
	newAgentRecord[bool](EndedAllocPrefix),
	newAgentRecord[bool](CollectAllocAtEndPrefix),
	newAgentRecord[map[string]string](AttachedHooksPrefix),
	newAgentRecord[PendingRemoval](PendingRemovalPrefix),
	newAgentRecord[bool](UnknownAllocPrefix),
}

func newAgentRecord[T any](name string) AgentRecord {
	return AgentRecord{Name: name, New: func() any { return new(T) }}
}

func newSealedAgentRecord[T any](name string) AgentRecord {
	r := newAgentRecord[T](name)
	r.Sealed = true
	return r
}

// AgentRecordOf returns the kind of the agent's record with a name, nil if this build has no such record.
func AgentRecordOf(name string) *AgentRecord {
	prefix, _, hasPrefix := strings.Cut(name, "/")
	if hasPrefix {
		name = prefix + "/"
	}
	for i := range AgentRecords {
		if AgentRecords[i].Name == name {
			return &AgentRecords[i]
		}
	}
	return nil
}
