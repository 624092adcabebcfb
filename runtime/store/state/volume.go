package state

import "github.com/hashicorp/nomad/api"

// HostVolumeOperation is a host volume plugin call.
type HostVolumeOperation string

// The operations for changing a volume.
const (
	HostVolumeCreate HostVolumeOperation = "create"
	HostVolumeDelete HostVolumeOperation = "delete"
)

// HostVolume is a dynamic host volume's record.
type HostVolume struct {
	Volume *api.HostVolume `store:"volume"` // without a plugin, the operator has made the directory and must delete it
	// PendingOperation is the operation that has failed or has no stored result yet. It is stored before the plugin is called,
	// so that the next agent can complete the operation if this agent exits during the call.
	PendingOperation HostVolumeOperation `store:"pending"`
}

// IsReady reports whether allocations can use the volume.
func (v *HostVolume) IsReady() bool { return v.Volume.State == api.HostVolumeStateReady }
