package agent

import (
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// newCgroupManagerSelector returns a function that selects a task's cgroup tree. For builtin drivers' tasks without reserved
// cores the function returns nil, because these drivers create cgroups themselves in less time.
func newCgroupManagerSelector(tree *cgroup.Hierarchy, isBuiltinDriver func(name string) bool) func(driver string, reservedCores int) builtinhooks.CgroupManager {
	return func(driver string, reservedCores int) builtinhooks.CgroupManager {
		if reservedCores == 0 && isBuiltinDriver(driver) {
			return nil
		}
		return tree
	}
}

// openCgroups returns this machine's cgroup tree, and logs the reason if it has none for tasks.
func openCgroups(host fingerprint.Host, logger hclog.Logger) *cgroup.Hierarchy {
	var cores []int // core ids for tasks; nil means all cores
	if len(host.ReservedCoreIDs) > 0 {
		for _, core := range host.ReservableCoreIDs {
			cores = append(cores, int(core))
		}
	}
	tree := cgroup.Open(cores)
	if reason := tree.UnavailableReason(); reason != "" {
		logger.Info("drivers get no cgroups from the agent", "reason", reason)
	}
	return tree
}
