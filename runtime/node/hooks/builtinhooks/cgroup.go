package builtinhooks

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
)

var (
	_ hook.TaskPrestart = (*CgroupHook)(nil)
	_ hook.TaskStop     = (*CgroupHook)(nil)
)

// CgroupManager makes and removes task cgroups; [cgroup.Hierarchy] implements it.
type CgroupManager interface {
	Make(allocID, task string, reservedCoreCount int) (cgroup.Group, error)
	KillAndRemove(allocID, task string) error
}

// CgroupHook makes a task's cgroup before the driver starts the task.
type CgroupHook struct {
	hooks.BuiltinHookDefaults
	cgroupManager     CgroupManager
	reservedCoreCount int
	setTaskCgroup     func(cgroup.Group)
	logger            hclog.Logger
}

// NewCgroupHook returns the hook for one task. reservedCoreCount may be 0. The hook calls setTaskCgroup with the cgroup.
func NewCgroupHook(manager CgroupManager, reservedCoreCount int, setTaskCgroup func(cgroup.Group), logger hclog.Logger) *CgroupHook {
	return &CgroupHook{cgroupManager: manager, reservedCoreCount: reservedCoreCount, setTaskCgroup: setTaskCgroup, logger: logger}
}

// Name implements Hook.
func (*CgroupHook) Name() string { return "cgroup" }

// Prestart implements hook.TaskPrestart. Unless cores must be reserved, it returns no error if it cannot make the cgroup: the
// driver decides whether it needs one.
func (c *CgroupHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	group, err := c.cgroupManager.Make(req.Alloc.ID, req.Task.Name, c.reservedCoreCount)
	switch {
	case err != nil && c.reservedCoreCount > 0:
		return hook.TaskPrestartResponse{}, driver.Recoverable(err) // a retry can succeed, because another task may release cores
	case err != nil && group.Path != "":
		c.logger.Warn("cgroup of the task lacks controllers", "task", req.Task.Name, "error", err)
	case err != nil:
		c.logger.Warn("task without a cgroup", "task", req.Task.Name, "error", err)
	}
	c.setTaskCgroup(group)
	if c.reservedCoreCount == 0 {
		return hook.TaskPrestartResponse{}, nil
	}
	return hook.TaskPrestartResponse{Env: map[string]string{"NOMAD_CPU_CORES": group.CPUs}}, nil
}

// Stop implements hook.TaskStop.
func (c *CgroupHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	if err := c.cgroupManager.KillAndRemove(req.Alloc.ID, req.Task.Name); err != nil {
		return hook.TaskStopResponse{}, fmt.Errorf("end what the task has left: %w", err)
	}
	return hook.TaskStopResponse{}, nil
}
