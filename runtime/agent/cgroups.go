package agent

import (
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/cgroup"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
)

// cgroupsByDriver returns a function that selects the cgroup tree for the tasks of a driver. For builtin
// drivers the function returns nil, because these drivers create cgroups themselves in less time.
func cgroupsByDriver(tree *cgroup.Hierarchy, plugins func() []supervisor.Plugin) func(driver string) hooks.CgroupManager {
	return func(driver string) hooks.CgroupManager {
		for _, p := range plugins() {
			if p.Builtin && p.Name == driver && p.SupersededBy == "" {
				return nil
			}
		}
		return tree
	}
}
