package sdk_test

import (
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/device/devicewire"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// envServeDevice makes this binary serve the device plugin instead of the driver.
const envServeDevice = "SDK_TEST_DEVICE"

func launchDevice(t *testing.T, env ...string) (base.Plugin, device.Plugin) {
	t.Helper()
	plugins := plugin.PluginSet{basewire.PluginName: &basewire.GRPCPlugin{}, devicewire.PluginName: &devicewire.GRPCPlugin{Name: "dongle"}}
	client := launchPlugin(t, plugins, io.Discard, append(env, envServeDevice+"=1")...)
	return dispense[base.Plugin](t, client, basewire.PluginName), dispense[device.Plugin](t, client, devicewire.PluginName)
}

// checkDongle calls all methods of the plugin.
func checkDongle(t *testing.T, b base.Plugin, d device.Plugin) {
	t.Helper()
	info, err := b.PluginInfo(t.Context())
	if err != nil || info.Type != base.TypeDevice || info.Name != "dongle" || info.APIVersions[0] != "v0.1.0" {
		t.Errorf("info: %+v, %v", info, err)
	}
	if err := b.SetConfig(t.Context(), &base.Config{APIVersion: "v0.1.0"}); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fingerprints, err := d.Fingerprint(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if f := <-fingerprints; f.Err != nil || len(f.Groups) != 1 || f.Groups[0].ID != dongleGroup || f.Groups[0].Attributes["memory"] != (device.Attribute{Value: int64(64), Unit: "MiB"}) {
		t.Errorf("fingerprint: %+v", f)
	}
	if r, err := d.Reserve(ctx, []string{"serial-1"}); err != nil || r.Env["DONGLE"] != "serial-1" || len(r.Devices) != 1 {
		t.Errorf("reservation: %+v, %v", r, err)
	}
	if _, err := d.Reserve(ctx, []string{"serial-2"}); err == nil || err.Error() != `device plugin "dongle": Reserve: unknown device id "serial-2"` {
		t.Errorf("an unknown device: %v", err)
	}
	stats, err := d.Stats(ctx, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if s := <-stats; s.Err != nil || s.Groups[0].Instances["serial-1"].Summary.Max != int64(64) {
		t.Errorf("statistics: %+v", s)
	}
}

func TestDevicePluginProcess(t *testing.T) {
	b, d := launchDevice(t)
	checkDongle(t, b, d)
}

func TestDebugDevice(t *testing.T) {
	socket := filepath.Join(socketDir(t), "debug.sock")
	env := sdk.EnvDebug + "=dongle=" + socket
	startDebugged(t, env, envServeDevice+"=1")

	b, d := launchDevice(t, env)
	if info, err := b.PluginInfo(t.Context()); err != nil || info.Name != "dongle" {
		t.Errorf("info: %+v, %v", info, err)
	}
	r, err := d.Reserve(t.Context(), []string{"serial-1"})
	if err != nil || r.Env["DONGLE"] != "serial-1" {
		t.Errorf("reservation: %+v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	fingerprints, err := d.Fingerprint(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if f := <-fingerprints; f.Err != nil || len(f.Groups) != 1 {
		t.Errorf("fingerprint: %+v", f)
	}
	cancel()
	if f, ok := <-fingerprints; ok {
		t.Errorf("after cancellation: %+v", f)
	}
}
