package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// fakeDevices is a device plugin that sends the fingerprints that a test puts into its channel.
type fakeDevices struct {
	device.Plugin
	plugin       *fakePlugin
	fingerprints chan device.Fingerprint
}

// newFakeDevices returns a device plugin that sends a fingerprint with the given groups.
func newFakeDevices(name string, groups ...device.Group) *fakePlugin {
	f := newFakePlugin(name, "1.0.0")
	f.info.Type, f.drv = base.TypeDevice, nil
	d := &fakeDevices{plugin: f, fingerprints: make(chan device.Fingerprint, 1)}
	d.fingerprints <- device.Fingerprint{Groups: groups}
	f.devices = d
	return f
}

func (d *fakeDevices) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	out := make(chan device.Fingerprint)
	go func() {
		defer close(out)
		for {
			var f device.Fingerprint
			select {
			case f = <-d.fingerprints:
			case <-d.plugin.done:
				f.Err = device.ErrPluginDown
			case <-ctx.Done():
				return
			}
			select {
			case out <- f:
			case <-ctx.Done():
			}
			if f.Err != nil {
				return
			}
		}
	}()
	return out, nil
}

func (f *fakePlugin) sendDevices(fingerprint device.Fingerprint) {
	f.devices.(*fakeDevices).fingerprints <- fingerprint
}

// widgets returns a group of devices; an id that starts with ! is unhealthy.
func widgets(name string, ids ...string) device.Group {
	g := device.Group{ID: device.GroupID{Vendor: "acme", Type: "widget", Name: name}}
	for _, id := range ids {
		id, sick := strings.CutPrefix(id, "!")
		g.Devices = append(g.Devices, device.Device{ID: id, Healthy: !sick})
	}
	return g
}

// devicesState describes the devices of a supervisor, and the error of its first plugin.
func devicesState(s *Supervisor) string {
	var all []string
	for _, g := range s.DeviceGroups() {
		text := g.PluginName + ":" + g.ID.Name
		for _, d := range g.Devices {
			text += " " + d.ID
			if !d.Healthy {
				text += "!"
			}
		}
		all = append(all, text)
	}
	state := strings.Join(all, ", ")
	if reason := s.Plugins()[0].DeviceFailureReason; reason != "" {
		state += " | cannot look: " + reason
	}
	if err := s.Plugins()[0].Err; err != nil {
		state += " | " + err.Error()
	}
	return state
}

