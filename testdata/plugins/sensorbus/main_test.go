package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) { sdktest.Main(m, main) }

func TestContract(t *testing.T) {
	sdktest.Device(t, sdktest.Plugin{Path: os.Args[0], Config: map[string]any{
		"dir": newBus(t), "thermo_tasks": 2,
		"model": []map[string]any{{"T100": []map[string]any{{"attributes": []map[string]any{{"power": "20 mW"}}}}}},
	}})
}

// newBus makes a bus with two thermometers and a relay.
func newBus(t *testing.T) string {
	dir := t.TempDir()
	addNode(t, dir, "thermo/attic", "T100", "21.5")
	addNode(t, dir, "thermo/cellar", "T100", "12")
	addNode(t, dir, "relay/pump", "R7", "3")
	return dir
}

func addNode(t *testing.T, bus, name, model, value string) {
	t.Helper()
	dir := filepath.Join(bus, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"serial": "1", "state": "ok", "value": value, "model": model} {
		write(t, filepath.Join(dir, file), text)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func configured(t *testing.T, dir string, thermoTasks int) *plugin {
	t.Helper()
	p := newPlugin()
	err := p.configure(config{Dir: dir, Vendor: "acme", ThermoTasks: thermoTasks, Models: map[string]*modelConfig{
		"T100": {Attributes: map[string]string{"power": "20 mW", "range": "120"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// fingerprint returns the valid result of Fingerprint.
func fingerprint(t *testing.T, p *plugin) map[string]device.Group {
	t.Helper()
	groups, err := p.Fingerprint(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := (device.Fingerprint{Groups: groups}).Validate(); err != nil {
		t.Fatal(err)
	}
	byID := map[string]device.Group{}
	for _, g := range groups {
		byID[g.ID.String()] = g
	}
	return byID
}

func TestFingerprint(t *testing.T) {
	bus := newBus(t)
	p := configured(t, bus, 2)
	groups := fingerprint(t, p)
	if len(groups) != 2 || len(groups["acme/thermo/T100"].Devices) != 4 || len(groups["acme/relay/R7"].Devices) != 1 {
		t.Fatalf("groups are %v", groups)
	}
	if a := groups["acme/thermo/T100"].Attributes["power"]; a.String() != "20mW" {
		t.Errorf("power is %v", a)
	}

	write(t, filepath.Join(bus, "relay/pump/state"), "broken")
	if d := fingerprint(t, p)["acme/relay/R7"].Devices[0]; d.Healthy || !strings.Contains(d.HealthDescription, "broken") {
		t.Errorf("a broken relay is %+v", d)
	}
	write(t, filepath.Join(bus, "relay/pump/state"), "ok")
	if d := fingerprint(t, p)["acme/relay/R7"].Devices[0]; !d.Healthy {
		t.Errorf("a repaired relay is %+v", d)
	}

	addNode(t, bus, "relay/fan", "R7", "0")
	os.RemoveAll(filepath.Join(bus, "thermo/attic"))
	groups = fingerprint(t, p)
	if len(groups["acme/thermo/T100"].Devices) != 2 || len(groups["acme/relay/R7"].Devices) != 2 {
		t.Errorf("after changes the groups are %v", groups)
	}

	os.RemoveAll(bus)
	if _, err := p.Fingerprint(context.Background()); err == nil {
		t.Error("no error without a bus")
	}
}

func TestReserve(t *testing.T) {
	bus := newBus(t)
	p := configured(t, bus, 2)
	for group, readOnly := range map[string]bool{"acme/thermo/T100": true, "acme/relay/R7": false} {
		g := fingerprint(t, p)[group]
		r, err := p.Reserve(context.Background(), &sdk.ReserveRequest{Group: g, Devices: g.Devices})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
		for _, m := range r.Mounts {
			if m.ReadOnly != readOnly {
				t.Errorf("%s: mount is %+v", group, m)
			}
		}
		if readOnly && (len(r.Mounts) != 2 || r.Env["SENSORBUS_THERMO_ATTIC"] != filepath.Join(bus, "thermo/attic")) {
			t.Errorf("reservation is %+v", r)
		}
	}
}

func TestStats(t *testing.T) {
	bus := newBus(t)
	p := configured(t, bus, 1)
	sample := func() device.DeviceStats {
		groups, err := p.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := (device.Stats{Groups: groups}).Validate(); err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			if s, ok := g.Instances["thermo/attic"]; ok {
				return s
			}
		}
		t.Fatal("no statistics of thermo/attic")
		return device.DeviceStats{}
	}
	sample()
	s := sample()
	if s.Summary.Value != 21.5 || s.Summary.Unit != "°C" || s.Stats.Attributes["reads"].Value != int64(2) {
		t.Errorf("statistics are %+v", s)
	}
	write(t, filepath.Join(bus, "thermo/attic/value"), "?")
	if s := sample(); s.Summary.Value != nil || s.Stats.Attributes["reads"].Value != int64(2) {
		t.Errorf("statistics without a value are %+v", s)
	}
}

// TestDecodeModels tests that each model has its own attributes.
func TestDecodeModels(t *testing.T) {
	var c config
	err := hclspec.UnmarshalJSON([]byte(`{"models": {
		"A": {"attributes": {"x": "1"}}, "B": {"attributes": {"y": "2"}}, "C": {"attributes": null}}}`), &c)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Models["A"].Attributes) != 1 || c.Models["B"].Attributes["y"] != "2" || len(c.Models["C"].Attributes) != 0 {
		t.Errorf("models are %+v, %+v, %+v", c.Models["A"], c.Models["B"], c.Models["C"])
	}
}

func TestConfig(t *testing.T) {
	for want, c := range map[string]config{
		"not an absolute path": {Dir: "bus", Vendor: "acme", ThermoTasks: 1},
		"vendor":               {Dir: "/bus", Vendor: "a/b", ThermoTasks: 1},
		"thermo_tasks":         {Dir: "/bus", Vendor: "acme"},
		"furlong": {Dir: "/bus", Vendor: "acme", ThermoTasks: 1,
			Models: map[string]*modelConfig{"T": {Attributes: map[string]string{"range": "3 furlong"}}}},
	} {
		if err := newPlugin().configure(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error %v", want, err)
		}
	}
}
