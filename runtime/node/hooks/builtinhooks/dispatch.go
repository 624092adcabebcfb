package builtinhooks

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

var _ hook.TaskPrestart = (*DispatchPayloadHook)(nil)

// DispatchPayloadHook writes a dispatched job's payload to the task's file.
type DispatchPayloadHook struct {
	hooks.BuiltinHookDefaults
	allocDir       *allocdir.Dir
	pathInLocalDir string
	payload        []byte
}

// NewDispatchPayloadHook returns the hook for one task.
func NewDispatchPayloadHook(dir *allocdir.Dir, pathInLocalDir string, payload []byte) *DispatchPayloadHook {
	return &DispatchPayloadHook{allocDir: dir, pathInLocalDir: pathInLocalDir, payload: payload}
}

// Name implements Hook.
func (*DispatchPayloadHook) Name() string { return "dispatch_payload" }

// Prestart implements hook.TaskPrestart.
func (d *DispatchPayloadHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if err := d.allocDir.WriteLocalFile(req.Task.Name, d.pathInLocalDir, d.payload); err != nil {
		return hook.TaskPrestartResponse{}, err
	}
	return hook.TaskPrestartResponse{Done: true}, nil
}
