package acl

// Capability is a single right in a namespace, in host volumes, in node pools, in variables, or in the operator block. Its text is
// the name in a policy.
type Capability string

// Deny, as a capability or a policy, takes all other rights of its label away.
const Deny Capability = "deny"

// Capabilities in a namespace.
const (
	AllocExec                 Capability = "alloc-exec"
	AllocLifecycle            Capability = "alloc-lifecycle"
	AllocNodeExec             Capability = "alloc-node-exec"
	CancelDeployment          Capability = "cancel-deployment"
	CSIListVolume             Capability = "csi-list-volume"
	CSIMountVolume            Capability = "csi-mount-volume"
	CSIReadVolume             Capability = "csi-read-volume"
	CSIRegisterPlugin         Capability = "csi-register-plugin"
	CSIWriteVolume            Capability = "csi-write-volume"
	DeleteServiceRegistration Capability = "delete-service-registration"
	DeregisterJob             Capability = "deregister-job"
	DispatchJob               Capability = "dispatch-job"
	EvaluateJob               Capability = "evaluate-job"
	FailDeployment            Capability = "fail-deployment"
	ForcePeriodicJob          Capability = "force-periodic-job"
	GCAllocation              Capability = "gc-allocation"
	HostVolumeCreate          Capability = "host-volume-create"
	HostVolumeDelete          Capability = "host-volume-delete"
	HostVolumeRead            Capability = "host-volume-read"
	HostVolumeRegister        Capability = "host-volume-register"
	HostVolumeWrite           Capability = "host-volume-write"
	ListJobs                  Capability = "list-jobs"
	ListScalingPolicies       Capability = "list-scaling-policies"
	ParseJob                  Capability = "parse-job"
	PauseAllocation           Capability = "pause-allocation"
	PauseDeployment           Capability = "pause-deployment"
	PlanJob                   Capability = "plan-job"
	PromoteDeployment         Capability = "promote-deployment"
	PurgeJob                  Capability = "purge-job"
	ReadFS                    Capability = "read-fs"
	ReadJob                   Capability = "read-job"
	ReadJobScaling            Capability = "read-job-scaling"
	ReadLogs                  Capability = "read-logs"
	ReadScalingPolicy         Capability = "read-scaling-policy"
	RegisterJob               Capability = "register-job"
	RevertJob                 Capability = "revert-job"
	ScaleJob                  Capability = "scale-job"
	SentinelOverride          Capability = "sentinel-override"
	SetAllocHealthDeployment  Capability = "set-alloc-health-deployment"
	StableJob                 Capability = "stable-job"
	SubmitJob                 Capability = "submit-job"
	SubmitRecommendation      Capability = "submit-recommendation"
	TagJobVersion             Capability = "tag-job-version"
	UnblockDeployment         Capability = "unblock-deployment"
)

// Capabilities in an operator block.
const (
	KeyringDelete Capability = "keyring-delete"
	KeyringRead   Capability = "keyring-read"
	KeyringRotate Capability = "keyring-rotate"
	LicenseRead   Capability = "license-read"
	SnapshotSave  Capability = "snapshot-save"
)

// Capabilities for a host volume.
const (
	MountReadOnly  Capability = "mount-readonly"
	MountReadWrite Capability = "mount-readwrite"
)

// Capabilities for a node pool, and, except Delete and with List and Destroy, for a variable.
const (
	Read    Capability = "read"
	Write   Capability = "write"
	Delete  Capability = "delete"
	List    Capability = "list"
	Destroy Capability = "destroy"
)

// vocabulary has the policies and capabilities of one kind of block.
type vocabulary struct {
	// byPolicy has the capabilities for which each policy stands. A policy that is missing is invalid.
	byPolicy map[string][]Capability
	// capabilities are all names a list of capabilities can have.
	capabilities []Capability
	// implied has the capabilities that a capability in the list adds.
	implied map[Capability][]Capability
}

