package process

import (
	"context"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Sweep kills the running processes of a task for which the driver has no Process: all
// processes in the cgroup that is named after the task, and all processes whose
// environment names the allocation and the task. It implements the contract of
// sdk.OrphanKiller.
func Sweep(ctx context.Context, req sdk.SweepRequest) (found bool, err error) {
	ended, err := osprocess.EndLeftovers(ctx, req.AllocID, req.TaskName)
	return len(ended) > 0, err
}
