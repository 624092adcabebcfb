package sdk

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// The functions of this file call methods of the author's plugin. Each function
// converts a panic into an error that names the method. Other places call only Info
// before the plugin is served (program.go), Start, Recover and Adopt
// (untypeddriver.go), and a hook's methods for hook points (package hook).

func callInfo(d infoProvider) (info DriverInfo, err error) {
	defer basewire.Recover(d, "Info", &err)
	return d.Info(), nil
}

func callConfigure(ctx context.Context, c Configurer, config *Config) (err error) {
	defer basewire.Recover(c, "Configure", &err)
	return c.Configure(ctx, config)
}

func callSetHost(u HostSetter, host hook.Host, node hook.Node) (err error) {
	defer basewire.Recover(u, "SetHost", &err)
	u.SetHost(host, node)
	return nil
}

func callInit(ctx context.Context, i Initializer) (err error) {
	defer basewire.Recover(i, "Init", &err)
	return i.Init(ctx)
}

func callShutdown(ctx context.Context, s Shutdowner) (err error) {
	defer basewire.Recover(s, "Shutdown", &err)
	return s.Shutdown(ctx)
}

// callFingerprint converts a panic into an unhealthy fingerprint instead of an error, because Fingerprint is
// called again after the next interval.
func callFingerprint(ctx context.Context, f Fingerprinter) (print driver.Fingerprint) {
	var err error
	defer func() {
		if err != nil {
			print = driver.Fingerprint{Health: driver.HealthUnhealthy, HealthDescription: err.Error()}
		}
	}()
	defer basewire.Recover(f, "Fingerprint", &err)
	return f.Fingerprint(ctx)
}

func callCreateNetwork(ctx context.Context, n NetworkManager, allocID, hostname string) (isolation *driver.NetworkIsolation, created bool, err error) {
	defer basewire.Recover(n, "CreateNetwork", &err)
	return n.CreateNetwork(ctx, allocID, hostname)
}

func callDestroyNetwork(ctx context.Context, n NetworkManager, allocID string, isolation *driver.NetworkIsolation) (err error) {
	defer basewire.Recover(n, "DestroyNetwork", &err)
	return n.DestroyNetwork(ctx, allocID, isolation)
}

func callSweep(ctx context.Context, s OrphanKiller, allocID, task string) (found bool, err error) {
	defer basewire.Recover(s, "Sweep", &err)
	return s.Sweep(ctx, allocID, task)
}

func callWait(ctx context.Context, t Task) (result driver.ExitResult, err error) {
	defer basewire.Recover(t, "Wait", &err)
	return t.Wait(ctx)
}

func callKill(ctx context.Context, t Task) (err error) {
	defer basewire.Recover(t, "Kill", &err)
	return t.Kill(ctx)
}

func callSignal(ctx context.Context, s Signaler, name string) (err error) {
	defer basewire.Recover(s, "Signal", &err)
	return s.Signal(ctx, name)
}

func callStop(ctx context.Context, s Stopper, timeout time.Duration, signal string) (err error) {
	defer basewire.Recover(s, "Stop", &err)
	return s.Stop(ctx, timeout, signal)
}

func callExec(ctx context.Context, e Execer, exec driver.Exec) (result driver.ExitResult, err error) {
	defer basewire.Recover(e, "Exec", &err)
	return e.Exec(ctx, exec)
}

func callStats(ctx context.Context, s StatsProvider) (stats driver.TaskStats, err error) {
	defer basewire.Recover(s, "Stats", &err)
	return s.Stats(ctx)
}

func callState(s StateProvider) (state any, err error) {
	defer basewire.Recover(s, "State", &err)
	return s.State(), nil
}

// callNetwork returns nil for a task without its own network.
func callNetwork(t Task) (network *driver.NetworkOverride, err error) {
	n, ok := t.(NetworkReporter)
	if !ok {
		return nil, nil
	}
	defer basewire.Recover(n, "Network", &err)
	return n.Network(), nil
}

// callAttributes returns nil for a task without its own attributes.
func callAttributes(t Task) (attributes map[string]string, err error) {
	a, ok := t.(AttributesProvider)
	if !ok {
		return nil, nil
	}
	defer basewire.Recover(a, "Attributes", &err)
	return a.Attributes(), nil
}

// callDestroy has no effect for a task that is not a Destroyer.
func callDestroy(ctx context.Context, t Task) (err error) {
	d, ok := t.(Destroyer)
	if !ok {
		return nil
	}
	defer basewire.Recover(d, "Destroy", &err)
	return d.Destroy(ctx)
}

func callDeviceFingerprint(ctx context.Context, d Device) (groups []device.Group, err error) {
	defer basewire.Recover(d, "Fingerprint", &err)
	return d.Fingerprint(ctx)
}

func callReserve(ctx context.Context, d Device, req *ReserveRequest) (r *device.Reservation, err error) {
	defer basewire.Recover(d, "Reserve", &err)
	return d.Reserve(ctx, req)
}

func callWatch(ctx context.Context, w DeviceWatcher) (changes <-chan struct{}, err error) {
	defer basewire.Recover(w, "Watch", &err)
	return w.Watch(ctx), nil
}

func callDeviceStats(ctx context.Context, p DeviceStatsProvider) (groups []device.GroupStats, err error) {
	defer basewire.Recover(p, "Stats", &err)
	return p.Stats(ctx)
}

// nilTaskError is the error of a Start, Recover or Adopt that returned neither a task nor an error.
func nilTaskError(impl any, method string) error {
	return fmt.Errorf("method %T.%s returned neither a task nor an error", impl, method)
}