var (
	namespaceReadCapabilities = []Capability{ListJobs, ParseJob, ReadJob, CSIListVolume, CSIReadVolume, ReadJobScaling, ListScalingPolicies, ReadScalingPolicy, HostVolumeRead}

	namespaceVocabulary = vocabulary{
		byPolicy: map[string][]Capability{
			"": nil, "deny": {Deny}, "read": namespaceReadCapabilities,
			"write": append(namespaceReadCapabilities[:len(namespaceReadCapabilities):len(namespaceReadCapabilities)],
				ScaleJob, SubmitJob, DispatchJob, ReadLogs, ReadFS, AllocExec, AllocLifecycle, CSIMountVolume, CSIWriteVolume, SubmitRecommendation, HostVolumeCreate),
			"scale": {ListScalingPolicies, ReadScalingPolicy, ReadJobScaling, ScaleJob, ReadJob, SubmitRecommendation},
		},
		capabilities: []Capability{
			Deny, AllocExec, AllocLifecycle, AllocNodeExec, CancelDeployment, CSIListVolume, CSIMountVolume, CSIReadVolume, CSIRegisterPlugin,
			CSIWriteVolume, DeleteServiceRegistration, DeregisterJob, DispatchJob, EvaluateJob, FailDeployment, ForcePeriodicJob, GCAllocation,
			HostVolumeCreate, HostVolumeDelete, HostVolumeRead, HostVolumeRegister, HostVolumeWrite, ListJobs, ListScalingPolicies, ParseJob,
			PauseAllocation, PauseDeployment, PlanJob, PromoteDeployment, PurgeJob, ReadFS, ReadJob, ReadJobScaling, ReadLogs, ReadScalingPolicy,
			RegisterJob, RevertJob, ScaleJob, SentinelOverride, SetAllocHealthDeployment, StableJob, SubmitJob, SubmitRecommendation, TagJobVersion,
			UnblockDeployment,
		},
		implied: map[Capability][]Capability{
			HostVolumeWrite:    {HostVolumeRegister, HostVolumeCreate, HostVolumeDelete, HostVolumeRead},
			HostVolumeRegister: {HostVolumeCreate, HostVolumeRead},
			HostVolumeCreate:   {HostVolumeRead},
		},
	}
	operatorVocabulary = vocabulary{
		byPolicy: map[string][]Capability{
			"": nil, "deny": {Deny}, "read": {LicenseRead, KeyringRead}, "scale": nil,
			"write": {SnapshotSave, LicenseRead, KeyringRotate, KeyringRead, KeyringDelete},
		},
		capabilities: []Capability{Deny, KeyringDelete, KeyringRead, KeyringRotate, LicenseRead, SnapshotSave},
	}
	hostVolumeVocabulary = vocabulary{
		byPolicy:     map[string][]Capability{"": nil, "deny": {Deny}, "read": {MountReadOnly}, "write": {MountReadOnly, MountReadWrite}, "scale": nil},
		capabilities: []Capability{Deny, MountReadOnly, MountReadWrite},
	}
	nodePoolVocabulary = vocabulary{
		byPolicy:     map[string][]Capability{"": nil, "deny": {Deny}, "read": {Read}, "write": {Delete, Read, Write}, "scale": nil},
		capabilities: []Capability{Delete, Deny, Read, Write},
	}
	variableVocabulary = vocabulary{capabilities: []Capability{Deny, Destroy, List, Read, Write}}

	simplePolicies = []string{"deny", "read", "write", "scale"} // policies of node, agent and quota blocks
	pluginPolicies = []string{"deny", "list", "read", "write"}
)

// capabilitySet is a set of a vocabulary's capabilities. A vocabulary has less than 64.
type capabilitySet uint64

// bitByCapability has a bit for each capability of every vocabulary.
var bitByCapability = func() map[Capability]capabilitySet {
	bits := make(map[Capability]capabilitySet)
	for _, v := range []vocabulary{namespaceVocabulary, operatorVocabulary, hostVolumeVocabulary, nodePoolVocabulary, variableVocabulary} {
		for _, c := range v.capabilities {
			if bits[c] == 0 {
				bits[c] = 1 << len(bits)
			}
		}
	}
	return bits
}()

func setOf(capabilities []Capability) capabilitySet {
	var set capabilitySet
	for _, c := range capabilities {
		set |= bitByCapability[c]
	}
	return set
}

// hasAny reports whether the set has one of the capabilities.
func (s capabilitySet) hasAny(capabilities []Capability) bool { return s&setOf(capabilities) != 0 }

// NamespaceCapabilities returns the names of all capabilities in a namespace, except deny.
func NamespaceCapabilities() []Capability {
	return append([]Capability(nil), namespaceVocabulary.capabilities[1:]...)
}
