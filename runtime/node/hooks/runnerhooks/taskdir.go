package runnerhooks

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

var (
	_ hook.TaskPrestart = (*TaskDirHook)(nil)
	_ hook.TaskStop     = (*TaskDirHook)(nil)
)

// dirBuiltKey is a key in the state of TaskDirHook. The key is set once the directory has been
// built, so that the event for the build is emitted once. The hook is never done,
// because directories in memory are lost at a reboot.
const dirBuiltKey = "is_done"

// TaskDirHook builds the directory of the task, and removes the secrets when the task has
// ended.
type TaskDirHook struct {
	BuiltinHookDefaults
	allocDir  *allocdir.Dir
	options   func() allocdir.TaskDirOptions
	emitEvent func(*api.TaskEvent)
	logger    hclog.Logger
}

// NewTaskDirHook returns the hook for one task.
func NewTaskDirHook(dir *allocdir.Dir, options func() allocdir.TaskDirOptions, emit func(*api.TaskEvent), logger hclog.Logger) *TaskDirHook {
	return &TaskDirHook{allocDir: dir, options: options, emitEvent: emit, logger: logger}
}

// TaskDirName is the name of TaskDirHook.
const TaskDirName = "task_dir"

// Name implements Hook.
func (*TaskDirHook) Name() string { return TaskDirName }

// Prestart implements hook.TaskPrestart.
func (t *TaskDirHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	built := hook.TaskPrestartResponse{State: map[string]string{dirBuiltKey: "true"}}
	first := req.PreviousState[dirBuiltKey] == ""
	if first {
		t.emitEvent(model.EventTaskSetup())
	}
	failpoint.Hit(failpoint.StepTaskDir, failpoint.PhaseBefore)
	dir, err := t.allocDir.BuildTaskDir(req.Task.Name, t.options())
	if err != nil {
		return hook.TaskPrestartResponse{}, err
	}
	if first && dir.SecretsOnDiskReason != nil {
		t.logger.Debug("secrets are on disk", "task", req.Task.Name, "error", dir.SecretsOnDiskReason)
	}
	built.Mounts = dir.MountsForDriver
	return built, nil
}

// Stop implements hook.TaskStop.
func (t *TaskDirHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, t.allocDir.DropSecretsAndUnmount(req.Task.Name)
}
