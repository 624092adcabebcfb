package process

import (
	"context"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// Sweep kills the running processes of a task for which the driver has no Process: all
// processes in the cgroup that is named after the task, and all processes whose
// environment names the allocation and the task. It implements the contract of
// sdk.OrphanKiller.
func Sweep(ctx context.Context, allocID, taskName string) (found bool, err error) {
	ended, err := osprocess.EndLeftovers(ctx, allocID, taskName)
	return len(ended) > 0, err
}
