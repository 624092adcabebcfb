package agent

import (
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// newCgroupManagerSelector returns a function that selects a task's cgroup tree. For builtin drivers' tasks without reserved
// cores the function returns nil, because these drivers create cgroups themselves in less time. They do not know a custom parent, and
// do not remove a cgroup that an earlier agent made in one.
func newCgroupManagerSelector(tree *cgroup.Hierarchy, isBuiltinDriver func(name string) bool) func(driver string, reservedCores int) builtinhooks.CgroupManager {
	return func(driver string, reservedCores int) builtinhooks.CgroupManager {
		switch {
		case reservedCores > 0 || !isBuiltinDriver(driver) || tree.HasCustomParent():
			return tree
		case tree.HasFormerParents():
			return cgroupRemover{tree}
		}
		return nil
	}
}

// cgroupRemover removes the cgroups of tasks, and makes none.
type cgroupRemover struct{ *cgroup.Hierarchy }

func (cgroupRemover) Make(string, string, int) (cgroup.Group, error) { return cgroup.Group{}, nil }

// openCgroups returns this machine's cgroup tree, and logs the reason if it has none for tasks.
func openCgroups(host fingerprint.Host, parent string, logger hclog.Logger) *cgroup.Hierarchy {
	var o cgroup.Options
	for _, core := range host.ReservableCoreIDs {
		o.ReservableCores = append(o.ReservableCores, int(core))
	}
	if len(host.ReservedCoreIDs) > 0 {
		o.TaskCores = slices.Clone(o.ReservableCores)
		for _, core := range host.SharedCoreIDs {
			o.TaskCores = append(o.TaskCores, int(core))
		}
	}
	tree := cgroup.Open(o)
	if err := tree.UseParent(parent); err != nil {
		logger.Error("client.cgroup_parent has no effect", "error", err)
	}
	if reason := tree.UnavailableReason(); reason != "" {
		logger.Info("drivers get no cgroups from the agent", "reason", reason)
	}
	return tree
}
