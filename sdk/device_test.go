package sdk

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// cameraPlugin is a device plugin whose results a test sets.
type cameraPlugin struct {
	changes chan struct{}

	mu           sync.Mutex
	groups       []device.Group
	err          error
	panics       bool
	fingerprints int
	reserved     *ReserveRequest
	samples      int
}

var (
	_ Watcher             = (*cameraPlugin)(nil)
	_ DeviceStatsProvider = (*cameraPlugin)(nil)
)

func (*cameraPlugin) Info() DeviceInfo { return DeviceInfo{Name: "camera"} }

func (p *cameraPlugin) set(groups []device.Group, err error, panics bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups, p.err, p.panics = groups, err, panics
}

func (p *cameraPlugin) calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fingerprints
}

func (p *cameraPlugin) result() ([]device.Group, error) {
	if p.panics {
		panic("no lens")
	}
	return p.groups, p.err
}

func (p *cameraPlugin) Fingerprint(context.Context) ([]device.Group, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fingerprints++
	return p.result()
}

func (p *cameraPlugin) Reserve(_ context.Context, req *ReserveRequest) (*device.Reservation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved = req
	if _, err := p.result(); err != nil {
		return nil, err
	}
	return &device.Reservation{Env: map[string]string{"CAMERA": req.Devices[0].ID}}, nil
}

func (p *cameraPlugin) Stats(context.Context) ([]device.GroupStats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.samples++
	_, err := p.result()
	return []device.GroupStats{{ID: device.GroupID{Vendor: "v", Type: "t", Name: "n"}}}, err
}

func (p *cameraPlugin) Watch(context.Context) <-chan struct{} { return p.changes }

func cameras(ids ...string) []device.Group {
	g := device.Group{ID: device.GroupID{Vendor: "acme", Type: "camera", Name: "1"}}
	for _, id := range ids {
		g.Devices = append(g.Devices, device.Device{ID: id, Healthy: true})
	}
	return []device.Group{g}
}

func newTestDeviceServer(t *testing.T, p Device) *deviceServer {
	t.Helper()
	id, err := newPluginIdentity(p, p.Info().Name, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newDeviceServer(p, id, p.Info())
	if err != nil {
		t.Fatal(err)
	}
	s.logger = hclog.NewNullLogger()
	return s
}

func TestFingerprintReportsChangesOfDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &cameraPlugin{changes: make(chan struct{}), groups: cameras("a")}
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := newTestDeviceServer(t, p).Fingerprint(ctx)
		if err != nil {
			t.Fatal(err)
		}
		expect := func(when string, want []device.Group) {
			t.Helper()
			if f := <-ch; f.Err != nil || !reflect.DeepEqual(f.Groups, want) {
				t.Errorf("%s: %+v, want %+v", when, f, want)
			}
		}
		expect("at first", cameras("a"))

		start := time.Now()
		p.set(cameras("a", "b"), nil, false)
		expect("after the interval", cameras("a", "b"))
		if d := time.Since(start); d != defaultFingerprintInterval {
			t.Errorf("the change was sent after %v", d)
		}

		start = time.Now()
		p.set(cameras("b"), nil, false)
		p.changes <- struct{}{}
		expect("after a notification", cameras("b"))
		if d := time.Since(start); d != 0 {
			t.Errorf("the change was sent after %v", d)
		}

		close(p.changes)
		synctest.Wait()
		start = time.Now()
		p.set(nil, nil, false)
		expect("after the channel was closed", nil)
		if d := time.Since(start); d != defaultFingerprintInterval {
			t.Errorf("the change was sent after %v", d)
		}
		synctest.Wait()
		before := p.calls()
		time.Sleep(10*defaultFingerprintInterval + 1)
		synctest.Wait()
		if n := p.calls() - before; n != 10 {
			t.Errorf("%d calls in ten intervals", n)
		}
		cancel()
		if f, ok := <-ch; ok {
			t.Errorf("after cancellation: %+v", f)
		}
	})
}

func TestDevicesAreUnhealthyAfterAnError(t *testing.T) {
	unhealthy := func(reason string) []device.Group {
		groups := cameras("a")
		groups[0].Devices[0].Healthy, groups[0].Devices[0].HealthDescription = false, reason
		return groups
	}
	for name, c := range map[string]struct {
		groups []device.Group
		err    error
		panics bool
		want   string // part of the HealthDescription
	}{
		"error":   {err: errors.New("no power"), want: "no power"},
		"panic":   {panics: true, want: "method *sdk.cameraPlugin.Fingerprint panicked: no lens"},
		"invalid": {groups: cameras(""), want: `invalid result of Fingerprint: groups[0] ("acme/camera/1"): devices[0]: id is empty`},
		"one id in two groups": {
			groups: append(cameras("a"), device.Group{ID: device.GroupID{Vendor: "v", Type: "t", Name: "n"}, Devices: []device.Device{{ID: "a"}}}),
			want:   `the groups "acme/camera/1" and "v/t/n" have a device with the id "a"`,
		},
	} {
		p := &cameraPlugin{groups: cameras("a")}
		s := newTestDeviceServer(t, p)
		if f := s.fingerprintOrUnhealthy(t.Context()); !reflect.DeepEqual(f.Groups, cameras("a")) {
			t.Fatalf("%s: at first %+v", name, f)
		}
		p.set(c.groups, c.err, c.panics)
		f := s.fingerprintOrUnhealthy(t.Context())
		if !strings.Contains(f.FailureReason, c.want) {
			t.Errorf("%s: the reason is %q, want %q", name, f.FailureReason, c.want)
		}
		if f.Err != nil || len(f.Groups) != 1 || !strings.Contains(f.Groups[0].Devices[0].HealthDescription, c.want) {
			t.Errorf("%s: %+v, want %q", name, f, c.want)
		} else if want := unhealthy(f.Groups[0].Devices[0].HealthDescription); !reflect.DeepEqual(f.Groups, want) {
			t.Errorf("%s: %+v, want %+v", name, f.Groups, want)
		}
		p.set(cameras("a"), nil, false)
		if f := s.fingerprintOrUnhealthy(t.Context()); !reflect.DeepEqual(f, device.Fingerprint{Groups: cameras("a")}) {
			t.Errorf("%s: at last %+v", name, f)
		}
		p.set(nil, device.ErrDisabled, false)
		if f := s.fingerprintOrUnhealthy(t.Context()); !errors.Is(f.Err, device.ErrDisabled) {
			t.Errorf("%s: a disabled plugin: %+v", name, f)
		}
	}
}

