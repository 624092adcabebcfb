package hooks

import (
	"context"
	"fmt"
	"slices"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

var _ hook.TaskPrestart = (*Validate)(nil)

// Validate refuses what the operator of the node does not allow.
type Validate struct {
	deniedUsers    []string
	checkedDrivers []string
	services       func() error
}

// NewValidate returns the hook for one task. It refuses the users, if the task
// has one of the drivers. services says what is wrong with the names of the
// task's services, as its environment makes them.
func NewValidate(deniedUsers, checkedDrivers []string, services func() error) *Validate {
	return &Validate{deniedUsers, checkedDrivers, services}
}

// Name implements hook.Hook.
func (*Validate) Name() string { return "validate" }

// Prestart implements hook.TaskPrestart.
func (h *Validate) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if slices.Contains(h.checkedDrivers, req.Task.Driver) && slices.Contains(h.deniedUsers, req.Task.User) {
		return hook.TaskPrestartResponse{}, fmt.Errorf("running as user %q is disallowed", req.Task.User)
	}
	if err := h.services(); err != nil {
		return hook.TaskPrestartResponse{}, err
	}
	return hook.TaskPrestartResponse{Done: true}, nil
}
