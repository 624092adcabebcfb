package builtinhooks

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

var (
	_ hook.TaskPrestart = (*TaskDirHook)(nil)
	_ hook.TaskStop     = (*TaskDirHook)(nil)
)

// dirBuiltKey is a key in TaskDirHook's state. The key is set once the directory has been built, so the build event is emitted
// once. The hook is never done, because directories in memory are lost at a reboot.
const dirBuiltKey = "is_done"

// TaskDirHook builds the task directory, and removes the secrets when the task has ended.
type TaskDirHook struct {
	hooks.BuiltinHookDefaults
	allocDir  *allocdir.Dir
	task      *api.Task
	options   func() allocdir.TaskDirOptions
	emitEvent func(*api.TaskEvent)
	logger    hclog.Logger
}

// NewTaskDirHook returns the hook for one task.
func NewTaskDirHook(dir *allocdir.Dir, task *api.Task, options func() allocdir.TaskDirOptions, emit func(*api.TaskEvent), logger hclog.Logger) *TaskDirHook {
	return &TaskDirHook{allocDir: dir, task: task, options: options, emitEvent: emit, logger: logger}
}

// Name implements Hook.
func (*TaskDirHook) Name() string { return hooks.TaskDirName }

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
	return built, checkDestinations(t.task, dir)
}

// checkDestinations returns an error for a template or artifact destination hidden from the task, because the driver mounts host
// files there.
func checkDestinations(task *api.Task, dir *allocdir.TaskDir) error {
	for _, m := range dir.MountsForDriver {
		if strings.HasPrefix(m.HostPath, dir.AllocDir+"/") {
			continue
		}
		check := func(kind string, destination *string) error {
			if p := path.Join("/", pointer.Value(destination)); p == m.TaskPath || strings.HasPrefix(p, m.TaskPath+"/") {
				return fmt.Errorf("%s destination %q: the task has %s of the machine there, on a read-only file system: choose a destination below local/", kind, *destination, m.HostPath)
			}
			return nil
		}
		for _, t := range task.Templates {
			if err := check("template", t.DestPath); err != nil {
				return err
			}
		}
		for _, a := range task.Artifacts {
			if err := check("artifact", a.RelativeDest); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stop implements hook.TaskStop.
func (t *TaskDirHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, t.allocDir.DropSecretsAndUnmount(req.Task.Name)
}
