package runnerhooks

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

var (
	_ hook.AllocPrerun  = (*AllocDirHook)(nil)
	_ hook.AllocDestroy = (*AllocDirHook)(nil)
)

// AllocDirHook builds and removes the directory of the allocation.
type AllocDirHook struct {
	BuiltinHookDefaults
	allocDir *allocdir.Dir
}

// NewAllocDirHook returns the hook for one allocation.
func NewAllocDirHook(dir *allocdir.Dir) *AllocDirHook { return &AllocDirHook{allocDir: dir} }

// Name implements Hook.
func (*AllocDirHook) Name() string { return "alloc_dir" }

// Prerun implements hook.AllocPrerun.
func (a *AllocDirHook) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, a.allocDir.Build()
}

// Destroy implements hook.AllocDestroy.
func (a *AllocDirHook) Destroy(context.Context, hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, a.allocDir.Destroy()
}
