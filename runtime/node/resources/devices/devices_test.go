package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
)

var widget = device.GroupID{Vendor: "acme", Type: "widget", Name: "w"}

// fakePlugins is a supervisor with one device plugin "p". The plugin's calls have the results in its
// fields.
type fakePlugins struct {
	mu          sync.Mutex
	groups      []supervisor.DeviceGroup
	changed     chan struct{}
	reserve     []func(context.Context) (*device.Reservation, error) // results for successive Reserve calls
	reservedIDs [][]string
	launchErr   error
	openStats   func(context.Context) (<-chan device.Stats, error)
	statsOpened int
}

func newFakePlugins(ids ...device.GroupID) *fakePlugins {
	f := &fakePlugins{changed: make(chan struct{})}
	f.setGroups(ids...)
	return f
}

func (f *fakePlugins) setGroups(ids ...device.GroupID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups = nil
	for _, id := range ids {
		f.groups = append(f.groups, supervisor.DeviceGroup{PluginName: "p", Group: device.Group{ID: id}})
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakePlugins) DeviceGroups() []supervisor.DeviceGroup {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.groups
}

func (f *fakePlugins) InfoChanged() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fakePlugins) Device(_ context.Context, name string, _ time.Time) (device.Plugin, error) {
	if name != "p" {
		return nil, fmt.Errorf("no plugin %q", name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return fakePlugin{fakes: f}, f.launchErr
}

func (f *fakePlugins) setLaunchErr(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.launchErr = err
}

type fakePlugin struct {
	device.Plugin
	fakes *fakePlugins
}

func (p fakePlugin) Reserve(ctx context.Context, ids []string) (*device.Reservation, error) {
	f := p.fakes
	f.mu.Lock()
	f.reservedIDs = append(f.reservedIDs, ids)
	result := f.reserve[0]
	f.reserve = f.reserve[1:]
	f.mu.Unlock()
	return result(ctx)
}

func (p fakePlugin) Stats(ctx context.Context, _ time.Duration) (<-chan device.Stats, error) {
	p.fakes.mu.Lock()
	p.fakes.statsOpened++
	p.fakes.mu.Unlock()
	return p.fakes.openStats(ctx)
}

func newTestManager(t *testing.T, f *fakePlugins) *Manager {
	m := New(f, Config{StatsInterval: time.Second, Logger: hclog.NewNullLogger()})
	t.Cleanup(m.Close)
	return m
}

func TestReserve(t *testing.T) {
	reservation := &device.Reservation{Env: map[string]string{"WIDGETS": "a"}}
	type results = []func(context.Context) (*device.Reservation, error)
	succeeds := func(context.Context) (*device.Reservation, error) { return reservation, nil }
	fails := func(err error) func(context.Context) (*device.Reservation, error) {
		return func(context.Context) (*device.Reservation, error) { return nil, err }
	}
	errInBackOff := errors.New("killed")
	hangs := func(ctx context.Context) (*device.Reservation, error) { <-ctx.Done(); return nil, ctx.Err() }
	for _, c := range []struct {
		name      string
		results   results
		launchErr error
		wantErr   string
		wantAfter time.Duration
		outages   int
	}{
		{"success", results{succeeds}, nil, "", 0, 0},
		{"a crash", results{fails(device.ErrPluginDown), succeeds}, nil, "", 0, 0},
		{"three crashes", results{fails(device.ErrPluginDown), fails(device.ErrPluginDown), fails(device.ErrPluginDown), succeeds}, nil, "", 0, 1},
		{"an error is not repeated", results{fails(errors.New("no such id"))}, nil, "failed to reserve device acme/widget/w[a,b]: no such id", 0, 0},
		{"a plugin in its back-off", results{succeeds}, errInBackOff, "", time.Hour, 1},
		{"a plugin that hangs", results{hangs}, nil,
			`failed to reserve device acme/widget/w[a,b]: no answer after 30s: device plugin "p" does not respond to Reserve: context deadline exceeded`, 30 * time.Second, 0},
		{"a plugin that cannot be started", nil, errors.New("no licence"), "failed to reserve device acme/widget/w[a,b]: no licence", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakePlugins(widget)
				f.reserve, f.launchErr = c.results, c.launchErr
				if c.launchErr == errInBackOff {
					changed := make(chan struct{})
					f.launchErr = &driver.UnavailableError{Plugin: "p", Err: errInBackOff, RetryOnClose: changed}
					time.AfterFunc(time.Hour, func() { f.setLaunchErr(nil); close(changed) })
				}
				begin := time.Now()
				outages := 0
				r, err := newTestManager(t, f).Reserve(t.Context(), &api.AllocatedDeviceResource{Vendor: "acme", Type: "widget", Name: "w", DeviceIDs: []string{"a", "b"}}, func(error) { outages++ })
				if outages != c.outages {
					t.Errorf("%d reported outages, want %d", outages, c.outages)
				}
				if c.wantErr != "" && (err == nil || err.Error() != c.wantErr) || c.wantErr == "" && (err != nil || r != reservation) {
					t.Errorf("%v, %v; want %q", r, err, c.wantErr)
				}
				if took := time.Since(begin); took != c.wantAfter {
					t.Errorf("after %v, want %v", took, c.wantAfter)
				}
				for _, ids := range f.reservedIDs {
					if !slices.Equal(ids, []string{"a", "b"}) {
						t.Errorf("ids %q", ids)
					}
				}
				if len(f.reserve) != 0 {
					t.Errorf("%d calls are missing", len(f.reserve))
				}
			})
		})
	}
}

