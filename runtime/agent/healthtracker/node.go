package healthtracker

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// Node is the part of the node that the health of jobs depends on. runtime/agent implements it.
type Node interface {
	// Alloc returns the runner of an allocation, or nil if the node has no runner of the allocation.
	Alloc(id string) *allocrunner.Runner
	// AllocDir returns the directory of an allocation, which may not exist. It fails only if the id is not valid.
	AllocDir(allocID string) (*allocdir.Dir, error)
}

// stderrTailBytes is how much of the standard error of a task is read for its health.
const stderrTailBytes = 2048

// ForNode returns a configuration that reads the checks and the output of tasks from the node.
func ForNode(n Node, nodeID string) Config {
	c := ForChecks(n, nodeID)
	c.StderrTail = func(allocID, task string) (string, time.Time, error) {
		dir, err := n.AllocDir(allocID)
		if err != nil {
			return "", time.Time{}, err
		}
		return logs.ReadTail(context.Background(), logs.FollowRequest{AllocID: allocID, Task: task, LogDir: dir.LogDir(), Stream: logs.Stderr}, stderrTailBytes)
	}
	return c
}

// ForChecks returns a configuration that reads the checks from the node, and no output: for readers of the words alone.
func ForChecks(n interface {
	Alloc(id string) *allocrunner.Runner
}, nodeID string,
) Config {
	return Config{NodeID: nodeID, CheckStatuses: func(allocID string) ([]api.AllocCheckStatus, <-chan struct{}) {
		if runner := n.Alloc(allocID); runner != nil {
			return runner.CheckStatuses()
		}
		return nil, nil
	}}
}
