package sdk

import (
	"context"
	"fmt"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// The functions of this file call methods of the author's plugin. Each function
// converts a panic into an error that names the method. Other places call only Info
// before the plugin is served (program.go), Start, Recover and Adopt
// (untypeddriver.go), and a hook's methods for hook points (package hook).

func callInfoRecoverPanic(d infoProvider) (info DriverInfo, err error) {
	defer basewire.RecoverAndLogPanic(d, "Info", &err)
	return d.Info(), nil
}

func callConfigureRecoverPanic(ctx context.Context, c Configurer, config *Config) (err error) {
	defer basewire.RecoverAndLogPanic(c, "Configure", &err)
	return c.Configure(ctx, config)
}

func callSetHostRecoverPanic(u HostSetter, host hook.Host, node hook.Node) (err error) {
	defer basewire.RecoverAndLogPanic(u, "SetHost", &err)
	u.SetHost(host, node)
	return nil
}

func callInitRecoverPanic(ctx context.Context, i Initializer) (err error) {
	defer basewire.RecoverAndLogPanic(i, "Init", &err)
	return i.Init(ctx)
}

func callShutdownRecoverPanic(ctx context.Context, s Shutdowner) (err error) {
	defer basewire.RecoverAndLogPanic(s, "Shutdown", &err)
	return s.Shutdown(ctx)
}

// callFingerprintRecoverPanic converts a panic into an unhealthy fingerprint instead of an error, because Fingerprint
// is called again after the next interval.
func callFingerprintRecoverPanic(ctx context.Context, f Fingerprinter) (print driver.Fingerprint) {
	var err error
	defer func() {
		if err != nil {
			print = driver.Fingerprint{Health: driver.HealthUnhealthy, HealthDescription: err.Error()}
		}
	}()
	defer basewire.RecoverAndLogPanic(f, "Fingerprint", &err)
	return f.Fingerprint(ctx)
}

func callCreateNetworkRecoverPanic(ctx context.Context, n NetworkManager, req CreateNetworkRequest) (network CreateNetworkResponse, err error) {
	defer basewire.RecoverAndLogPanic(n, "CreateNetwork", &err)
	return n.CreateNetwork(ctx, req)
}

func callDestroyNetworkRecoverPanic(ctx context.Context, n NetworkManager, req DestroyNetworkRequest) (err error) {
	defer basewire.RecoverAndLogPanic(n, "DestroyNetwork", &err)
	return n.DestroyNetwork(ctx, req)
}

func callSweepRecoverPanic(ctx context.Context, s OrphanKiller, req SweepRequest) (found bool, err error) {
	defer basewire.RecoverAndLogPanic(s, "Sweep", &err)
	return s.Sweep(ctx, req)
}

func callWaitRecoverPanic(ctx context.Context, t Task) (result driver.ExitResult, err error) {
	defer basewire.RecoverAndLogPanic(t, "Wait", &err)
	return t.Wait(ctx)
}

func callKillRecoverPanic(ctx context.Context, t Task) (err error) {
	defer basewire.RecoverAndLogPanic(t, "Kill", &err)
	return t.Kill(ctx)
}

func callSignalRecoverPanic(ctx context.Context, s Signaler, name string) (err error) {
	defer basewire.RecoverAndLogPanic(s, "Signal", &err)
	return s.Signal(ctx, name)
}

func callStopRecoverPanic(ctx context.Context, s Stopper, req StopRequest) (err error) {
	defer basewire.RecoverAndLogPanic(s, "Stop", &err)
	return s.Stop(ctx, req)
}

func callExecRecoverPanic(ctx context.Context, e Execer, exec driver.Exec) (result driver.ExitResult, err error) {
	defer basewire.RecoverAndLogPanic(e, "Exec", &err)
	return e.Exec(ctx, exec)
}

func callStatsRecoverPanic(ctx context.Context, s StatsProvider) (stats driver.TaskStats, err error) {
	defer basewire.RecoverAndLogPanic(s, "Stats", &err)
	return s.Stats(ctx)
}

func callStateRecoverPanic(s StateProvider) (state any, err error) {
	defer basewire.RecoverAndLogPanic(s, "State", &err)
	return s.State(), nil
}

// callNetworkIfReported returns nil for a task without its own network.
func callNetworkIfReported(t Task) (network *driver.NetworkOverride, err error) {
	n, ok := t.(NetworkReporter)
	if !ok {
		return nil, nil
	}
	defer basewire.RecoverAndLogPanic(n, "Network", &err)
	return n.Network(), nil
}

// callAttributesIfProvided returns nil for a task without its own attributes.
func callAttributesIfProvided(t Task) (attributes map[string]string, err error) {
	a, ok := t.(AttributesProvider)
	if !ok {
		return nil, nil
	}
	defer basewire.RecoverAndLogPanic(a, "Attributes", &err)
	return a.Attributes(), nil
}

// callDestroyIfDestroyer has no effect for a task that is not a Destroyer.
func callDestroyIfDestroyer(ctx context.Context, t Task) (err error) {
	d, ok := t.(Destroyer)
	if !ok {
		return nil
	}
	defer basewire.RecoverAndLogPanic(d, "Destroy", &err)
	return d.Destroy(ctx)
}

func callDeviceFingerprintRecoverPanic(ctx context.Context, d Device) (groups []device.Group, err error) {
	defer basewire.RecoverAndLogPanic(d, "Fingerprint", &err)
	return d.Fingerprint(ctx)
}

func callReserveRecoverPanic(ctx context.Context, d Device, req *ReserveRequest) (r *device.Reservation, err error) {
	defer basewire.RecoverAndLogPanic(d, "Reserve", &err)
	return d.Reserve(ctx, req)
}

// callWatchIfWatcher returns the channel of Watch, or nil for a plugin without Watch.
func callWatchIfWatcher(ctx context.Context, plugin any) (changes <-chan struct{}, err error) {
	w, ok := plugin.(Watcher)
	if !ok {
		return nil, nil
	}
	defer basewire.RecoverAndLogPanic(w, "Watch", &err)
	return w.Watch(ctx), nil
}

func callDeviceStatsRecoverPanic(ctx context.Context, p DeviceStatsProvider) (groups []device.GroupStats, err error) {
	defer basewire.RecoverAndLogPanic(p, "Stats", &err)
	return p.Stats(ctx)
}

// nilTaskError is the error of a Start, Recover or Adopt that returned neither a task nor an error.
func nilTaskError(impl any, method string) error {
	return fmt.Errorf("method %T.%s returned neither a task nor an error", impl, method)
}
