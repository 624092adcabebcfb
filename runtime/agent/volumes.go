package agent

import (
	"cmp"
	"os"
	"path/filepath"
)

// volumeDirs returns where plugins make dynamic host volumes, and the directory of these plugins, which may be empty.
func volumeDirs(c *Config, dataDir string) (volumesDir, pluginDir string) {
	pluginDir = c.HostVolumePluginDir
	if dir := filepath.Join(dataDir, "host_volume_plugins"); pluginDir == "" {
		if _, err := os.Stat(dir); err == nil {
			pluginDir = dir
		}
	}
	return cmp.Or(c.HostVolumesDir, filepath.Join(dataDir, "host_volumes")), pluginDir
}
