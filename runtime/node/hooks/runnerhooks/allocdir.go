package runnerhooks

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

var (
	_ hook.AllocPrerun  = (*AllocDir)(nil)
	_ hook.AllocDestroy = (*AllocDir)(nil)
)

// AllocDir builds and removes the directory of the allocation.
type AllocDir struct {
	BuiltinHook
	allocDir *allocdir.Dir
}

// NewAllocDir returns the hook for one allocation.
func NewAllocDir(dir *allocdir.Dir) *AllocDir { return &AllocDir{allocDir: dir} }

// Name implements hook.Hook.
func (*AllocDir) Name() string { return "alloc_dir" }

// Prerun implements hook.AllocPrerun.
func (a *AllocDir) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, a.allocDir.Build()
}

// Destroy implements hook.AllocDestroy.
func (a *AllocDir) Destroy(context.Context, hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, a.allocDir.Destroy()
}
