package agentplugins

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/hostservice"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
)

// Manager has an agent's plugins, with their hooks and devices. CreateHooks, StartHostService, Start and Stop are called once, in this
// order; the other methods may be called concurrently after CreateHooks.
type Manager struct {
	Supervisor        *supervisor.Supervisor
	pluginInfoTracker *pluginInfoTracker
	Devices           *devices.Manager
	Hooks             *pluginhooks.HookPluginSet // nil before CreateHooks
	hookService       *hostservice.HostService   // serves hooks' requests to the agent; nil before StartHostService
	logger            hclog.Logger

	hookRulesChanged chan struct{} // Reload sends a value

	stopSupervisor context.CancelFunc // stops the supervisor; nil before Start
	supervisorWG   sync.WaitGroup     // waits for the supervisor
}

// New returns a manager without started plugins. The caller must close its Devices.
func New(c supervisor.Config, cache Cache, statsInterval time.Duration) *Manager {
	cached := loadCachedPlugins(cache, c.Logger)
	c.LastServedKey = cached.cachedPluginKey
	s := supervisor.New(c)
	return &Manager{
		Supervisor:        s,
		Devices:           devices.New(s, devices.Config{StatsInterval: statsInterval, ReserveHasNoTimeout: c.IgnoreLateCalls, Logger: c.Logger}),
		pluginInfoTracker: &pluginInfoTracker{cache: cache, cached: cached, pluginLister: s, logger: c.Logger},
		logger:            c.Logger,
		hookRulesChanged:  make(chan struct{}, 1),
	}
}

// Start starts the supervisor, which starts the plugins. It does not wait for them.
//
// The plugins run until Stop is called, even if ctx ends earlier, because tasks need their drivers
// until they are stopped.
func (p *Manager) Start(ctx context.Context, tasks supervisor.Tasks) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stopSupervisor = stop
	p.supervisorWG.Go(func() {
		if err := p.Supervisor.Run(running, tasks); err != nil {
			p.logger.Error("plugins did not end well", "error", err)
		}
	})
}

// RunBackgroundLoops retries pending hook cleanups, logs hook rules without effect, and stores plugin descriptions, until ctx
// ends.
func (p *Manager) RunBackgroundLoops(ctx context.Context) {
	var runningWG sync.WaitGroup
	runningWG.Go(func() { p.Hooks.RetryCleanupsUntilCanceled(ctx) })
	runningWG.Go(func() { p.logHookRuleErrors(ctx) })
	runningWG.Go(func() { p.pluginInfoTracker.storeInfoChangesUntilDone(ctx) })
	runningWG.Wait()
}

// WatchPIDs calls onChange when the plugin process pids have changed, until ctx ends.
func (p *Manager) WatchPIDs(ctx context.Context, onChange func()) {
	var pids []int
	for {
		changed := p.Supervisor.InfoChanged()
		var currentPIDs []int
		for _, plugin := range p.Supervisor.Plugins() {
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

// Reload replaces the plugins and the rules for hooks.
func (p *Manager) Reload(plugins *catalog.Catalog, rules []pluginhooks.OperatorRule) {
	p.Supervisor.SetCatalog(plugins)
	p.Hooks.SetRules(rules)
	wait.Notify(p.hookRulesChanged)
}

// Stop rejects hook requests, and stops the supervisor.
func (p *Manager) Stop() {
	if p.hookService != nil {
		p.hookService.Close()
	}
	if p.stopSupervisor != nil {
		p.stopSupervisor()
		p.supervisorWG.Wait()
	}
}

// TaskConfigSchema returns the schema of a driver's task config block. It waits for the driver if its
// plugin is starting.
func (p *Manager) TaskConfigSchema(ctx context.Context, driverName string) (*hclspec.Spec, error) {
	d, err := p.Supervisor.Driver(ctx, driverName)
	if err != nil {
		return nil, err
	}
	return d.TaskConfigSchema(ctx)
}

// DriverCapabilities returns a driver's capabilities. It waits for the driver if its plugin is starting.
func (p *Manager) DriverCapabilities(ctx context.Context, driverName string) (*driver.Capabilities, error) {
	d, err := p.Supervisor.Driver(ctx, driverName)
	if err != nil {
		return nil, err
	}
	return d.Capabilities(ctx)
}

// DeviceStats returns all devices' statistics. Without recent statistics it waits for the device plugins, for two seconds at
// most.
func (p *Manager) DeviceStats(ctx context.Context) []*api.DeviceGroupStats {
	return p.Devices.StartSamplingAndGetStats(ctx)
}
