package store

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// HostVolume returns the dynamic host volume with an id.
func (r Reader) HostVolume(ws WatchSet, id string) *state.HostVolume {
	return rowByKey[state.HostVolume](r, ws, HostVolumes, id)
}

// HostVolumes returns the dynamic host volumes with the id prefix.
func (r Reader) HostVolumes(ws WatchSet, prefix string) []*state.HostVolume {
	return listByIDPrefix[state.HostVolume](r, ws, HostVolumes, prefix)
}

// PutHostVolume stores a dynamic host volume.
func (tx *Txn) PutHostVolume(v *state.HostVolume) {
	tx.putObjectSettingIndexes(tableDefsByTable[HostVolumes], v)
}

// DeleteHostVolume removes a dynamic host volume.
func (tx *Txn) DeleteHostVolume(id string) { tx.deleteObjectIfExists(HostVolumes, id) }

// VolumeClaims returns the claims of groups to dynamic host volumes.
func (r Reader) VolumeClaims(ws WatchSet) []*api.TaskGroupHostVolumeClaim {
	return listRows[api.TaskGroupHostVolumeClaim](r, ws, VolumeClaims, "id_prefix", "")
}

// PutVolumeClaim stores a claim.
func (tx *Txn) PutVolumeClaim(c *api.TaskGroupHostVolumeClaim) {
	tx.putObjectSettingIndexes(tableDefsByTable[VolumeClaims], c)
}

// DeleteVolumeClaim removes a claim.
func (tx *Txn) DeleteVolumeClaim(id string) { tx.deleteObjectIfExists(VolumeClaims, id) }
