package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/hostservice"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// PluginManager has an agent's plugins, with their hooks and devices. Its methods may be called concurrently.
type PluginManager struct {
	supervisor        *supervisor.Supervisor
	pluginInfoTracker *pluginInfoTracker
	devices           *devices.Manager
	hookPlugins       *pluginhooks.HookPluginSet
	hookService       *hostservice.HostService // serves hooks' requests to the agent; nil before startHostService is called
	logger            hclog.Logger

	hookRulesChanged chan struct{} // reload sends a value

	stopSupervisor context.CancelFunc // stops the supervisor; nil before start is called
	supervisorWG   sync.WaitGroup     // waits for the supervisor
}

// newPluginManager returns a manager without started plugins. The caller must call close.
func newPluginManager(c supervisor.Config, cache pluginCache, statsInterval time.Duration) *PluginManager {
	cached := loadCachedPlugins(cache, c.Logger)
	c.LastServedKey = cached.cachedPluginKey
	s := supervisor.New(c)
	return &PluginManager{
		supervisor:        s,
		devices:           devices.New(s, devices.Config{StatsInterval: statsInterval, ReserveHasNoTimeout: c.IgnoreLateCalls, Logger: c.Logger}),
		pluginInfoTracker: &pluginInfoTracker{cache: cache, cached: cached, pluginLister: s, logger: c.Logger},
		logger:            c.Logger,
		hookRulesChanged:  make(chan struct{}, 1),
	}
}

// start starts the supervisor, which starts the plugins. It does not wait for them.
//
// The plugins run until close is called, even if ctx ends earlier, because tasks need their drivers
// until they are stopped.
func (p *PluginManager) start(ctx context.Context, tasks supervisor.Tasks) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stopSupervisor = stop
	p.supervisorWG.Go(func() {
		if err := p.supervisor.Run(running, tasks); err != nil {
			p.logger.Error("plugins did not end well", "error", err)
		}
	})
}

// runBackgroundLoops retries pending hook cleanups, logs hook rules without effect, and stores plugin descriptions, until ctx
// ends.
func (p *PluginManager) runBackgroundLoops(ctx context.Context) {
	var runningWG sync.WaitGroup
	runningWG.Go(func() { p.hookPlugins.RetryCleanupsUntilCanceled(ctx) })
	runningWG.Go(func() { p.logHookRuleErrors(ctx) })
	runningWG.Go(func() { p.pluginInfoTracker.storeInfoChangesUntilDone(ctx) })
	runningWG.Wait()
}

// watchPluginPIDs calls onChange when the plugin process pids have changed, until ctx ends.
func (p *PluginManager) watchPluginPIDs(ctx context.Context, onChange func()) {
	var pids []int
	for {
		changed := p.supervisor.InfoChanged()
		var currentPIDs []int
		for _, plugin := range p.supervisor.Plugins() {
			currentPIDs = append(currentPIDs, plugin.PID)
		}
		if !slices.Equal(pids, currentPIDs) {
			pids = currentPIDs
			onChange()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// reload replaces the plugins and the rules for hooks.
func (p *PluginManager) reload(plugins *catalog.Catalog, rules []pluginhooks.OperatorRule) {
	p.supervisor.SetCatalog(plugins)
	p.hookPlugins.SetRules(rules)
	wait.Notify(p.hookRulesChanged)
}

// close rejects hook requests, ends statistics collection, and stops the supervisor.
func (p *PluginManager) close() {
	if p.hookService != nil {
		p.hookService.Close()
	}
	p.devices.Close()
	if p.stopSupervisor != nil {
		p.stopSupervisor()
		p.supervisorWG.Wait()
	}
}

// TaskConfigSchema returns the schema of a driver's task config block. It waits for the driver if its
// plugin is starting.
func (p *PluginManager) TaskConfigSchema(ctx context.Context, driverName string) (*hclspec.Spec, error) {
	d, err := p.supervisor.Driver(ctx, driverName)
	if err != nil {
		return nil, err
	}
	return d.TaskConfigSchema(ctx)
}

// DriverCapabilities returns a driver's capabilities. It waits for the driver if its plugin is starting.
func (p *PluginManager) DriverCapabilities(ctx context.Context, driverName string) (*driver.Capabilities, error) {
	d, err := p.supervisor.Driver(ctx, driverName)
	if err != nil {
		return nil, err
	}
	return d.Capabilities(ctx)
}

// DeviceStats returns all devices' statistics. Without recent statistics it waits for the device plugins, for two seconds at
// most.
func (p *PluginManager) DeviceStats(ctx context.Context) []*api.DeviceGroupStats {
	return p.devices.StartSamplingAndGetStats(ctx)
}

// driverConfig returns the machine's properties that SetConfig sends to drivers. No field is nil, because drivers made from
// Nomad's public driver skeleton read them without a check.
func driverConfig(s localnode.Settings, host fingerprint.Host) *base.ClientDriverConfig {
	return &base.ClientDriverConfig{
		ClientMinPort: uint32(s.ClientMinPort),
		ClientMaxPort: uint32(s.ClientMaxPort),
		Topology:      host.Topology,
	}
}

// newHookNode returns the node's properties for hook plugins.
func newHookNode(id string, s localnode.Settings) hook.Node {
	return hook.Node{ID: id, Name: s.Name, Datacenter: s.Datacenter, Region: s.Region, Class: s.Class, Pool: s.Pool}
}
