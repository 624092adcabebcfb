package scheduler

import (
	"context"
	"errors"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// errPluginsStarting means that a plan could not place an allocation because of a property of the node, which plugins that
// are starting may change.
var errPluginsStarting = errors.New("scheduler: the plan lacks plugins that are starting")

// arePluginsStarting reports whether the record of the node may soon get the drivers and devices of plugins that are
// starting. After it has returned false, the stored node has these drivers and devices.
func (s *Scheduler) arePluginsStarting() bool {
	return s.hostEnv.FirstPluginReports != nil && !wait.IsClosed(s.hostEnv.FirstPluginReports())
}

// waitForFirstPluginReports blocks until arePluginsStarting returns false. An error is the cause of the end of ctx.
func (s *Scheduler) waitForFirstPluginReports(ctx context.Context) error {
	select {
	case <-s.hostEnv.FirstPluginReports():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// couldStartingPluginsHelp reports whether a plan has failed to place an allocation because of a property that plugins can
// add to the node: a driver, a device, or an attribute in a constraint.
func couldStartingPluginsHelp(plan PlanChanges, node PlacementNode) bool {
	if node.IsIneligible {
		return false
	}
	for _, failure := range plan.ProcessedEval.FailedTGAllocs {
		if failure.NodesFiltered > 0 {
			return true
		}
	}
	return false
}
