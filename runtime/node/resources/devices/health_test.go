package devices

import (
	"maps"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
)

func TestUnusableReasonNamesDevices(t *testing.T) {
	f := newFakePlugins()
	f.groups = []supervisor.DeviceGroup{{PluginName: "p", Group: device.Group{
		ID:      device.GroupID{Vendor: "acme", Type: "widget", Name: "w"},
		Devices: []device.Device{{ID: "sound", Healthy: true}, {ID: "broken", HealthDescription: "no power"}, {ID: "mute"}},
	}}}
	m := newTestManager(t, f)
	for _, c := range []struct {
		name string
		ids  []string
		want string
	}{
		{"w", []string{"sound"}, ""},
		{"w", []string{"sound", "broken", "lost"}, "device acme/widget/w[broken] is unhealthy: no power; device acme/widget/w[lost] is gone: no device plugin reports it"},
		{"w", []string{"mute"}, "device acme/widget/w[mute] is unhealthy: its plugin gives no reason"},
		{"v", []string{"sound"}, "device acme/widget/v[sound] is gone: no device plugin reports it"},
	} {
		if got := m.UnusableReason(&api.AllocatedDeviceResource{Vendor: "acme", Type: "widget", Name: c.name, DeviceIDs: c.ids}); got != c.want {
			t.Errorf("%s %q: %q, want %q", c.name, c.ids, got, c.want)
		}
	}
}

func TestHealthChanges(t *testing.T) {
	group := func(devices ...*api.NodeDevice) []*api.NodeDeviceResource {
		return []*api.NodeDeviceResource{{Vendor: "acme", Type: "widget", Name: "w", Instances: devices}}
	}
	healthy, unhealthy := &api.NodeDevice{ID: "a", Healthy: true}, &api.NodeDevice{ID: "a", HealthDescription: "no power"}
	for name, c := range map[string]struct {
		before, now []*api.NodeDeviceResource
		want        string // text for the device a
	}{
		"becomes unhealthy":                  {group(healthy), group(unhealthy), "device acme/widget/w[a] is unhealthy: no power"},
		"becomes healthy":                    {group(unhealthy), group(healthy), "device acme/widget/w[a] is healthy again"},
		"vanishes":                           {group(healthy), nil, "device acme/widget/w[a] is gone: no device plugin reports it"},
		"comes back":                         {group(), group(healthy), "device acme/widget/w[a] is healthy again"},
		"comes back unhealthy":               {nil, group(unhealthy), "device acme/widget/w[a] is unhealthy: no power"},
		"stays healthy":                      {group(healthy), group(&api.NodeDevice{ID: "a", Healthy: true, HealthDescription: "fine"}), ""},
		"stays unhealthy for another reason": {group(unhealthy), group(&api.NodeDevice{ID: "a", HealthDescription: "too hot"}), ""},
	} {
		want := map[string]string{}
		if c.want != "" {
			want["acme/widget/w[a]"] = c.want
		}
		if got := HealthChanges(c.before, c.now); !maps.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
