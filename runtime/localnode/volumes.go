package localnode

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/volumes"
)

// Volumes returns the manager of dynamic host volumes, nil if there is none.
func (n *Node) Volumes() *volumes.Manager { return n.config.Volumes }

// HostVolumes returns the host volumes by name, also those whose paths do not exist. A volume of the configuration hides a
// dynamic one of the same name.
func (n *Node) HostVolumes() map[string]*api.HostVolumeInfo {
	all := volumes.Ready(n.config.Store.Snapshot().Reader)
	maps.Copy(all, n.currentSettings().HostVolumes)
	return all
}

// HasConfiguredVolume reports whether the configuration has a host volume of a name.
func (n *Node) HasConfiguredVolume(name string) bool {
	return n.currentSettings().HostVolumes[name] != nil
}

// FindHostVolume implements hooks.FindVolumeFunc.
func (n *Node) FindHostVolume(ctx context.Context, name string) (*api.HostVolumeInfo, error) {
	if v := n.currentSettings().HostVolumes[name]; v != nil || n.config.Volumes == nil {
		return v, nil
	}
	return n.config.Volumes.Find(ctx, name)
}

// VolumesChanged updates the record of the node after dynamic host volumes or their plugins have changed. It does not
// block.
func (n *Node) VolumesChanged() {
	n.config.OnNodeStored() // a change of the capabilities of a volume does not change the record
	n.triggerUpdate()
}

// checkHostVolumes returns the host volumes whose paths exist. It logs the others, each once. It waits for pathTimeout at
// most: a file system that does not answer must not stop the updates of the node. Its answer triggers an update.
func (n *Node) checkHostVolumes() map[string]*api.HostVolumeInfo {
	all := n.HostVolumes()
	var paths []string
	for _, v := range all {
		paths = append(paths, v.Path)
	}
	results := n.paths.check(paths)
	found := make(map[string]*api.HostVolumeInfo, len(all))
	errs := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		if err := results[v.Path]; err != nil {
			errs[name] = err.Error()
			switch {
			case n.reportedVolumes[name] == errs[name]:
			case errors.Is(err, errPathTimeout):
				n.config.Logger.Warn("host volume is not offered to jobs until its file system answers", "volume", name, "path", v.Path, "error", err)
			default:
				n.config.Logger.Warn("host volume is not offered to jobs until its path exists and the configuration is loaded again", "volume", name, "error", err)
			}
			continue
		}
		found[name] = v
	}
	n.reportedVolumes = errs
	return found
}
