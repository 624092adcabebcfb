package builtinhooks

import (
	"context"
	"maps"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

var (
	_ hook.TaskPrestart           = (*DevicesHook)(nil)
	_ hooks.StartFailureExplainer = (*DevicesHook)(nil)
)

// DeviceReserver reserves devices in one device group; runtime/node/resources/devices implements it.
type DeviceReserver interface {
	// Reserve blocks while the device plugin is unavailable, and calls reportOutage once.
	Reserve(ctx context.Context, d *api.AllocatedDeviceResource, reportOutage func(error)) (*device.Reservation, error)
	// UnusableReason returns which devices are unhealthy or gone, and why; "" if none are. It does not block.
	UnusableReason(d *api.AllocatedDeviceResource) string
}

// DevicesHook reserves the devices chosen by the scheduler for a task. Its response is used for all later task starts.
type DevicesHook struct {
	hooks.BuiltinHookDefaults
	reserver         DeviceReserver
	allocatedDevices []*api.AllocatedDeviceResource
	emitEvent        func(*api.TaskEvent)
}

// NewDevicesHook returns the hook for one task.
func NewDevicesHook(reserver DeviceReserver, allocated []*api.AllocatedDeviceResource, emit func(*api.TaskEvent)) *DevicesHook {
	return &DevicesHook{reserver: reserver, allocatedDevices: allocated, emitEvent: emit}
}

// Name implements Hook.
func (*DevicesHook) Name() string { return hooks.DevicesName }

// NoDeadline implements Hook: each device plugin call has its own timeout, and a plugin may be unavailable for longer.
func (*DevicesHook) NoDeadline() bool { return true }

// ExplainStartFailure implements StartFailureExplainer: a device may have vanished since its reservation.
func (de *DevicesHook) ExplainStartFailure() string {
	var reasons []string
	for _, d := range de.allocatedDevices {
		if reason := de.reserver.UnusableReason(d); reason != "" {
			reasons = append(reasons, reason)
		}
	}
	return strings.Join(reasons, "; ")
}

// Prestart implements hook.TaskPrestart.
func (de *DevicesHook) Prestart(ctx context.Context, _ hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	all := hook.TaskPrestartResponse{Done: true, Env: make(map[string]string)}
	reportOutage := func(err error) { de.emitEvent(model.EventWaitingForDevicePlugin(err.Error())) }
	for _, d := range de.allocatedDevices {
		r, err := de.reserver.Reserve(ctx, d, reportOutage)
		if err != nil {
			return hook.TaskPrestartResponse{}, err
		}
		maps.Copy(all.Env, r.Env)
		for _, m := range r.Mounts {
			all.Mounts = append(all.Mounts, driver.Mount{TaskPath: m.TaskPath, HostPath: m.HostPath, Readonly: m.ReadOnly})
		}
		for _, d := range r.Devices {
			all.Devices = append(all.Devices, driver.Device{TaskPath: d.TaskPath, HostPath: d.HostPath, Permissions: d.Permissions})
		}
	}
	return all, nil
}
