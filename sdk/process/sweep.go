package process

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/process"
)

// Sweep kills the running processes of a task that has no known Process: all
// processes in the cgroup of its name, and all processes that have the task's
// names in their environment. It implements the contract of sdk.OrphanKiller.
func Sweep(ctx context.Context, allocID, taskName string) (found bool, err error) {
	ended, err := process.EndLeftovers(ctx, allocID, taskName)
	return len(ended) > 0, err
}
