package programs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/device/devicewire"
)

// serveTestDevicePlugin serves a device plugin without the SDK: `test-device NAME [FAULT]`. It reports two devices, a
// and b, of the group acme/widget/NAME. While the file NAME.sick exists in the working directory, the device b is
// unhealthy, and while NAME.gone-ID exists, the device ID is not reported. Reserve appends the IDs to the file NAME.reserved. The faults are the keys of testDeviceFaults, type,
// hangs, refuses, and crash, with which Reserve exits once for each file NAME.crash*.
func serveTestDevicePlugin() {
	d := &testDevicePlugin{name: os.Args[1]}
	if len(os.Args) > 2 {
		d.faultKind = os.Args[2]
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName:   &basewire.GRPCPlugin{Impl: d},
			devicewire.PluginName: &devicewire.GRPCPlugin{Impl: d},
		},
		GRPCServer: basewire.NewServerWithoutSizeLimits,
		Logger:     hclog.NewNullLogger(),
	})
}

type testDevicePlugin struct{ name, faultKind string }

func (d *testDevicePlugin) PluginInfo(context.Context) (*base.Info, error) {
	info := &base.Info{Type: base.TypeDevice, Name: d.name, Version: "1.0.0", APIVersions: []string{device.APIVersion}}
	if d.faultKind == "type" {
		info.Type = base.TypeDriver
	}
	return info, nil
}

func (d *testDevicePlugin) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }

func (d *testDevicePlugin) SetConfig(context.Context, *base.Config) error { return nil }

func (d *testDevicePlugin) controlFileExists(suffix string) bool {
	_, err := os.Stat(d.name + suffix)
	return err == nil
}

func (d *testDevicePlugin) newDeviceGroup(ids ...string) device.Group {
	g := device.Group{
		ID:         device.GroupID{Vendor: "acme", Type: "widget", Name: d.name},
		Attributes: map[string]device.Attribute{"memory": {Value: int64(2048), Unit: "MiB"}, "turbo": {Value: true}},
	}
	for _, id := range ids {
		if d.controlFileExists(".gone-" + id) {
			continue
		}
		one := device.Device{ID: id, Healthy: true, PCIBusID: "0000:00:0" + id}
		if id == "b" && d.controlFileExists(".sick") {
			one.Healthy, one.HealthDescription = false, "too hot"
		}
		g.Devices = append(g.Devices, one)
	}
	return g
}

// testDeviceFaults maps a fault to a function that returns the n-th fingerprint, counted from 0, and the time until the
// next one. A time of 0 means that no fingerprint follows.
var testDeviceFaults = map[string]func(d *testDevicePlugin, n int) (device.Fingerprint, time.Duration){
	"disabled": func(*testDevicePlugin, int) (device.Fingerprint, time.Duration) {
		return device.Fingerprint{Err: device.ErrDisabled}, 0
	},
	"invalid": func(d *testDevicePlugin, _ int) (device.Fingerprint, time.Duration) {
		g := d.newDeviceGroup("a")
		g.ID.Vendor = ""
		return device.Fingerprint{Groups: []device.Group{g}}, 0
	},
	"breaks": func(d *testDevicePlugin, n int) (device.Fingerprint, time.Duration) {
		if n == 0 {
			return device.Fingerprint{Groups: []device.Group{d.newDeviceGroup("a")}}, time.Millisecond
		}
		return device.Fingerprint{Err: errors.New("lost the bus")}, 0
	},
	"flaps": func(d *testDevicePlugin, n int) (device.Fingerprint, time.Duration) {
		g := d.newDeviceGroup("a")
		g.Devices[0].Healthy = n%2 == 0
		return device.Fingerprint{Groups: []device.Group{g}}, time.Millisecond
	},
	"twelve": func(d *testDevicePlugin, _ int) (device.Fingerprint, time.Duration) {
		return device.Fingerprint{Groups: []device.Group{d.newDeviceGroup("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")}}, time.Hour
	},
	"many": func(d *testDevicePlugin, _ int) (device.Fingerprint, time.Duration) {
		ids := make([]string, 8000)
		for i := range ids {
			ids[i] = fmt.Sprintf("device-%05d", i)
		}
		return device.Fingerprint{Groups: []device.Group{d.newDeviceGroup(ids...)}}, time.Hour
	},
	"unreachable": func(*testDevicePlugin, int) (device.Fingerprint, time.Duration) {
		return device.Fingerprint{FailureReason: "lost the bus"}, time.Hour
	},
	"silent": func(*testDevicePlugin, int) (device.Fingerprint, time.Duration) { select {} },
}

func (d *testDevicePlugin) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	next := testDeviceFaults[d.faultKind]
	if next == nil {
		next = func(d *testDevicePlugin, _ int) (device.Fingerprint, time.Duration) {
			return device.Fingerprint{Groups: []device.Group{d.newDeviceGroup("a", "b")}}, 100 * time.Millisecond
		}
	}
	out := make(chan device.Fingerprint)
	go func() {
		defer close(out)
		for n := 0; ; n++ {
			fingerprint, pause := next(d, n)
			select {
			case out <- fingerprint:
			case <-ctx.Done():
				return
			}
			if pause == 0 {
				return
			}
			time.Sleep(pause)
		}
	}()
	return out, nil
}

func (d *testDevicePlugin) Reserve(_ context.Context, ids []string) (*device.Reservation, error) {
	log, err := os.OpenFile(d.name+".reserved", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	fmt.Fprintln(log, strings.Join(ids, ","))
	switch d.faultKind {
	case "crash":
		for _, file := range []string{".crash1", ".crash2"} {
			if os.Remove(d.name+file) == nil {
				os.Exit(3)
			}
		}
	case "hangs":
		select {}
	case "refuses":
		return nil, errors.New("the device is locked")
	}
	return &device.Reservation{
		Env:     map[string]string{"ACME_VISIBLE_WIDGETS": strings.Join(ids, ",")},
		Devices: []device.HostDevice{{TaskPath: "/dev/widget", HostPath: "/dev/null", Permissions: "rw"}},
		Mounts:  []device.Mount{{TaskPath: "/opt/widget", HostPath: "/tmp", ReadOnly: true}},
	}, nil
}

func (d *testDevicePlugin) Stats(ctx context.Context, interval time.Duration) (<-chan device.Stats, error) {
	out := make(chan device.Stats)
	go func() {
		defer close(out)
		for {
			instances := make(map[string]device.DeviceStats)
			for i, id := range []string{"a", "b"} {
				instances[id] = device.DeviceStats{
					Summary:   device.StatValue{Value: int64(100 + i), Max: int64(2048), Unit: "MiB", Description: "memory"},
					Stats:     device.StatObject{Attributes: map[string]device.StatValue{"Temperature": {Value: int64(40 + i), Unit: "C"}}},
					Timestamp: time.Now(),
				}
			}
			select {
			case out <- device.Stats{Groups: []device.GroupStats{{ID: device.GroupID{Vendor: "acme", Type: "widget", Name: d.name}, Instances: instances}}}:
			case <-ctx.Done():
				return
			}
			time.Sleep(interval)
		}
	}()
	return out, nil
}
