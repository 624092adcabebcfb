package pluginreport

import (
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

func TestEffectsOfCapabilities(t *testing.T) {
	unusual := driver.Capabilities{
		FSIsolation: driver.FSIsolationUnveil, MountConfigs: driver.MountConfigsNone,
		MustCreateNetwork: true, DisableLogCollection: true, DynamicWorkloadUsers: true,
	}
	for _, tt := range []struct {
		name         string
		capabilities driver.Capabilities
		root         bool
		want         string
	}{
		{"none", driver.Capabilities{}, true, "FS Isolation: tasks see the files of this machine"},
		{"without exec", driver.Capabilities{}, true, "Exec: commands are sent to the driver, whose error is the answer"},
		{"chroot", driver.Capabilities{FSIsolation: driver.FSIsolationChroot}, true, "FS Isolation: tasks see the files of chroot_env"},
		{"chroot without root", driver.Capabilities{FSIsolation: driver.FSIsolationChroot}, false, "FS Isolation: the agent is not root: the driver mounts the files of chroot_env"},
		{"unveil without root", driver.Capabilities{FSIsolation: driver.FSIsolationUnveil}, false, "FS Isolation: the agent is not root: it mounts nothing"},
		{"image without root", driver.Capabilities{FSIsolation: driver.FSIsolationImage}, false, "FS Isolation: the driver mounts /alloc"},
		{"unveil", unusual, true, "FS Isolation: the agent mounts the task directory"},
		{"no mounts", unusual, true, "Mounts: a task does not start if a hook mounts something"},
		{"no log collection", unusual, true, "Log Collection: the agent stores no output"},
		{"networks", unusual, true, "Must Create Network: the driver creates the networks"},
		{"dynamic users", unusual, true, "Dynamic Users: tasks without a user get one"},
		{"dynamic users without root", unusual, false, "Dynamic Users: the agent is not root"},
	} {
		var text strings.Builder
		for _, c := range DescribeCapabilities(&tt.capabilities, tt.root) {
			text.WriteString(c.Name + ": " + c.Effect + "\n")
		}
		if !strings.Contains(text.String(), tt.want) {
			t.Errorf("%s: got %s, want %q", tt.name, text.String(), tt.want)
		}
	}
}
