package pluginreport

import (
	"fmt"
	"strings"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
)

// LatestFingerprints are the latest fingerprints of an agent's plugins.
type LatestFingerprints struct {
	DriverInfoByName map[string]supervisor.DriverInfo // driver name -> fingerprint
	DeviceGroups     []supervisor.DeviceGroup
}

// DescribePlugin returns the description of a plugin in a list of plugins.
func DescribePlugin(p supervisor.PluginStatus, fingerprints LatestFingerprints) *pluginstatus.Plugin {
	row := &pluginstatus.Plugin{Name: p.Name, Version: p.Version, Path: p.Path}
	var info supervisor.DriverInfo
	switch p.Serves.Type {
	case base.TypeHook:
		row.Hook = p.Serves.Name
	case base.TypeDevice:
		row.Device, row.Note = p.Serves.Name, formatDeviceCounts(p.Serves.Name, fingerprints.DeviceGroups)
	default:
		info = fingerprints.DriverInfoByName[p.Serves.Name]
		row.Driver, row.Note = p.Serves.Name, info.Description
	}
	switch {
	case p.Err != nil:
		row.Health, row.Note, row.Failed = pluginstatus.HealthFailed, p.Err.Error(), true
	case p.SupersededBy != "":
		row.Health, row.Note = "unused", p.SupersededBy
	case p.Idle:
		row.Hook, row.Health, row.Note = p.Name, "ready", "starts when a job needs it"
	case p.HookDescription != nil:
		row.Health, row.Note = "healthy", formatHookPoints(p.HookDescription)
	case p.Serves.Name == "":
		row.Health, row.Note = pluginstatus.HealthStarting, "has not answered yet"
	case row.Device != "" && !p.HasReportedOrFailed:
		row.Health, row.Note = pluginstatus.HealthStarting, "has not reported its devices yet"
	case p.DeviceFailureReason != "":
		row.Health, row.Note = "unhealthy", fmt.Sprintf("cannot look for devices: %s; %s", p.DeviceFailureReason, row.Note)
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

// formatDeviceCounts returns the number of devices in each device group of a device plugin.
func formatDeviceCounts(pluginName string, groups []supervisor.DeviceGroup) string {
	var counts []string
	for _, g := range groups {
		if g.PluginName != pluginName {
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

// formatHookPoints lists the hook points to which a hook subscribes.
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

// DescribePluginProcess returns the description of a plugin together with its process.
func DescribePluginProcess(p supervisor.PluginStatus, fingerprints LatestFingerprints) pluginstatus.Process {
	row := DescribePlugin(p, fingerprints)
	described := pluginstatus.Process{
		Name: p.Name, State: row.Health, Serves: p.Serves.Name, Version: p.Version, Path: p.Path,
		PID: p.PID, StartedAt: p.StartedAt, Restarts: p.ExitCount, Calls: p.MethodStats,
	}
	if p.Serves.Name != "" {
		described.Type = p.Serves.Type.String()
	}
	if p.LastExitErr != nil {
		described.LastExit = &pluginstatus.ProcessExit{Time: p.LastExitAt, Error: p.LastExitErr.Error()}
	}
	if p.Err != nil {
		described.Error = p.Err.Error()
	} else if row.Device != "" {
		described.Devices = row.Note
	}
	return described
}

// AddSchemasAndCapabilities adds what a plugin reports about itself to the description of its process.
func AddSchemasAndCapabilities(p *pluginstatus.Process, d *supervisor.Description, agentIsRoot bool) {
	p.ConfigSchema, p.TaskSchema = d.ConfigSchema.Text(), d.TaskSchema.Text()
	if d.Capabilities != nil {
		p.Capabilities = DescribeCapabilities(d.Capabilities, agentIsRoot)
	}
}