func TestReserveWithoutTimeoutWaitsForThePlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePlugins(widget)
		reservation := &device.Reservation{}
		f.reserve = append(f.reserve, func(ctx context.Context) (*device.Reservation, error) {
			select {
			case <-time.After(time.Hour):
				return reservation, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		m := New(f, Config{StatsInterval: time.Second, ReserveHasNoTimeout: true, Logger: hclog.NewNullLogger()})
		defer m.Close()
		r, err := m.Reserve(t.Context(), &api.AllocatedDeviceResource{Vendor: "acme", Type: "widget", Name: "w", DeviceIDs: []string{"a"}}, nil)
		if err != nil || r != reservation {
			t.Errorf("%v, %v; want the reservation after an hour", r, err)
		}
	})
}

func TestReserveWaitsForThePluginOfADevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePlugins()
		f.reserve = append(f.reserve, func(context.Context) (*device.Reservation, error) { return &device.Reservation{}, nil })
		m := newTestManager(t, f)
		allocated := &api.AllocatedDeviceResource{Vendor: "acme", Type: "widget", Name: "w", DeviceIDs: []string{"a"}}
		time.AfterFunc(5*time.Second, func() { f.setGroups(widget) })
		if _, err := m.Reserve(t.Context(), allocated, nil); err != nil {
			t.Errorf("a device that is reported later: %v", err)
		}

		f.setGroups()
		begin := time.Now()
		_, err := m.Reserve(t.Context(), allocated, nil)
		if want := "failed to reserve device acme/widget/w[a]: no device plugin reports it: nomad-lite plugin status shows the plugins that have failed"; err == nil || err.Error() != want {
			t.Errorf("an unknown device: %v", err)
		}
		if took := time.Since(begin); took != unknownDeviceTimeout {
			t.Errorf("an unknown device: after %v", took)
		}

		killed := errors.New("task killed")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(killed) })
		if _, err := m.Reserve(ctx, allocated, nil); !errors.Is(err, killed) {
			t.Errorf("a killed task: %v", err)
		}
	})
}

func TestNodeResources(t *testing.T) {
	got, err := json.Marshal(ToAPINodeDevices([]supervisor.DeviceGroup{
		{PluginName: "p", Group: device.Group{ID: device.GroupID{Vendor: "b", Type: "t", Name: "n"}}},
		{PluginName: "q", Group: device.Group{
			ID: device.GroupID{Vendor: "a", Type: "t", Name: "n"},
			Devices: []device.Device{
				{ID: "1", Healthy: true, PCIBusID: "0000:1"}, {ID: "2", HealthDescription: "too hot"},
			},
			Attributes: map[string]device.Attribute{"i": {Value: int64(2), Unit: "GiB"}, "f": {Value: 1.5}, "s": {Value: "x"}, "b": {Value: true}},
		}},
	}))
	want := `[{"Vendor":"a","Type":"t","Name":"n","Instances":[{"ID":"1","Healthy":true,"HealthDescription":"","Locality":{"PciBusID":"0000:1"}},{"ID":"2","Healthy":false,"HealthDescription":"too hot","Locality":null}],` +
		`"Attributes":{"b":{"Bool":true,"Unit":""},"f":{"Float":1.5,"Unit":""},"i":{"Int":2,"Unit":"GiB"},"s":{"String":"x","Unit":""}}},` +
		`{"Vendor":"b","Type":"t","Name":"n","Instances":null,"Attributes":{}}]`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
}

