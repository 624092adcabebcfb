package peertest

import (
	"context"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// serveProbeDevice is the program of a device plugin made with the SDK. It offers two devices; one of them is unhealthy.
func serveProbeDevice() { sdk.ServeDevice(probeDevice{}) }

type probeDevice struct{}

func (probeDevice) Info() sdk.DeviceInfo {
	return sdk.DeviceInfo{Name: "probe-device", Version: "7.8.9"}
}

var probeDeviceGroup = device.Group{
	ID: device.GroupID{Vendor: "acme", Type: "gauge", Name: "deluxe"},
	Devices: []device.Device{
		{ID: "gauge-1", Healthy: true, PCIBusID: "0000:01:02.3"},
		{ID: "gauge-2", HealthDescription: "glass is cracked"},
	},
	Attributes: map[string]device.Attribute{
		"memory": {Value: int64(2048), Unit: "MiB"},
		"clock":  {Value: 1.5, Unit: "GHz"},
		"maker":  {Value: "Acme"},
		"turbo":  {Value: true},
	},
}

func (probeDevice) Fingerprint(context.Context) ([]device.Group, error) {
	return []device.Group{probeDeviceGroup}, nil
}

func (probeDevice) Reserve(_ context.Context, req *sdk.ReserveRequest) (*device.Reservation, error) {
	return &device.Reservation{
		Env:     map[string]string{"GAUGE": req.Devices[0].ID},
		Mounts:  []device.Mount{{TaskPath: "/gauge-files", HostPath: "/usr/share", ReadOnly: true}},
		Devices: []device.HostDevice{{TaskPath: "/dev/gauge", HostPath: "/dev/null", Permissions: "rw"}},
	}, nil
}

// probeDeviceStats has each type of value.
var probeDeviceStats = device.DeviceStats{
	Summary: device.StatValue{Value: int64(21), Max: int64(84), Unit: "degree", Description: "temperature"},
	Stats: device.StatObject{
		Attributes: map[string]device.StatValue{
			"load":  {Value: 0.25, Max: 4.5, Unit: "cores", Description: "load of the gauge"},
			"state": {Value: "idle", Description: "what the gauge does"},
			"alarm": {Value: true},
		},
		Nested: map[string]device.StatObject{"needle": {Attributes: map[string]device.StatValue{"turns": {Value: int64(3)}}}},
	},
	Timestamp: time.Date(2032, 3, 4, 5, 6, 7, 8, time.UTC),
}

func (probeDevice) Stats(context.Context) ([]device.GroupStats, error) {
	return []device.GroupStats{{ID: probeDeviceGroup.ID, Instances: map[string]device.DeviceStats{"gauge-1": probeDeviceStats}}}, nil
}
