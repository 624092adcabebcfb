package devices

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// UnusableReason returns which devices are unhealthy or reported by no plugin at present, and why; "" if there are none. It
// does not block.
func (m *Manager) UnusableReason(d *api.AllocatedDeviceResource) string {
	groups, groupID := m.plugins.DeviceGroups(), GroupIDOf(d)
	var reported []device.Device
	if i := slices.IndexFunc(groups, func(g supervisor.DeviceGroup) bool { return g.ID == groupID }); i >= 0 {
		reported = groups[i].Devices
	}
	var reasons []string
	for _, id := range d.DeviceIDs {
		name := model.DeviceInstanceName(d.Vendor, d.Type, d.Name, id)
		switch i := slices.IndexFunc(reported, func(d device.Device) bool { return d.ID == id }); {
		case i < 0:
			reasons = append(reasons, missingText(name))
		case !reported[i].Healthy:
			reasons = append(reasons, unhealthyText(name, reported[i].HealthDescription))
		}
	}
	return strings.Join(reasons, "; ")
}

func missingText(name string) string {
	return fmt.Sprintf("device %s is gone: no device plugin reports it", name)
}

func unhealthyText(name, description string) string {
	if description == "" {
		description = "its plugin gives no reason"
	}
	return fmt.Sprintf("device %s is unhealthy: %s", name, description)
}

// HealthChanges returns a text for each node device with changed health, by the device name from model.DeviceInstanceName: a
// device now unhealthy or no longer reported by a plugin, and a healthy device that was unhealthy or not reported before.
func HealthChanges(before, now []*api.NodeDeviceResource) map[string]string {
	was, is, changes := devicesByName(before), devicesByName(now), map[string]string{}
	for name := range was {
		if is[name] == nil {
			changes[name] = missingText(name)
		}
	}
	for name, d := range is {
		wasHealthy := was[name] != nil && was[name].Healthy
		switch {
		case d.Healthy && !wasHealthy:
			changes[name] = fmt.Sprintf("device %s is healthy again", name)
		case !d.Healthy && (wasHealthy || was[name] == nil):
			changes[name] = unhealthyText(name, d.HealthDescription)
		}
	}
	return changes
}

// devicesByName returns a node's devices by name.
func devicesByName(groups []*api.NodeDeviceResource) map[string]*api.NodeDevice {
	all := map[string]*api.NodeDevice{}
	for _, g := range groups {
		for _, d := range g.Instances {
			all[model.DeviceInstanceName(g.Vendor, g.Type, g.Name, d.ID)] = d
		}
	}
	return all
}
