package pluginstatus

import (
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
)

// Plugin is one plugin in the list.
type Plugin struct {
	Name    string
	Driver  string `json:",omitempty"`
	Hook    string `json:",omitempty"`
	Version string
	Health  string
	Path    string `json:",omitempty"`
	Note    string `json:",omitempty"` // why the plugin does not run, or its health message
	Failed  bool   `json:"-"`
}

// TypeAndName returns the type and the name of the driver or hook that the plugin serves.
func (r *Plugin) TypeAndName() string {
	switch {
	case r.Hook != "":
		return "hook " + r.Hook
	case r.Driver != "":
		return "driver " + r.Driver
	}
	return ""
}

// NewPlugin describes a plugin. info is the fingerprint of its driver.
func NewPlugin(p supervisor.Plugin, info supervisor.DriverInfo) *Plugin {
	row := &Plugin{Name: p.Name, Version: p.Version, Path: p.Path}
	if p.Serves.Type == base.TypeHook {
		row.Hook = p.Serves.Name
	} else {
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
