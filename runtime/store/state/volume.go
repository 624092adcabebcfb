package state

import "github.com/hashicorp/nomad/api"

// HostVolumeOperation is a call of a host volume plugin.
type HostVolumeOperation string

// The operations that change a volume.
const (
	HostVolumeCreate HostVolumeOperation = "create"
	HostVolumeDelete HostVolumeOperation = "delete"
)

// HostVolume is the record of a dynamic host volume.
type HostVolume struct {
	Volume *api.HostVolume `store:"volume"` // without a plugin, the operator has made the directory and must delete it
	// PendingOperation is the operation whose result is not stored yet, or that has failed. It is stored before the plugin
	// is called, so that the next agent can complete the operation if this agent exits during the call.
	PendingOperation HostVolumeOperation `store:"pending"`
}

// IsReady reports whether allocations can use the volume.
func (v *HostVolume) IsReady() bool { return v.Volume.State == api.HostVolumeStateReady }
