package builtinhooks

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// reserverFunc is a DeviceReserver.
type reserverFunc func(*api.AllocatedDeviceResource) (*device.Reservation, error)

func (f reserverFunc) Reserve(_ context.Context, d *api.AllocatedDeviceResource, _ func(error)) (*device.Reservation, error) {
	return f(d)
}

func (reserverFunc) UnusableReason(d *api.AllocatedDeviceResource) string {
	if d.Name == "sound" {
		return ""
	}
	return d.Name + " is gone"
}

func TestDevicesExplainsFailedStarts(t *testing.T) {
	allocated := []*api.AllocatedDeviceResource{{Name: "x"}, {Name: "sound"}, {Name: "y"}}
	if got := NewDevicesHook(reserverFunc(nil), allocated, nil).ExplainStartFailure(); got != "x is gone; y is gone" {
		t.Errorf("reason %q", got)
	}
}

func TestDevicesMergesReservations(t *testing.T) {
	allocated := []*api.AllocatedDeviceResource{{Name: "x", DeviceIDs: []string{"1"}}, {Name: "y", DeviceIDs: []string{"2"}}}
	got, err := NewDevicesHook(reserverFunc(func(d *api.AllocatedDeviceResource) (*device.Reservation, error) {
		id := d.DeviceIDs[0]
		return &device.Reservation{
			Env:     map[string]string{"ID_" + d.Name: id, "LAST": d.Name},
			Mounts:  []device.Mount{{TaskPath: "/m" + id, HostPath: "/h" + id, ReadOnly: id == "1"}},
			Devices: []device.HostDevice{{TaskPath: "/dev/" + id, HostPath: "/dev/h" + id, Permissions: "rw"}},
		}, nil
	}), allocated, nil).Prestart(t.Context(), hook.TaskPrestartRequest{})
	want := hook.TaskPrestartResponse{
		Done:    true,
		Env:     map[string]string{"ID_x": "1", "ID_y": "2", "LAST": "y"},
		Mounts:  []driver.Mount{{TaskPath: "/m1", HostPath: "/h1", Readonly: true}, {TaskPath: "/m2", HostPath: "/h2"}},
		Devices: []driver.Device{{TaskPath: "/dev/1", HostPath: "/dev/h1", Permissions: "rw"}, {TaskPath: "/dev/2", HostPath: "/dev/h2", Permissions: "rw"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
}

func TestDevicesIsNotDoneAfterAnError(t *testing.T) {
	fault := errors.New("no such device")
	got, err := NewDevicesHook(reserverFunc(func(d *api.AllocatedDeviceResource) (*device.Reservation, error) {
		if d.Name == "y" {
			return nil, fault
		}
		return &device.Reservation{Env: map[string]string{"A": "1"}}, nil
	}), []*api.AllocatedDeviceResource{{Name: "x"}, {Name: "y"}}, nil).Prestart(t.Context(), hook.TaskPrestartRequest{})
	if !errors.Is(err, fault) || got.Done || got.Env != nil {
		t.Errorf("%+v, %v", got, err)
	}
}
