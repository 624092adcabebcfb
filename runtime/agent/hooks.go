package agent

import (
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// hookSocket is where hook plugins find the agent, this one and those that come
// after it.
func (a *Agent) hookSocket() string { return filepath.Join(a.sockets, "hooks.sock") }

// nodeForHooks is what hook plugins are told about the machine.
func (a *Agent) nodeForHooks() hook.Node {
	n := a.config.Node
	return hook.Node{ID: a.nodeID, Name: n.Name, Datacenter: n.Datacenter, Region: n.Region, Class: n.Class, Pool: n.Pool}
}
