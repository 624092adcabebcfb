package builtinhooks

import (
	"context"
	"fmt"
	"slices"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/taskuser"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
)

var _ hook.TaskPrestart = (*TaskValidationHook)(nil)

// TaskValidationHook rejects tasks that the node's operator does not allow.
type TaskValidationHook struct {
	hooks.BuiltinHookDefaults
	deniedUsers              taskuser.Denied
	checkedDrivers           []string
	uidsReservedForDownloads idrange.Set
	usersTaskMaySwitchTo     []string
	checkServices            func() error
}

// NewTaskValidationHook returns the hook for one task. It rejects deniedUsers and foreign groups, as taskuser.Denied compares
// them, if the task's driver is in checkedDrivers. It always rejects uidsReservedForDownloads, also in usersTaskMaySwitchTo.
// checkServices returns an error if the interpolated names of the task's services are invalid.
func NewTaskValidationHook(deniedUsers, checkedDrivers []string, uidsReservedForDownloads idrange.Set, usersTaskMaySwitchTo []string, checkServices func() error) *TaskValidationHook {
	return &TaskValidationHook{deniedUsers: taskuser.Denied{Names: deniedUsers, ForeignGroups: true}, checkedDrivers: checkedDrivers, uidsReservedForDownloads: uidsReservedForDownloads, usersTaskMaySwitchTo: usersTaskMaySwitchTo, checkServices: checkServices}
}

// Name implements Hook.
func (*TaskValidationHook) Name() string { return "validate" }

// Prestart implements hook.TaskPrestart.
func (t *TaskValidationHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if slices.Contains(t.checkedDrivers, req.Task.Driver) {
		if err := t.deniedUsers.Check(req.Task.User); err != nil {
			return hook.TaskPrestartResponse{}, err
		}
	}
	if id, ok := taskuser.UID(req.Task.User); ok && t.uidsReservedForDownloads.Contains(id) {
		return hook.TaskPrestartResponse{}, fmt.Errorf("user id %d is one of those that only downloads have on this node: let the task have another, or the node's client.artifact.download_uids", id)
	}
	for _, user := range t.usersTaskMaySwitchTo {
		if id, ok := taskuser.UID(user); ok && t.uidsReservedForDownloads.Contains(id) {
			return hook.TaskPrestartResponse{}, fmt.Errorf("user id %d in lite_users is one of those that only downloads have on this node: let the task have another, or the node's client.artifact.download_uids", id)
		}
	}
	if err := t.checkServices(); err != nil {
		return hook.TaskPrestartResponse{}, err
	}
	return hook.TaskPrestartResponse{Done: true}, nil
}
