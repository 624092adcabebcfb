package agent

import (
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/cgroup"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
)

// cgroupsOf returns a function that selects the cgroup tree for a driver. For
// builtin drivers it is nil, because they create their cgroups themselves in less
// time.
func cgroupsOf(tree *cgroup.Hierarchy, plugins func() []supervisor.Plugin) func(driver string) hooks.Cgroups {
	return func(driver string) hooks.Cgroups {
		for _, p := range plugins() {
			if p.Builtin && p.Name == driver && p.Superseded == "" {
				return nil
			}
		}
		return tree
	}
}
