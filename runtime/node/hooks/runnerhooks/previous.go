package runnerhooks

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

var (
	_ hook.AllocPrerun = (*PreviousAllocWaitHook)(nil)
	_ hook.AllocPrerun = (*DiskMigrationHook)(nil)
)

// PreviousAllocWaitHook blocks an allocation until the allocation that it replaces has ended,
// however long that takes.
type PreviousAllocWaitHook struct {
	BuiltinHookDefaults
	previousEnded func() <-chan struct{}
}

// NewPreviousAllocWaitHook returns the hook for one allocation. previousEnded is called when the wait
// starts; its channel is closed when the previous allocation has ended.
func NewPreviousAllocWaitHook(previousEnded func() <-chan struct{}) *PreviousAllocWaitHook {
	return &PreviousAllocWaitHook{previousEnded: previousEnded}
}

// Name implements Hook.
func (*PreviousAllocWaitHook) Name() string { return "await_previous_allocations" }

// Prerun implements hook.AllocPrerun.
func (p *PreviousAllocWaitHook) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	select {
	case <-p.previousEnded():
		return hook.AllocPrerunResponse{}, nil
	case <-ctx.Done():
		return hook.AllocPrerunResponse{}, context.Cause(ctx)
	}
}

// NoDeadline implements Hook: the previous allocation may take long to end.
func (*PreviousAllocWaitHook) NoDeadline() bool { return true }

// DiskMigrationHook moves the data of the previous allocation, which must have ended. If that
// fails, the allocation starts without the data.
type DiskMigrationHook struct {
	BuiltinHookDefaults
	dir, previousDir *allocdir.Dir
	taskNames        []string
	logger           hclog.Logger
}

// NewDiskMigrationHook returns the hook for one allocation with the named tasks.
func NewDiskMigrationHook(dir, previousDir *allocdir.Dir, tasks []string, logger hclog.Logger) *DiskMigrationHook {
	return &DiskMigrationHook{dir: dir, previousDir: previousDir, taskNames: tasks, logger: logger}
}

// Name implements Hook.
func (*DiskMigrationHook) Name() string { return "migrate_disk" }

// Prerun implements hook.AllocPrerun.
func (d *DiskMigrationHook) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	if err := d.dir.MoveDataFrom(d.previousDir, d.taskNames); err != nil {
		d.logger.Error("data of the allocation before is left behind", "error", err)
	}
	return hook.AllocPrerunResponse{}, nil
}
