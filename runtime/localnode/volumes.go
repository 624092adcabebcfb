package localnode

import (
	"maps"
	"os"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// HostVolumes returns the host volumes by name, also those whose paths do not exist. The map must not be changed.
func (n *Node) HostVolumes() map[string]*api.HostVolumeInfo {
	return n.currentSettings().HostVolumes
}

// HostVolume returns the host volume of a name, nil if there is none.
func (n *Node) HostVolume(name string) *api.HostVolumeInfo { return n.HostVolumes()[name] }

// checkHostVolumes returns the host volumes whose paths exist. It logs the others, each once.
func (n *Node) checkHostVolumes() map[string]*api.HostVolumeInfo {
	configured := n.HostVolumes()
	found := make(map[string]*api.HostVolumeInfo, len(configured))
	errs := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		v := configured[name]
		if _, err := os.Stat(v.Path); err != nil {
			errs[name] = err.Error()
			if n.reportedVolumes[name] != errs[name] {
				n.config.Logger.Warn("host volume is not offered to jobs until its path exists and the configuration is loaded again", "volume", name, "error", err)
			}
			continue
		}
		found[name] = v
	}
	n.reportedVolumes = errs
	return found
}
