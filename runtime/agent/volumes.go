package agent

import (
	"cmp"
	"os"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/runtime/node/resources/volumes"
)

// newVolumeManager creates the dynamic host volume manager. Agent.node must be set before the manager is used.
func newVolumeManager(a *Agent, nodeID string) *volumes.Manager {
	pluginDir := a.config.HostVolumePluginDir
	if dir := filepath.Join(a.dataDirectory.path, "host_volume_plugins"); pluginDir == "" {
		if _, err := os.Stat(dir); err == nil {
			pluginDir = dir
		}
	}
	return volumes.New(volumes.Config{
		Store:                    a.store,
		NodeID:                   nodeID,
		VolumesDir:               cmp.Or(a.config.HostVolumesDir, filepath.Join(a.dataDirectory.path, "host_volumes")),
		PluginDir:                pluginDir,
		IsVolumeInAgentConfig:    func(name string) bool { return a.node.HasConfiguredVolume(name) },
		OnVolumesOrPluginsChange: func() { a.node.NotifyVolumesChanged() },
		Logger:                   a.logger,
	})
}
