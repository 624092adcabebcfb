package runnerhooks

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

var (
	_ hook.AllocPrerun = (*PreviousAllocWaiter)(nil)
	_ hook.AllocPrerun = (*DiskMigrator)(nil)
)

// PreviousAllocWaiter blocks an allocation until the allocation that it replaces has ended,
// however long that takes.
type PreviousAllocWaiter struct {
	BuiltinHook
	previousEnded func() <-chan struct{}
}

// NewPreviousAllocWaiter returns the hook for one allocation. ended is called when the wait
// starts; its channel is closed when the previous allocation has ended.
func NewPreviousAllocWaiter(ended func() <-chan struct{}) *PreviousAllocWaiter {
	return &PreviousAllocWaiter{previousEnded: ended}
}

// Name implements hook.Hook.
func (*PreviousAllocWaiter) Name() string { return "await_previous_allocations" }

// Prerun implements hook.AllocPrerun.
func (p *PreviousAllocWaiter) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	select {
	case <-p.previousEnded():
		return hook.AllocPrerunResponse{}, nil
	case <-ctx.Done():
		return hook.AllocPrerunResponse{}, context.Cause(ctx)
	}
}

// NoDeadline implements Hook: the previous allocation may take long to end.
func (*PreviousAllocWaiter) NoDeadline() bool { return true }

// DiskMigrator moves the data of the previous allocation, which must have ended. If that
// fails, the allocation starts without the data.
type DiskMigrator struct {
	BuiltinHook
	dir, previousDir *allocdir.Dir
	taskNames        []string
	logger           hclog.Logger
}

// NewDiskMigrator returns the hook for one allocation with the named tasks.
func NewDiskMigrator(dir, previous *allocdir.Dir, tasks []string, logger hclog.Logger) *DiskMigrator {
	return &DiskMigrator{dir: dir, previousDir: previous, taskNames: tasks, logger: logger}
}

// Name implements hook.Hook.
func (*DiskMigrator) Name() string { return "migrate_disk" }

// Prerun implements hook.AllocPrerun.
func (d *DiskMigrator) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	if err := d.dir.MoveDataFrom(d.previousDir, d.taskNames); err != nil {
		d.logger.Error("data of the allocation before is left behind", "error", err)
	}
	return hook.AllocPrerunResponse{}, nil
}
