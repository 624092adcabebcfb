package builtinhooks

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

var (
	_ hook.AllocPrerun = (*PreviousAllocWaitHook)(nil)
	_ hook.AllocPrerun = (*DiskMigrationHook)(nil)
	_ PreviousAlloc    = (*LocalPreviousAlloc)(nil)
)

// PreviousAlloc is an allocation that another allocation replaces.
type PreviousAlloc interface {
	// WaitEnded blocks until no task in the allocation runs, however long that takes. It returns ctx's cause if ctx ends earlier.
	WaitEnded(ctx context.Context) error
	// MoveData moves alloc/data and the named tasks' local directories to the directory of an allocation without running tasks. The
	// previous allocation must have ended. If MoveData fails, the directory may have only part of the data, or none. A previous
	// allocation without data is not an error.
	MoveData(ctx context.Context, to *allocdir.Dir, tasks []string) error
}

// LocalPreviousAlloc is a previous allocation on this node.
type LocalPreviousAlloc struct {
	// Ended returns a channel that is closed when none of the allocation's tasks or hooks runs. It is called when the wait starts.
	Ended func() <-chan struct{}
	Dir   *allocdir.Dir
}

// WaitEnded implements PreviousAlloc.
func (l *LocalPreviousAlloc) WaitEnded(ctx context.Context) error {
	select {
	case <-l.Ended():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// MoveData implements PreviousAlloc.
func (l *LocalPreviousAlloc) MoveData(_ context.Context, to *allocdir.Dir, tasks []string) error {
	return to.MoveDataFrom(l.Dir, tasks)
}

// PreviousAllocWaitHook blocks an allocation until the replaced allocations have ended, however long that takes.
type PreviousAllocWaitHook struct {
	hooks.BuiltinHookDefaults
	previous []PreviousAlloc
}

// NewPreviousAllocWaitHook returns the hook for one allocation.
func NewPreviousAllocWaitHook(previous ...PreviousAlloc) *PreviousAllocWaitHook {
	return &PreviousAllocWaitHook{previous: previous}
}

// Name implements Hook.
func (*PreviousAllocWaitHook) Name() string { return "await_previous_allocations" }

// Prerun implements hook.AllocPrerun.
func (p *PreviousAllocWaitHook) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	for _, previous := range p.previous {
		if err := previous.WaitEnded(ctx); err != nil {
			return hook.AllocPrerunResponse{}, err
		}
	}
	return hook.AllocPrerunResponse{}, nil
}

// NoDeadline implements Hook: the previous allocation may take long to end.
func (*PreviousAllocWaitHook) NoDeadline() bool { return true }

// DiskMigrationHook moves the previous allocation's data, after that allocation has ended. If the move fails, the allocation
// starts without the data, and its tasks get an event with the reason.
type DiskMigrationHook struct {
	hooks.BuiltinHookDefaults
	dir       *allocdir.Dir
	previous  PreviousAlloc
	taskNames []string
	emitEvent func(*api.TaskEvent)
	logger    hclog.Logger
}

// NewDiskMigrationHook returns the hook for an allocation with these tasks. emitEvent adds an event to each task.
func NewDiskMigrationHook(dir *allocdir.Dir, previous PreviousAlloc, tasks []string, emitEvent func(*api.TaskEvent), logger hclog.Logger) *DiskMigrationHook {
	return &DiskMigrationHook{dir: dir, previous: previous, taskNames: tasks, emitEvent: emitEvent, logger: logger}
}

// Name implements Hook.
func (*DiskMigrationHook) Name() string { return "migrate_disk" }

// Prerun implements hook.AllocPrerun.
func (d *DiskMigrationHook) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	err := d.previous.MoveData(ctx, d.dir, d.taskNames)
	if ctx.Err() != nil {
		return hook.AllocPrerunResponse{}, context.Cause(ctx)
	}
	if err != nil {
		d.logger.Error("data of the previous allocation not moved", "error", err)
		d.emitEvent(model.EventDiskNotMigrated(err.Error()))
	}
	return hook.AllocPrerunResponse{}, nil
}

// NoDeadline implements Hook: the data may come from another node.
func (*DiskMigrationHook) NoDeadline() bool { return true }