// TestDevicePluginStates is a table of the events of a device plugin: its devices and its state
// after each event.
func TestDevicePluginStates(t *testing.T) {
	const notAgain = "; the plugin is not started again until it has changed or the agent is restarted"
	send := func(fingerprint device.Fingerprint) func(*fakePlugin) {
		return func(f *fakePlugin) { f.sendDevices(fingerprint) }
	}
	groups := func(groups ...device.Group) func(*fakePlugin) { return send(device.Fingerprint{Groups: groups}) }
	fails := func(err error) func(*fakePlugin) { return send(device.Fingerprint{Err: err}) }
	type step struct {
		event func(*fakePlugin) // applied to the latest process
		after time.Duration
		want  string
	}
	for _, c := range []struct {
		name         string
		steps        []step
		wantLaunches int
	}{
		{"a fingerprint replaces the one before", []step{
			{nil, 0, "one:w a b"},
			{groups(widgets("w", "a", "!b"), widgets("x", "c")), time.Second, "one:w a b!, one:x c"},
			{groups(), time.Second, ""},
			{groups(widgets("w", "a")), time.Second, "one:w a"},
		}, 1},
		{"a plugin that could not look for devices continues", []step{
			{send(device.Fingerprint{FailureReason: "no bus"}), time.Second, " | cannot look: no bus"},
			{send(device.Fingerprint{FailureReason: "no power"}), time.Second, " | cannot look: no power"},
			{groups(widgets("w", "a")), time.Second, "one:w a"},
		}, 1},
		{"a plugin that exits keeps its devices while it is launched again", []step{
			{(*fakePlugin).die, 0, "one:w a b"},
			{(*fakePlugin).die, time.Second, ` | plugin "one": exited`},
			{nil, 5 * time.Second, "one:w a b"},
		}, 3},
		{"a disabled plugin is not launched again", []step{
			{fails(fmt.Errorf("device plugin %q: %w", "one", device.ErrDisabled)), 0, ` | device plugin "one": device is not enabled` + notAgain},
			{nil, time.Hour, ` | device plugin "one": device is not enabled` + notAgain},
		}, 1},
		{"a stream that ends", []step{
			{fails(device.ErrStreamEnded), 0, " | the plugin has ended the fingerprint stream" + notAgain},
			{nil, time.Hour, " | the plugin has ended the fingerprint stream" + notAgain},
		}, 1},
		{"an invalid fingerprint", []step{
			{fails(errors.New("vendor is empty")), 0, " | vendor is empty" + notAgain},
			{nil, time.Hour, " | vendor is empty" + notAgain},
		}, 1},
		{"a plugin that no process can reach is killed and launched again", []step{
			{func(f *fakePlugin) {
				f.becomeUnreachable()
				f.sendDevices(device.Fingerprint{Err: device.ErrPluginDown})
			}, 2 * time.Second, "one:w a b"},
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var processes []*fakePlugin
				s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("one")}, func(context.Context, string, int) (*fakePlugin, error) {
					mu.Lock()
					defer mu.Unlock()
					processes = append(processes, newFakeDevices("one", widgets("w", "a", "b")))
					return processes[len(processes)-1], nil
				})
				synctest.Wait()
				for i, step := range c.steps {
					if step.event != nil {
						mu.Lock()
						f := processes[len(processes)-1]
						mu.Unlock()
						step.event(f)
					}
					time.Sleep(step.after)
					synctest.Wait()
					if got := devicesState(s); got != step.want {
						t.Errorf("step %d: %q, want %q", i, got, step.want)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if len(processes) != c.wantLaunches {
					t.Errorf("%d launches, want %d", len(processes), c.wantLaunches)
				}
			})
		})
	}
}

func TestNodeIsReadyWithTheFirstDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeDevices("one")
		<-f.devices.(*fakeDevices).fingerprints
		s := startSupervisor(t, Config{LastServedKey: func(catalog.Entry) (PluginKey, bool) { return PluginKey{base.TypeDevice, "one"}, true }},
			[]catalog.Entry{externalEntry("one")}, func(context.Context, string, int) (*fakePlugin, error) { return f, nil })
		time.AfterFunc(time.Second, func() { f.sendDevices(device.Fingerprint{Groups: []device.Group{widgets("w", "a")}}) })
		if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := devicesState(s); got != "one:w a" {
			t.Errorf("devices of the ready node: %q", got)
		}
	})
}

// TestDeviceWaitsForTheFirstFingerprint kills a process, so that callers wait for the devices of the
// next one.
func TestDeviceWaitsForTheFirstFingerprint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var processes [2]*fakePlugin
		for i := range processes {
			processes[i] = newFakeDevices("one")
			<-processes[i].devices.(*fakeDevices).fingerprints
		}
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("one")}, func(_ context.Context, _ string, n int) (*fakePlugin, error) {
			return processes[n-1], nil
		})
		for i, f := range processes {
			begin := time.Now()
			time.AfterFunc(3*time.Second, func() { f.sendDevices(device.Fingerprint{}) })
			if d, err := s.Device(t.Context(), "one", time.Time{}); d != f.devices || time.Since(begin) != 3*time.Second {
				t.Errorf("process %d: %v after %v", i, err, time.Since(begin))
			}
			if i == 0 {
				f.die()
			}
		}
	})
}

