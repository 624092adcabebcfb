package process

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/process"
)

// Sweep kills what runs of a task that no Process is known for: all that is in
// the cgroup of its name, and all that carries the task's names in its
// environment. It is what sdk.Sweeper asks for.
func Sweep(ctx context.Context, allocID, taskName string) (found bool, err error) {
	ended, err := process.EndLeftovers(ctx, allocID, taskName)
	return len(ended) > 0, err
}
