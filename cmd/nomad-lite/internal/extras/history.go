package extras

import (
	"context"
	"os"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/agent/history"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
)

// historyFile is the file's name in the data directory.
const historyFile = "history"

// UsageHistory records the usage of the node and its tasks in the last hours, in a file of the data directory.
type UsageHistory struct {
	*history.Recorder // nil before Open
}

var _ agent.Extension = (*UsageHistory)(nil)

// Name implements agent.Extension.
func (*UsageHistory) Name() string { return "usage history" }

// Open implements agent.Extension.
func (u *UsageHistory) Open(in agent.ExtensionInput) error {
	_ = os.Remove(filepath.Join(in.DataDir, "run.history")) // version 0.1 left it if nomad-lite run was killed
	u.Recorder = history.NewRecorder(filepath.Join(in.DataDir, historyFile), in.Logger)
	return nil
}

// Run implements agent.Extension.
func (u *UsageHistory) Run(ctx context.Context, a *agent.Agent) {
	u.Recorder.Run(ctx, recordedNode{a.Allocs(), a.Files(), a})
}

// Close implements agent.Extension.
func (*UsageHistory) Close() error { return nil }

// recordedNode is an agent's node as a history.Recorder uses it.
type recordedNode struct {
	*noderunner.Runner
	*agent.AllocFiles
	agent *agent.Agent
}

var _ history.Node = recordedNode{}

// HostStatsWithoutDisks implements history.Node.
func (n recordedNode) HostStatsWithoutDisks(ctx context.Context) hoststats.Stats {
	return n.agent.HostSampler().SampleWithoutDisks(ctx)
}

// Driver implements history.Node.
func (n recordedNode) Driver(ctx context.Context, name string) (driver.Driver, error) {
	return n.agent.Supervisor().Driver(ctx, name)
}
