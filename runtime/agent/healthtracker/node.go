package healthtracker

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// Allocs are the node's allocations. noderunner.Runner implements it.
type Allocs interface {
	// AllocRunner returns an allocation's runner, or nil if the node has none.
	AllocRunner(allocID string) *allocrunner.Runner
}

// Files are the allocations' files. agent.AllocFiles implements it.
type Files interface {
	// AllocDir returns an allocation's directory, which may not exist. It fails only if the id is not valid.
	AllocDir(allocID string) (*allocdir.Dir, error)
}

// stderrTailBytes is how much of a task's standard error is read for its health.
const stderrTailBytes = 2048

// ForNode returns a configuration that reads checks and task output from the node.
func ForNode(allocs Allocs, files Files, nodeID string) Config {
	c := ForChecks(allocs, nodeID)
	c.StderrTail = func(allocID, task string) (string, time.Time, error) {
		dir, err := files.AllocDir(allocID)
		if err != nil {
			return "", time.Time{}, err
		}
		return logs.ReadTail(context.Background(), logs.FollowRequest{AllocID: allocID, Task: task, LogDir: dir.LogDir(), Stream: logs.Stderr}, stderrTailBytes)
	}
	return c
}

// ForChecks returns a configuration that reads the checks from the node, and no output: for readers that need only the words.
func ForChecks(allocs Allocs, nodeID string) Config {
	return Config{NodeID: nodeID, CheckStatuses: func(allocID string) ([]api.AllocCheckStatus, <-chan struct{}) {
		if runner := allocs.AllocRunner(allocID); runner != nil {
			return runner.CheckStatuses()
		}
		return nil, nil
	}}
}