func TestReserveFindsDevices(t *testing.T) {
	p := &cameraPlugin{groups: append(cameras("a", "b"), device.Group{ID: device.GroupID{Vendor: "v", Type: "t", Name: "n"}, Devices: []device.Device{{ID: "c"}}})}
	s := newTestDeviceServer(t, p)
	r, err := s.Reserve(t.Context(), []string{"b", "a"}) // before the first Fingerprint
	if err != nil || r.Env["CAMERA"] != "b" || len(p.reserved.Devices) != 2 || p.reserved.Devices[1].ID != "a" || len(p.reserved.Group.Devices) != 2 {
		t.Errorf("Reserve returned %+v, %v for %+v", r, err, p.reserved)
	}
	if p.fingerprints != 1 {
		t.Errorf("%d calls of Fingerprint", p.fingerprints)
	}
	for want, ids := range map[string][]string{
		"the request has no device ids":                     nil,
		`unknown device id "x"`:                             {"a", "x"},
		`the request has the device id "a" twice`:           {"a", "a"},
		`devices of the groups "acme/camera/1" and "v/t/n"`: {"a", "c"},
	} {
		if r, err := s.Reserve(t.Context(), ids); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reserve %q: %+v, %v; want %s", ids, r, err, want)
		}
	}
	p.set(nil, nil, true)
	if _, err := s.Reserve(t.Context(), []string{"a"}); err == nil || !strings.Contains(err.Error(), "cameraPlugin.Reserve panicked: no lens") {
		t.Errorf("a panic: %v", err)
	}
}

func TestDeviceStatsKeepTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &cameraPlugin{}
		s := newTestDeviceServer(t, p)
		start := time.Now()
		ch, err := s.Stats(t.Context(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if sample := <-ch; sample.Err != nil || len(sample.Groups) != 1 || time.Since(start) != time.Duration(i)*5*time.Second {
				t.Errorf("sample %d after %v: %+v", i, time.Since(start), sample)
			}
		}
		p.set(nil, nil, true)
		if sample := <-ch; sample.Err == nil || !strings.Contains(sample.Err.Error(), "cameraPlugin.Stats panicked: no lens") {
			t.Errorf("after a panic: %+v", sample)
		}
		if sample, ok := <-ch; ok {
			t.Errorf("after an error: %+v", sample)
		}
	})
}

// plainDevice has no optional method.
type plainDevice struct{ info DeviceInfo }

func (d plainDevice) Info() DeviceInfo                                  { return d.info }
func (plainDevice) Fingerprint(context.Context) ([]device.Group, error) { return nil, nil }
func (plainDevice) Reserve(context.Context, *ReserveRequest) (*device.Reservation, error) {
	return nil, nil
}

type deviceWithWrongStats struct{ plainDevice }

func (deviceWithWrongStats) Stats() error { return nil }

func TestDeviceWithoutStatsEndsTheStream(t *testing.T) {
	ch, err := newTestDeviceServer(t, plainDevice{DeviceInfo{Name: "plain"}}).Stats(t.Context(), time.Second)
	if s, ok := <-ch; ok || err != nil {
		t.Errorf("received %+v, %v", s, err)
	}
}

func TestDeviceThatCannotBeServedIsRejected(t *testing.T) {
	for _, test := range []struct {
		device Device
		want   string
	}{
		{plainDevice{}, ".Info has no Name"},
		{plainDevice{DeviceInfo{Name: "x", FingerprintInterval: -1}}, "FingerprintInterval in Info is -1ns"},
		{plainDevice{DeviceInfo{Name: "x", ConfigSchema: hclspec.Object(nil)}}, "nothing takes the configuration: add Configure"},
		{deviceWithWrongStats{plainDevice{DeviceInfo{Name: "x"}}}, "the method Stats of sdk.deviceWithWrongStats is func() error; it must be func(context.Context) ([]device.GroupStats, error)"},
	} {
		if p, err := newDeviceSpec(test.device); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%T: %+v, %v; want %s", test.device, p, err, test.want)
		}
	}
}