func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePlugins(widget)
		var n atomic.Int64
		f.openStats = func(ctx context.Context) (<-chan device.Stats, error) {
			out := make(chan device.Stats)
			go func() {
				defer close(out)
				for ctx.Err() == nil {
					stats := device.DeviceStats{
						Summary: device.StatValue{Value: n.Add(1), Max: int64(100), Unit: "%"},
						Stats: device.StatObject{
							Attributes: map[string]device.StatValue{"name": {Value: "x"}, "on": {Value: true}},
							Nested:     map[string]device.StatObject{"memory": {Attributes: map[string]device.StatValue{"used": {Value: 0.5, Max: 2.0}}}},
						},
					}
					select {
					case out <- device.Stats{Groups: []device.GroupStats{{ID: widget, Instances: map[string]device.DeviceStats{"a": stats, "b": {}}}}}:
					case <-ctx.Done():
						return
					}
					time.Sleep(time.Second)
				}
			}()
			return out, nil
		}
		m := newTestManager(t, f)
		all := m.StartSamplingAndGetStats(t.Context())
		got, _ := json.Marshal(StatsOfAllocated(all, []*api.AllocatedDeviceResource{{Vendor: "acme", Type: "widget", Name: "w", DeviceIDs: []string{"a"}}, {Vendor: "acme", Type: "widget", Name: "other", DeviceIDs: []string{"a"}}}))
		want := `[{"Vendor":"acme","Type":"widget","Name":"w","InstanceStats":{"a":{"Summary":{"IntNumeratorVal":1,"IntDenominatorVal":100,"Unit":"%"},` +
			`"Stats":{"Nested":{"memory":{"Nested":null,"Attributes":{"used":{"FloatNumeratorVal":0.5,"FloatDenominatorVal":2}}}},"Attributes":{"name":{"StringVal":"x"},"on":{"BoolVal":true}}},"Timestamp":"0001-01-01T00:00:00Z"}}}]`
		if string(got) != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		time.Sleep(3500 * time.Millisecond)
		if all := m.StartSamplingAndGetStats(t.Context()); *all[0].InstanceStats["a"].Summary.IntNumeratorVal != 4 || f.statsOpened != 1 {
			t.Errorf("a later request: sample %v of stream %d", *all[0].InstanceStats["a"].Summary.IntNumeratorVal, f.statsOpened)
		}
		time.Sleep(streamIdleTimeout + 2*time.Second)
		before := n.Load()
		time.Sleep(time.Minute)
		if n.Load() != before {
			t.Errorf("%d samples without a request", n.Load()-before)
		}
		if all := m.StartSamplingAndGetStats(t.Context()); len(all) != 1 || f.statsOpened != 2 {
			t.Errorf("after a pause: %d groups, %d streams", len(all), f.statsOpened)
		}
	})
}

func TestStatsWithoutPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakePlugins(widget)
		const last = 100_000
		f.openStats = func(ctx context.Context) (<-chan device.Stats, error) {
			out := make(chan device.Stats)
			go func() {
				defer close(out)
				for n := range last + 1 {
					stats := device.DeviceStats{Summary: device.StatValue{Value: int64(n)}}
					select {
					case out <- device.Stats{Groups: []device.GroupStats{{ID: widget, Instances: map[string]device.DeviceStats{"a": stats}}}}:
					case <-ctx.Done():
						return
					}
				}
				<-ctx.Done()
			}()
			return out, nil
		}
		m := newTestManager(t, f)
		m.StartSamplingAndGetStats(t.Context())
		synctest.Wait()
		if all := m.StartSamplingAndGetStats(t.Context()); len(all) != 1 || *all[0].InstanceStats["a"].Summary.IntNumeratorVal != last {
			t.Errorf("statistics %+v, want the last sample only", all)
		}
	})
}

func TestStatsOfAFailingPlugin(t *testing.T) {
	stream := func(samples ...device.Stats) func(context.Context) (<-chan device.Stats, error) {
		return func(context.Context) (<-chan device.Stats, error) {
			out := make(chan device.Stats, len(samples))
			for _, s := range samples {
				out <- s
			}
			close(out)
			return out, nil
		}
	}
	for _, c := range []struct {
		name      string
		open      func(context.Context) (<-chan device.Stats, error)
		wantOpens int // streams in a minute with a request per second
	}{
		{"an error", func(context.Context) (<-chan device.Stats, error) { return nil, errors.New("no sensor") }, 4}, // after 0, 5, 15 and 35 s
		{"an error in the stream", stream(device.Stats{Err: errors.New("no sensor")}), 4},
		{"the end of the stream", stream(device.Stats{Groups: []device.GroupStats{{ID: widget}}}), 1},
		{"no sample", func(ctx context.Context) (<-chan device.Stats, error) {
			out := make(chan device.Stats)
			context.AfterFunc(ctx, func() { close(out) })
			return out, nil
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakePlugins(widget)
				f.openStats = c.open
				m := newTestManager(t, f)
				begin := time.Now()
				m.StartSamplingAndGetStats(t.Context())
				if took := time.Since(begin); took > firstSampleTimeout {
					t.Errorf("the first request took %v", took)
				}
				for time.Since(begin) < time.Minute {
					asked := time.Now()
					if all := m.StartSamplingAndGetStats(t.Context()); all == nil {
						t.Error("nil")
					}
					if took := time.Since(asked); took > 0 {
						t.Errorf("a later request took %v", took)
					}
					time.Sleep(time.Second)
				}
				if f.statsOpened != c.wantOpens {
					t.Errorf("%d streams, want %d", f.statsOpened, c.wantOpens)
				}
			})
		})
	}
}
