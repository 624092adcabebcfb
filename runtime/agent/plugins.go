package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

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

// pluginManager has an agent's plugins, with their hooks and devices.
type pluginManager struct {
	supervisor        *supervisor.Supervisor
	pluginInfoTracker *pluginInfoTracker
	devices           *devices.Manager
	hookPlugins       *pluginhooks.HookPluginSet
	hookService       *hostservice.HostService // serves hooks' requests to the agent; nil before createHookPluginsAndHostService is called
	logger            hclog.Logger

	hookRulesChanged     chan struct{} // reload sends a value
	previousAllocsListed chan struct{} // runBackgroundLoops closes the channel when the node runner has listed an earlier agent's allocations

	stopSupervisor context.CancelFunc // stops the supervisor; nil before start is called
	supervisorWG   sync.WaitGroup     // waits for the supervisor
}

// newPluginManager returns a manager without started plugins. The caller must call close.
func newPluginManager(c supervisor.Config, cache pluginCache, statsInterval time.Duration) *pluginManager {
	cached := loadCachedPlugins(cache, c.Logger)
	c.LastServedKey = cached.cachedPluginKey
	s := supervisor.New(c)
	return &pluginManager{
		supervisor:           s,
		devices:              devices.New(s, devices.Config{StatsInterval: statsInterval, ReserveHasNoTimeout: c.IgnoreLateCalls, Logger: c.Logger}),
		pluginInfoTracker:    &pluginInfoTracker{cache: cache, cached: cached, pluginLister: s, logger: c.Logger},
		logger:               c.Logger,
		hookRulesChanged:     make(chan struct{}, 1),
		previousAllocsListed: make(chan struct{}),
	}
}

// start starts the supervisor, which starts the plugins. It does not wait for them.
//
// The plugins run until close is called, even if ctx ends earlier, because tasks need their drivers
// until they are stopped.
func (p *pluginManager) start(ctx context.Context) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stopSupervisor = stop
	p.supervisorWG.Go(func() {
		if err := p.supervisor.Run(running); err != nil {
			p.logger.Error("plugins did not end well", "error", err)
		}
	})
}

// runBackgroundLoops retries pending hook cleanups, logs hook rules without effect, and stores plugin descriptions, until ctx
// ends. The node runner closes previousAllocsListed when it has listed an earlier agent's allocations.
func (p *pluginManager) runBackgroundLoops(ctx context.Context, previousAllocsListed <-chan struct{}) {
	var runningWG sync.WaitGroup
	runningWG.Go(func() { p.hookPlugins.RetryCleanupsUntilCanceled(ctx) })
	runningWG.Go(func() { p.logHookRuleErrors(ctx) })
	runningWG.Go(func() { p.pluginInfoTracker.storeInfoChangesUntilDone(ctx) })
	select {
	case <-previousAllocsListed:
		close(p.previousAllocsListed)
	case <-ctx.Done():
	}
	runningWG.Wait()
}

// watchPluginPIDs calls onChange when the plugin process pids have changed, until ctx ends.
func (p *pluginManager) watchPluginPIDs(ctx context.Context, onChange func()) {
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

// pidsWithoutTasks returns the pids of plugin processes that cannot have tasks. p may be nil.
func (p *pluginManager) pidsWithoutTasks() []int {
	if p == nil {
		return nil
	}
	return p.supervisor.PIDsWithoutTasks()
}

// reload replaces the plugins and the rules for hooks.
func (p *pluginManager) reload(plugins *catalog.Catalog, rules []pluginhooks.OperatorRule) {
	p.supervisor.SetCatalog(plugins)
	p.hookPlugins.SetRules(rules)
	wait.Notify(p.hookRulesChanged)
}

// close rejects hook requests, ends statistics collection, and stops the supervisor.
func (p *pluginManager) close() {
	if p.hookService != nil {
		p.hookService.Close()
	}
	p.devices.Close()
	if p.stopSupervisor != nil {
		p.stopSupervisor()
		p.supervisorWG.Wait()
	}
}

// taskConfigSchema returns the schema of a driver's task config block. It waits for the driver if its
// plugin is starting.
func (p *pluginManager) taskConfigSchema(ctx context.Context, driverName string) (*hclspec.Spec, error) {
	d, err := p.supervisor.Driver(ctx, driverName)
	if err != nil {
		return nil, err
	}
	return d.TaskConfigSchema(ctx)
}

// driverCapabilities returns a driver's capabilities. It waits for the driver if its plugin is starting.
func (p *pluginManager) driverCapabilities(ctx context.Context, driverName string) (*driver.Capabilities, error) {
	d, err := p.supervisor.Driver(ctx, driverName)
	if err != nil {
		return nil, err
	}
	return d.Capabilities(ctx)
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
