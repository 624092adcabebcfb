package pluginstatus

import (
	"fmt"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
)

// Plugin is one plugin in the list.
type Plugin struct {
	Name    string
	Driver  string `json:",omitempty"`
	Hook    string `json:",omitempty"`
	Device  string `json:",omitempty"` // name of a device plugin
	Version string
	Health  string
	Path    string `json:",omitempty"`
	Note    string `json:",omitempty"` // why the plugin does not run, or its health message
	Failed  bool   `json:"-"`
}

// TypeAndName returns the type and the name of the driver, hook or device plugin.
func (r *Plugin) TypeAndName() string {
	switch {
	case r.Hook != "":
		return "hook " + r.Hook
	case r.Driver != "":
		return "driver " + r.Driver
	case r.Device != "":
		return "device " + r.Device
	}
	return ""
}

// Fingerprints are the latest fingerprints of all plugins.
type Fingerprints struct {
	Drivers map[string]supervisor.DriverInfo // by name of the driver
	Devices []supervisor.DeviceGroup
}

// NewPlugin describes a plugin.
func NewPlugin(p supervisor.Plugin, fingerprints Fingerprints) *Plugin {
	row := &Plugin{Name: p.Name, Version: p.Version, Path: p.Path}
	var info supervisor.DriverInfo
	switch p.Serves.Type {
	case base.TypeHook:
		row.Hook = p.Serves.Name
	case base.TypeDevice:
		row.Device, row.Note = p.Serves.Name, formatDevices(p.Serves.Name, fingerprints.Devices)
	default:
		info = fingerprints.Drivers[p.Serves.Name]
		row.Driver, row.Note = p.Serves.Name, info.Description
	}
	switch {
	case p.Err != nil:
		row.Health, row.Note, row.Failed = healthFailed, p.Err.Error(), true
	case p.SupersededBy != "":
		row.Health, row.Note = "unused", p.SupersededBy
	case p.Idle:
		row.Hook, row.Health, row.Note = p.Name, "ready", "starts when a job needs it"
	case p.Hook != nil:
		row.Health, row.Note = "healthy", formatHookPoints(p.Hook)
	case p.Serves.Name == "":
		row.Health, row.Note = HealthStarting, "has not answered yet"
	case row.Device != "" && !p.StateKnown:
		row.Health, row.Note = HealthStarting, "has not reported its devices yet"
	case row.Device != "":
		row.Health = "healthy"
	case !info.Detected:
		row.Health = "undetected"
	case !info.Healthy:
		row.Health = "unhealthy"
	default:
		row.Health = "healthy"
	}
	return row
}

// HealthStarting is the health of a plugin that has not launched yet, healthFailed of a plugin that does not start.
const (
	HealthStarting = "starting"
	healthFailed   = "failed"
)

// formatDevices returns the number of devices in each group of a device plugin.
func formatDevices(plugin string, groups []supervisor.DeviceGroup) string {
	var counts []string
	for _, g := range groups {
		if g.Plugin != plugin {
			continue
		}
		text := fmt.Sprintf("%s: %d", g.ID, len(g.Devices))
		unhealthy := 0
		for _, d := range g.Devices {
			if !d.Healthy {
				unhealthy++
			}
		}
		if unhealthy > 0 {
			text += fmt.Sprintf(" (%d unhealthy)", unhealthy)
		}
		counts = append(counts, text)
	}
	if len(counts) == 0 {
		return "has found no devices"
	}
	return strings.Join(counts, ", ")
}

// formatHookPoints returns the hook points at which a hook is called.
func formatHookPoints(d *hook.Description) string {
	var hookPointNames []string
	for _, p := range d.Subscriptions {
		hookPointNames = append(hookPointNames, p.Point.String())
	}
	text := strings.Join(hookPointNames, ", ")
	if d.AllAllocs {
		text += "; of every allocation"
	}
	return text
}
