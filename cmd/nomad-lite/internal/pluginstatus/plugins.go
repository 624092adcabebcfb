package pluginstatus

// Plugin is one plugin in a list of plugins. At most one of Driver, Hook and Device is set.
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

// TypeAndName returns the type and the name of what the plugin serves, such as "driver docker", or "" while that is
// unknown.
func (p *Plugin) TypeAndName() string {
	switch {
	case p.Hook != "":
		return "hook " + p.Hook
	case p.Driver != "":
		return "driver " + p.Driver
	case p.Device != "":
		return "device " + p.Device
	}
	return ""
}

// HealthStarting is the health of a plugin that has not launched yet, HealthFailed of a plugin that does not start.
const (
	HealthStarting = "starting"
	HealthFailed   = "failed"
)
