package main

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) { sdktest.Main(m, main) }

func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin in each case of the contract suite")
	}
	sdktest.Device(t, sdktest.Plugin{
		Path: os.Args[0],
		Config: map[string]any{"device": []any{
			map[string]any{"sink": map[string]any{"paths": []any{"/dev/null", "/dev/full"}}},
			map[string]any{"entropy": map[string]any{"paths": []any{"/dev/urandom"}, "permissions": "r", "count": 2}},
		}},
	})
}

func newPlugin(devices map[string]deviceConfig) *deviceFilesPlugin {
	return &deviceFilesPlugin{configsByType: devices}
}

func TestFingerprint(t *testing.T) {
	p := newPlugin(map[string]deviceConfig{
		"sink":    {Vendor: "host", Name: "sink", PathPatterns: []string{"/dev/nul?", "/dev/null", "/dev/full"}, Permissions: "rw", TasksPerFile: 1},
		"file":    {Vendor: "host", Name: "file", PathPatterns: []string{"/etc/passwd", "/dev/no-such-file"}, Permissions: "r", TasksPerFile: 1},
		"entropy": {Vendor: "host", Name: "entropy", PathPatterns: []string{"/dev/urandom"}, Permissions: "r", TasksPerFile: 2},
		"none":    {Vendor: "host", Name: "none", PathPatterns: []string{"/dev/no-such-*"}, Permissions: "r", TasksPerFile: 1},
	})
	got, err := p.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	group := func(typ, permissions string, devices ...device.Device) device.Group {
		return device.Group{
			ID: device.GroupID{Vendor: "host", Type: typ, Name: typ}, Devices: devices,
			Attributes: map[string]device.Attribute{"permissions": {Value: permissions}},
		}
	}
	want := []device.Group{
		group("entropy", "r", device.Device{ID: "/dev/urandom", Healthy: true}, device.Device{ID: "/dev/urandom#1", Healthy: true}),
		group("file", "r",
			device.Device{ID: "/dev/no-such-file", HealthDescription: "no such file or directory"},
			device.Device{ID: "/etc/passwd", HealthDescription: "not a device file"}),
		group("none", "r"),
		group("sink", "rw", device.Device{ID: "/dev/full", Healthy: true}, device.Device{ID: "/dev/null", Healthy: true}),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("devices:\n%+v\nwant\n%+v", got, want)
	}
	if _, err := newPlugin(nil).Fingerprint(t.Context()); err == nil || !strings.HasPrefix(err.Error(), device.ErrDisabled.Error()) {
		t.Errorf("without a configuration: %v", err)
	}
}

func TestReserve(t *testing.T) {
	p := newPlugin(map[string]deviceConfig{"data-sink": {Permissions: "rw"}})
	request := func(ids ...string) *sdk.ReserveRequest {
		r := &sdk.ReserveRequest{Group: device.Group{ID: device.GroupID{Vendor: "host", Type: "data-sink", Name: "x"}}}
		for _, id := range ids {
			r.Devices = append(r.Devices, device.Device{ID: id})
		}
		return r
	}
	got, err := p.Reserve(t.Context(), request("/dev/null", "/dev/null#1", "/dev/full"))
	want := &device.Reservation{
		Env: map[string]string{"DATA_SINK_DEVICES": "/dev/null,/dev/full"},
		Devices: []device.HostDevice{
			{TaskPath: "/dev/null", HostPath: "/dev/null", Permissions: "rw"}, {TaskPath: "/dev/full", HostPath: "/dev/full", Permissions: "rw"},
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Reserve returned %+v, %v; want %+v", got, err, want)
	}
	if _, err := p.Reserve(t.Context(), request("/dev/no-such-file")); err == nil || !strings.Contains(err.Error(), `device "/dev/no-such-file": no such file`) {
		t.Errorf("a file that has disappeared: %v", err)
	}
}

func TestStats(t *testing.T) {
	p := newPlugin(map[string]deviceConfig{"sink": {Vendor: "host", Name: "sink", PathPatterns: []string{"/dev/null", "/dev/no-such-file"}, TasksPerFile: 1}})
	stats, err := p.Stats(t.Context())
	if err != nil || len(stats) != 1 || len(stats[0].Instances) != 1 {
		t.Fatalf("statistics: %+v, %v", stats, err)
	}
	s := stats[0].Instances["/dev/null"]
	if idle, ok := s.Summary.Value.(float64); !ok || idle < 0 || s.Timestamp.IsZero() {
		t.Errorf("statistics of /dev/null: %+v", s)
	}
	got := blockDeviceStats("  1 2 100 4 5 6 200 8 9 10 11\n")
	if got["read"].Value != int64(51200) || got["written"].Value != int64(102400) || blockDeviceStats("1 2") != nil {
		t.Errorf("counters of a block device: %+v", got)
	}
}

func TestWatchReportsANewFile(t *testing.T) {
	dir := t.TempDir()
	p := newPlugin(map[string]deviceConfig{"x": {PathPatterns: []string{filepath.Join(dir, "tty*")}}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := p.Watch(ctx)
	if err := os.WriteFile(filepath.Join(dir, "tty1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-changes
}
