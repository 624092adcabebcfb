package hooks

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

var (
	_ hook.TaskPrestart = (*Cgroup)(nil)
	_ hook.TaskStop     = (*Cgroup)(nil)
)

// CgroupManager makes and removes the cgroups of tasks; [cgroup.Hierarchy] implements it.
type CgroupManager interface {
	Make(allocID, task string) (string, error)
	Remove(allocID, task string) error
}

// Cgroup makes the cgroup of a task before its driver starts it.
type Cgroup struct {
	BuiltinHook
	cgroupManager CgroupManager
	setPath       func(path string)
	logger        hclog.Logger
}

// NewCgroup returns the hook for one task. It calls setPath with the path of the cgroup.
func NewCgroup(groups CgroupManager, setPath func(path string), logger hclog.Logger) *Cgroup {
	return &Cgroup{cgroupManager: groups, setPath: setPath, logger: logger}
}

// Name implements hook.Hook.
func (*Cgroup) Name() string { return "cgroup" }

// Prestart implements hook.TaskPrestart. A failure to make the cgroup is not an error:
// the driver decides whether it needs one.
func (h *Cgroup) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	path, err := h.cgroupManager.Make(req.Alloc.ID, req.Task.Name)
	if err != nil {
		h.logger.Warn("task without a cgroup", "task", req.Task.Name, "error", err)
		path = ""
	}
	h.setPath(path)
	return hook.TaskPrestartResponse{}, nil
}

// Stop implements hook.TaskStop.
func (h *Cgroup) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	if err := h.cgroupManager.Remove(req.Alloc.ID, req.Task.Name); err != nil {
		return hook.TaskStopResponse{}, fmt.Errorf("end what the task has left: %w", err)
	}
	return hook.TaskStopResponse{}, nil
}
