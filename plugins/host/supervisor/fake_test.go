package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// fakePlugin is an instance of a plugin that has no process.
type fakePlugin struct {
	info     base.Info
	done     chan struct{}
	exitOnce sync.Once
	drv      *fakeDriver

	configSchema *hclspec.Spec

	wrapperDriver driver.Driver // wrapped: replaces drv if it is set; it contains drv

	devices device.Plugin // devices: nil if the plugin is not a device plugin

	hook        *hookwire.Client // hook: nil if the plugin is a driver
	description *hook.Description

	mu          sync.Mutex
	stopped     bool
	closed      bool
	unreachable bool // deaf: CheckHealth fails, as if no process listened on the plugin's socket
}

func newFakePlugin(name, version string) *fakePlugin {
	f := &fakePlugin{
		info: base.Info{Type: base.TypeDriver, Name: name, Version: version, APIVersions: []string{"v0.1.0"}},
		done: make(chan struct{}),
	}
	f.drv = &fakeDriver{plugin: f, fingerprints: make(chan driver.Fingerprint), events: make(chan *driver.TaskEvent)}
	return f
}

func (f *fakePlugin) Info() base.Info { return f.info }
func (f *fakePlugin) ConfigSchema(context.Context) (*hclspec.Spec, error) {
	return f.configSchema, nil
}
func (f *fakePlugin) Driver() driver.Driver {
	if f.wrapperDriver != nil {
		return f.wrapperDriver
	}
	return f.drv
}
func (f *fakePlugin) Device() device.Plugin                       { return f.devices }
func (f *fakePlugin) PID() int                                    { return 42 }
func (f *fakePlugin) StartedAt() time.Time                        { return time.Time{} }
func (f *fakePlugin) CallStats() *basewire.CallStatsCollector     { return &basewire.CallStatsCollector{} }
func (f *fakePlugin) Hook() (*hookwire.Client, *hook.Description) { return f.hook, f.description }
func (f *fakePlugin) Done() <-chan struct{}                       { return f.done }
func (f *fakePlugin) WaitForExitReason() error {
	<-f.done
	return fmt.Errorf("plugin %q: exited", f.info.Name)
}
func (f *fakePlugin) StderrClosed() <-chan struct{} { return f.done }
func (f *fakePlugin) Kill()                         { f.die() }
func (f *fakePlugin) die()                          { f.exitOnce.Do(func() { close(f.done) }) }
func (f *fakePlugin) Stop(context.Context) {
	f.mu.Lock()
	f.stopped = true
	f.mu.Unlock()
	f.die()
}
func (f *fakePlugin) Detach() {}
func (f *fakePlugin) KillAndRelease() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
}
func (f *fakePlugin) Connected() bool { return f.CheckHealth(context.Background()) == nil }
func (f *fakePlugin) CheckHealth(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unreachable {
		return errors.New("connection refused")
	}
	return nil
}
func (f *fakePlugin) becomeUnreachable() {
	f.mu.Lock()
	f.unreachable = true
	f.mu.Unlock()
}

// errOnOpenStream is an error of a fingerprint after which the fake driver keeps the stream open.
var errOnOpenStream = errors.New("the engine does not respond")

// fakeDriver sends the values that a test puts into its channels. If broken is set, its
// streams end immediately.
type fakeDriver struct {
	driver.Driver
	plugin       *fakePlugin
	fingerprints chan driver.Fingerprint
	events       chan *driver.TaskEvent

	mu                    sync.Mutex
	streamCount           int  // number of opened fingerprint streams
	streamsBroken         bool // streams end at once
	omitsFirstFingerprint bool // silent: the driver sends no first fingerprint
}

func (d *fakeDriver) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	d.mu.Lock()
	d.streamCount++
	broken, silent := d.streamsBroken, d.omitsFirstFingerprint
	d.mu.Unlock()
	out := make(chan driver.Fingerprint)
	go func() {
		defer close(out)
		send := func(fp driver.Fingerprint) {
			select {
			case out <- fp:
			case <-ctx.Done():
			}
		}
		if broken {
			send(driver.Fingerprint{Err: errors.New("stream broke")})
			return
		}
		if !silent {
			send(driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy"})
		}
		for {
			select {
			case fp := <-d.fingerprints:
				send(fp)
				if fp.Err != nil && !errors.Is(fp.Err, errOnOpenStream) {
					return
				}
			case <-d.plugin.done:
				send(driver.Fingerprint{Err: driver.ErrPluginDown})
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (d *fakeDriver) TaskEvents(ctx context.Context) (<-chan *driver.TaskEvent, error) {
	out := make(chan *driver.TaskEvent)
	go func() {
		defer close(out)
		for {
			select {
			case ev := <-d.events:
				select {
				case out <- ev:
				case <-ctx.Done():
				}
			case <-d.plugin.done:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (d *fakeDriver) set(change func(*fakeDriver)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func builtinEntry(name string) catalog.Entry {
	return catalog.Entry{Name: name, Builtin: true, Type: base.TypeDriver, Version: "0.1.0"}
}

func externalEntry(name string) catalog.Entry {
	return catalog.Entry{Name: name, Path: "/plugins/" + name, Block: &catalog.PluginBlock{Name: name}}
}

// externalEntryWithoutBlock returns the catalog entry of a file in the plugin directory that has no plugin block.
func externalEntryWithoutBlock(name string) catalog.Entry {
	return catalog.Entry{Name: name, Path: "/plugins/" + name}
}

// unwrapFakeDriver returns the fakeDriver inside a driver that the supervisor has returned.
func unwrapFakeDriver(d driver.Driver) *fakeDriver { return d.(*watchedDriver).Driver.(*fakeDriver) }
