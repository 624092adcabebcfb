package pluginstatus

import (
	"cmp"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/callstats"
	"github.com/nomad-lite/nomad-lite/internal/duration"
	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// Process is a plugin of an agent with its process. Like [Hook], it is part of the configuration in /v1/agent/self.
type Process struct {
	Name      string // name of the file or the builtin
	State     string // "healthy", "failed", "starting", …
	Type      string // "driver", "hook" or "device"; empty until the plugin has reported it
	Serves    string // name of the driver, hook or device plugin; empty until the plugin has reported it
	Version   string
	Path      string // empty for a builtin
	PID       int    // 0 if no process runs
	StartedAt time.Time
	Restarts  int          // number of the plugin's processes that have exited under this agent
	Error     string       `json:",omitempty"` // why no process runs
	LastExit  *ProcessExit `json:",omitempty"` // the latest exit of a process of the plugin under this agent
	Devices   string       `json:",omitempty"` // number of devices in each group of a device plugin
	Calls     []callstats.Method

	// Capabilities are those of a driver. Capabilities and schemas are empty unless a process runs and has reported
	// them.
	Capabilities []Capability `json:",omitempty"`
	ConfigSchema string       `json:",omitempty"` // schema of the plugin block, in the form of HCL
	TaskSchema   string       `json:",omitempty"` // schema of the config block of a driver's task
}

// ProcessExit is the exit of a plugin process.
type ProcessExit struct {
	Time  time.Time
	Error string // exit status and the last lines of the process's standard error
}

// NewDevicePluginTable returns a table of the device plugins, or nil if there are none.
func NewDevicePluginTable(processes []Process) *output.Table {
	t := output.NewTable("Plugin", "Version", "State", "Devices or Message")
	found := false
	for _, p := range processes {
		if p.Type == base.TypeDevice.String() {
			found = true
			t.AddRow(p.Serves, p.Version, output.StatusCell(p.State), cmp.Or(p.Error, p.Devices))
		}
	}
	if !found {
		return nil
	}
	return t
}

// NewUnstartedPluginTable returns a table of the plugins that have not started, so that it is unknown which driver or
// hook they serve. It returns nil if there are none.
func NewUnstartedPluginTable(processes []Process) *output.Table {
	t := output.NewTable("Plugin", "State", "Message", "Path")
	found := false
	for _, p := range processes {
		if p.Serves != "" || p.State != HealthStarting && p.State != HealthFailed {
			continue
		}
		found = true
		t.AddRow(p.Name, output.StatusCell(p.State), p.Error, p.Path)
	}
	if !found {
		return nil
	}
	return t
}

// printSchema adds a section with a schema in the form of HCL, unless the schema is empty.
func printSchema(page *output.Page, title, schema string) {
	if schema != "" {
		page.AddSectionTitle(title)
		page.AddSanitizedLines(schema)
	}
}

// PrintProcess adds to a page the process of a plugin, its capabilities, its schemas and the statistics of its RPC
// calls.
func PrintProcess(page *output.Page, p Process) {
	rows := output.Pairs{{"Plugin", p.Name}, {"Version", p.Version}}
	if p.Path != "" {
		rows = append(rows, output.Pairs{{"File", p.Path}}...)
	}
	if p.PID == 0 {
		rows = append(rows, output.Pairs{{"State", output.StatusCell(p.State)}, {"PID", "none"}}...)
		if p.Error != "" {
			rows = append(rows, output.Pairs{{"Error", p.Error}}...)
		}
	} else {
		rows = append(rows, output.Pairs{{"PID", p.PID}, {"Started", output.FormatTimestamp(p.StartedAt) + " (" + output.FormatDuration(time.Since(p.StartedAt)) + " ago)"}}...)
	}
	if p.Devices != "" {
		rows = append(rows, output.Pairs{{"Devices", p.Devices}}...)
	}
	page.AddSectionTitle("Process")
	rows = append(rows, output.Pairs{{"Restarts", p.Restarts}}...)
	if p.LastExit != nil {
		rows = append(rows, output.Pairs{{"Last Exit", output.FormatTimestamp(p.LastExit.Time) + ": " + p.LastExit.Error}}...)
	}
	page.AddPairs(rows)
	printCapabilities(page, p.Capabilities)
	printSchema(page, "Configuration Schema", p.ConfigSchema)
	printSchema(page, "Task Schema", p.TaskSchema)
	if len(p.Calls) == 0 {
		return
	}
	page.AddSectionTitle("Calls")
	t := output.NewTable("Method", "Calls", "Errors", "In Progress", "Mean", "Max")
	for _, m := range p.Calls {
		mean := time.Duration(0)
		if m.Calls > 0 {
			mean = m.Total / time.Duration(m.Calls)
		}
		t.AddRow(m.Method, m.Calls, m.Errors, m.InProgress, duration.Format(mean), duration.Format(m.Max))
	}
	page.AddTable(t)
}
