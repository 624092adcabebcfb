package hooks

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/allocdir"
)

var (
	_ hook.AllocPrerun = (*AwaitPrevious)(nil)
	_ hook.AllocPrerun = (*MigrateDisk)(nil)
)

// AwaitPrevious blocks an allocation until the allocation that it replaces has ended,
// however long that takes.
type AwaitPrevious struct {
	Builtin
	previousEnded func() <-chan struct{}
}

// NewAwaitPrevious returns the hook for one allocation. ended is called when the wait
// starts; its channel is closed when the previous allocation has ended.
func NewAwaitPrevious(ended func() <-chan struct{}) *AwaitPrevious {
	return &AwaitPrevious{previousEnded: ended}
}

// Name implements hook.Hook.
func (*AwaitPrevious) Name() string { return "await_previous_allocations" }

// Prerun implements hook.AllocPrerun.
func (h *AwaitPrevious) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	select {
	case <-h.previousEnded():
		return hook.AllocPrerunResponse{}, nil
	case <-ctx.Done():
		return hook.AllocPrerunResponse{}, context.Cause(ctx)
	}
}

// NoDeadline implements Hook: the previous allocation may take long to end.
func (*AwaitPrevious) NoDeadline() bool { return true }

// MigrateDisk moves the data of the previous allocation, which must have ended. If that
// fails, the allocation starts without the data.
type MigrateDisk struct {
	Builtin
	dir, previous *allocdir.Dir
	tasks         []string
	logger        hclog.Logger
}

// NewMigrateDisk returns the hook for one allocation with the named tasks.
func NewMigrateDisk(dir, previous *allocdir.Dir, tasks []string, logger hclog.Logger) *MigrateDisk {
	return &MigrateDisk{dir: dir, previous: previous, tasks: tasks, logger: logger}
}

// Name implements hook.Hook.
func (*MigrateDisk) Name() string { return "migrate_disk" }

// Prerun implements hook.AllocPrerun.
func (h *MigrateDisk) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	if err := h.dir.Inherit(h.previous, h.tasks); err != nil {
		h.logger.Error("data of the allocation before is left behind", "error", err)
	}
	return hook.AllocPrerunResponse{}, nil
}