// TestFlappingDevicesChangeOncePerSecond also checks that the last of many fingerprints counts.
func TestFlappingDevicesChangeOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeDevices("one", widgets("w", "a"))
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("one")}, func(context.Context, string, int) (*fakePlugin, error) { return f, nil })
		synctest.Wait()
		changes := 0
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-s.InfoChanged():
					changes++
				case <-stop:
					return
				}
			}
		})
		for i := range 10_000 {
			f.sendDevices(device.Fingerprint{Groups: []device.Group{widgets("w", []string{"a", "!a"}[i%2])}})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		close(stop)
		wg.Wait()
		if changes > 12 {
			t.Errorf("%d changes in 12 seconds", changes)
		}
		if got := devicesState(s); got != "one:w a!" {
			t.Errorf("devices %q", got)
		}
	})
}

func TestDevicesOfTwoPlugins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("one"), externalEntry("two")}, func(_ context.Context, name string, _ int) (*fakePlugin, error) {
			return newFakeDevices(name, widgets("w", name), widgets(name, "x")), nil
		})
		synctest.Wait()
		if got := devicesState(s); got != "one:w one, one:one x, two:two x" {
			t.Errorf("devices %q", got)
		}
		s.setCatalogEntries([]catalog.Entry{externalEntry("two")})
		time.Sleep(idleTimeout)
		synctest.Wait()
		if got := devicesState(s); got != "two:w two, two:two x" {
			t.Errorf("devices without the first plugin: %q", got)
		}
	})
}

func TestDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeDevices("one")
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("one")}, func(_ context.Context, _ string, n int) (*fakePlugin, error) {
			switch n {
			case 1:
				return f, nil
			case 2:
				return nil, errors.New("no licence")
			}
			return newFakeDevices("one"), nil
		})
		if d, err := s.Device(t.Context(), "one", time.Time{}); d != f.devices {
			t.Errorf("device %v, %v", d, err)
		}
		if _, err := s.Device(t.Context(), "two", time.Time{}); !errors.Is(err, ErrNoDevicePlugin) || !strings.Contains(err.Error(), "there is only one") {
			t.Errorf("unknown plugin: %v", err)
		}
		if d, err := s.Describe(t.Context(), PluginKey{base.TypeDevice, "one"}); err != nil || d.Info.Name != "one" || d.Capabilities != nil {
			t.Errorf("description %+v, %v", d, err)
		}
		if _, err := s.Driver(t.Context(), "one"); !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), `reports itself as device "one"`) {
			t.Errorf("a driver with the name of the device plugin: %v", err)
		}
		f.die()
		synctest.Wait()
		if _, err := s.Device(t.Context(), "one", time.Time{}); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no licence") {
			t.Errorf("during the backoff: %v", err)
		}
		if d, err := s.Device(t.Context(), "one", time.Now().Add(10*time.Second)); err != nil || d == f.devices {
			t.Errorf("after the backoff: %v", err)
		}
	})
}

// TestDevicePluginIsNotReattached runs the process of an earlier agent as a device plugin.
func TestDevicePluginIsNotReattached(t *testing.T) {
	t.Parallel()
	n := newRestartableNode(t)
	n.run(catalog.Config{Builtins: newCatalogBuiltins("one")}, true, func(s *Supervisor) { n.pid(s, "one") })
	rec := n.recordStore.records["builtin one"]
	rec.Serves = PluginKey{base.TypeDevice, "one"}
	_ = n.recordStore.PutPlugin("builtin one", rec)
	n.run(catalog.Config{Builtins: newCatalogBuiltins("one")}, true, func(s *Supervisor) {
		if pid := n.pid(s, "one"); pid == rec.Pid {
			t.Error("the device plugin was reattached")
		}
		if status, err := n.keeper.Wait(t.Context(), rec.ProcessID()); err != nil || status.Signal != 9 {
			t.Errorf("the old process: %+v, %v", status, err)
		}
	})
	if keys := slices.Collect(func(yield func(string) bool) {
		for key := range n.recordStore.records {
			if !yield(key) {
				return
			}
		}
	}); len(keys) != 1 {
		t.Errorf("records %v", keys)
	}
}
