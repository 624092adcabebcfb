package agent

import (
	"github.com/nomad-lite/nomad-lite/runtime/cgroup"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
)

// cgroupsOf makes the cgroups of those drivers that expect Nomad to do it. The
// drivers in the box make their own, in less time.
func (a *Agent) cgroupsOf(tree *cgroup.Tree) func(driver string) hooks.Cgroups {
	return func(driver string) hooks.Cgroups {
		for _, p := range a.supervisor.Plugins() {
			if p.Builtin && p.Name == driver && p.Superseded == "" {
				return nil
			}
		}
		return tree
	}
}
