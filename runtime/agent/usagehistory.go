package agent

import (
	"context"
	"os"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/agent/history"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
)

// Files in the data directory with the tasks' usage in the last hours: for an agent, and for a foreground run.
const (
	historyFile    = "history"
	runHistoryFile = "run.history"
)

func (d *dataDirectory) historyPath() string {
	if d.isStateEphemeral {
		return filepath.Join(d.path, runHistoryFile)
	}
	return filepath.Join(d.path, historyFile)
}

// removeHistoryIfEphemeral removes the history if the agent's state is removed, too.
func (d *dataDirectory) removeHistoryIfEphemeral() error {
	if !d.isStateEphemeral {
		return nil
	}
	if err := os.Remove(d.historyPath()); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// History returns the usage recorder for the node and its tasks.
func (a *Agent) History() *history.Recorder { return a.history }

// historyNode is the agent as a history.Recorder uses it.
type historyNode struct{ *Agent }

var _ history.Node = historyNode{}

// AppendRunningTasks implements history.Node.
func (n historyNode) AppendRunningTasks(list []allocrunner.RunningTask) []allocrunner.RunningTask {
	if nodes := n.currentNodeRunner(); nodes != nil {
		return nodes.AppendRunningTasks(list)
	}
	return list
}

// HostStatsWithoutDisks implements history.Node.
func (n historyNode) HostStatsWithoutDisks(ctx context.Context) hoststats.Stats {
	return n.hostSampler.SampleWithoutDisks(ctx)
}

// Driver implements history.Node.
func (n historyNode) Driver(ctx context.Context, name string) (driver.Driver, error) {
	return n.plugins.supervisor.Driver(ctx, name)
}
