package admission

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

func TestPartsRefusedByDrivers(t *testing.T) {
	group := []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup}
	capabilities := map[string]*driver.Capabilities{
		"all":       {NetworkIsolationModes: group},
		"no_mounts": {NetworkIsolationModes: group, MountConfigs: driver.MountConfigsNone},
		"host":      {NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost}},
		"creator_a": {NetworkIsolationModes: group, MustCreateNetwork: true},
		"creator_b": {NetworkIsolationModes: group, MustCreateNetwork: true},
	}
	for _, c := range []struct {
		name    string
		drivers string // the tasks' drivers, separated by spaces
		network string // the group network's mode
		mounts  int    // volume_mount blocks per task
		want    string // refusal IDs and paths
	}{
		{"a driver that can run all parts", "all", "bridge", 1, ""},
		{"a driver with unknown capabilities", "unknown", "bridge", 1, ""},
		{"each mount of a driver without mounts", "no_mounts", "", 2, "driver-without-mounts group.g.task.t0.volume_mount.0; driver-without-mounts group.g.task.t0.volume_mount.1"},
		{"no mounts for a driver without mounts", "no_mounts", "", 0, ""},
		{"the network of the machine", "host", "host", 0, ""},
		{"a network for a driver without networks", "all host", "bridge", 0, "driver-without-networks group.g.network.0.mode"},
		{"no network namespace for a driver without networks", "host", "none", 0, "driver-without-networks group.g.network.0.mode"},
		{"a network mode that does not exist", "host", "driver", 0, ""},
		{"two tasks of a driver that creates networks", "creator_a all creator_a", "bridge", 0, ""},
		{"two drivers that create networks", "creator_a creator_b", "cni/x", 0, "several-network-drivers group.g.network.0.mode"},
		{"two drivers that create networks, in the network of the machine", "creator_a creator_b", "", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := newJob(func(f *jobFixture) {
				f.group.Tasks = nil
				for i, name := range strings.Fields(c.drivers) {
					task := &api.Task{Name: "t" + string(rune('0'+i)), Driver: name, VolumeMounts: []*api.VolumeMount{}}
					for range c.mounts {
						task.VolumeMounts = append(task.VolumeMounts, &api.VolumeMount{Volume: new("v"), Destination: new("/v")})
					}
					f.group.Tasks = append(f.group.Tasks, task)
				}
				f.group.Networks = []*api.NetworkResource{{Mode: c.network}}
			})
			var got []string
			for _, r := range partsRefusedByDrivers(job, capabilities) {
				got = append(got, r.Kind.ID+" "+strings.Join(r.Path, "."))
			}
			if text := strings.Join(got, "; "); text != c.want {
				t.Errorf("refusals %q, want %q", text, c.want)
			}
		})
	}
}

// An empty volume_mount block has no effect.
func TestEmptyMountIsNotRefused(t *testing.T) {
	job := newJob(func(f *jobFixture) { f.task.VolumeMounts = []*api.VolumeMount{{}} })
	if refusals := partsRefusedByDrivers(job, map[string]*driver.Capabilities{"d": {MountConfigs: driver.MountConfigsNone}}); len(refusals) > 0 {
		t.Errorf("refusals %+v", refusals)
	}
}
