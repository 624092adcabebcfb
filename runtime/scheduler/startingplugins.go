package scheduler

import (
	"context"
	"errors"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// errPluginsStarting: a plan could not place an allocation because of a node property. Starting plugins may change it.
var errPluginsStarting = errors.New("scheduler: the plan lacks plugins that are starting")

// arePluginsStarting reports whether the node's record may soon get drivers and devices of starting plugins. After it has
// returned false, the stored node has these drivers and devices.
func (s *Scheduler) arePluginsStarting() bool {
	return s.hostEnv.FirstPluginReports != nil && !wait.IsClosed(s.hostEnv.FirstPluginReports)
}

// waitForFirstPluginReports blocks until arePluginsStarting returns false. An error is ctx's cause.
func (s *Scheduler) waitForFirstPluginReports(ctx context.Context) error {
	select {
	case <-s.hostEnv.FirstPluginReports:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// couldStartingPluginsHelp reports whether a plan has failed to place an allocation because of a property that plugins can add
// to the node: a driver, a device, or an attribute in a constraint.
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
