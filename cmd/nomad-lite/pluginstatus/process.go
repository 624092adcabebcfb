package pluginstatus

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/output"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
)

// Process is a plugin of an agent with its process. Like [Hook], it is part of the agent's configuration in
// agent self.
type Process struct {
	Name      string // name of the file or the builtin
	State     string // "healthy", "failed", "starting", …
	Type      string // "driver" or "hook"; empty until the plugin has reported it
	Serves    string // name of the driver or hook; empty until the plugin has reported it
	Version   string
	Path      string // empty for a builtin
	PID       int    // 0 if no process runs
	StartedAt time.Time
	Restarts  int    // number of its processes that have exited under this agent
	Error     string `json:",omitempty"` // why no process runs
	Calls     []base.MethodStats
}

// NewProcess describes the process of a plugin. info is the fingerprint of its driver.
func NewProcess(p supervisor.Plugin, info supervisor.DriverInfo) Process {
	described := Process{
		Name: p.Name, State: NewPlugin(p, info).Health, Serves: p.Serves.Name, Version: p.Version, Path: p.Path,
		PID: p.PID, StartedAt: p.StartedAt, Restarts: p.Restarts, Calls: p.Methods,
	}
	if p.Serves.Name != "" {
		described.Type = p.Serves.Type.String()
	}
	if p.Err != nil {
		described.Error = p.Err.Error()
	}
	return described
}

// ReadProcesses returns the plugins of the agent. It returns none for an agent of Nomad.
func ReadProcesses(c *api.Client) []Process {
	self, err := apiclient.ReadAgentSelf(c)
	if err != nil {
		return nil
	}
	text, err := json.Marshal(self.Config["Plugins"])
	if err != nil {
		return nil
	}
	var processes []Process
	if json.Unmarshal(text, &processes) != nil {
		return nil
	}
	return slices.DeleteFunc(processes, func(p Process) bool { return p.State == "" })
}

// Named returns the plugins that serve the driver or hook with this name, or whose file has this name.
func Named(processes []Process, name string) []Process {
	return slices.DeleteFunc(slices.Clone(processes), func(p Process) bool { return p.Name != name && p.Serves != name })
}

// UnusableTable returns a table of the plugins whose driver or hook is unknown, because they have not started. It
// returns nil if there are none.
func UnusableTable(processes []Process) *output.Table {
	t := output.NewTable("Plugin", "State", "Message", "Path")
	found := false
	for _, p := range processes {
		if p.Serves != "" || p.State != HealthStarting && p.State != healthFailed {
			continue
		}
		found = true
		t.Row(p.Name, output.StatusCell(p.State), p.Error, p.Path)
	}
	if !found {
		return nil
	}
	return t
}

// PrintProcess shows the process of a plugin and its calls.
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
	page.Section("Process")
	page.Pairs(append(rows, output.Pairs{{"Restarts", p.Restarts}}...))
	if len(p.Calls) == 0 {
		return
	}
	page.Section("Calls")
	t := output.NewTable("Method", "Calls", "Errors", "In Progress", "Mean", "Max")
	for _, m := range p.Calls {
		mean := time.Duration(0)
		if m.Calls > 0 {
			mean = m.Total / time.Duration(m.Calls)
		}
		t.Row(m.Method, m.Calls, m.Errors, m.InProgress, mean.Round(time.Microsecond), m.Max.Round(time.Microsecond))
	}
	page.Table(t)
}
