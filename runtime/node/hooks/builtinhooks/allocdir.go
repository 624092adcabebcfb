package builtinhooks

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/alloccopy"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

var (
	_ hook.AllocPrerun  = (*AllocDirHook)(nil)
	_ hook.AllocUpdate  = (*AllocDirHook)(nil)
	_ hook.AllocDestroy = (*AllocDirHook)(nil)
)

// AllocDirHook builds and removes the allocation directory, and keeps the allocation's copy in it.
type AllocDirHook struct {
	hooks.BuiltinHookDefaults
	allocDir     *allocdir.Dir
	currentAlloc func() *api.Allocation
	logger       hclog.Logger
}

// NewAllocDirHook returns the hook for one allocation. currentAlloc returns its newest version.
func NewAllocDirHook(dir *allocdir.Dir, currentAlloc func() *api.Allocation, logger hclog.Logger) *AllocDirHook {
	return &AllocDirHook{allocDir: dir, currentAlloc: currentAlloc, logger: logger}
}

// Name implements Hook.
func (*AllocDirHook) Name() string { return "alloc_dir" }

// Prerun implements hook.AllocPrerun.
func (a *AllocDirHook) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	if err := a.allocDir.Build(); err != nil {
		return hook.AllocPrerunResponse{}, err
	}
	a.writeCopy()
	return hook.AllocPrerunResponse{}, nil
}

// UpdateAlloc implements hook.AllocUpdate.
func (a *AllocDirHook) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	a.writeCopy()
	return hook.AllocUpdateResponse{}, nil
}

// writeCopy only logs an error, because the allocation needs no copy while the state is intact.
func (a *AllocDirHook) writeCopy() {
	if err := alloccopy.Write(a.allocDir, a.currentAlloc()); err != nil {
		a.logger.Warn("allocation cannot be restored if the state is damaged", "error", err)
	}
}

// Destroy implements hook.AllocDestroy.
func (a *AllocDirHook) Destroy(context.Context, hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, a.allocDir.Destroy()
}
