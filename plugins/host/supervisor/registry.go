package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// managedPlugin is one plugin of the catalog. The fields are guarded by Supervisor.mu, except
// entry and catalogPosition, which never change.
type managedPlugin struct {
	entry           catalog.Entry
	catalogPosition int // position in the catalog
	lastServed      lastServed
	cancelLoop      context.CancelCauseFunc // ends the context of pluginLoop.run; nil before the plugin's goroutine is started

	state                 pluginState
	loopRunning           bool           // pluginLoop.run runs for this plugin
	mustStopWhenUnused    bool           // the plugin was removed from the catalog or has changed; it is stopped as soon as no task needs it
	stopWhenUnusedStarted bool           // pluginLoop.stopWhenUnused was started for this plugin
	replacement           *managedPlugin // the changed version of a removed plugin, which is launched after the end of this one; nil if there is none

	inst            pluginInstance
	driver          *watchedDriver    // driver of the latest process; nil for a hook
	reportedInfo    base.Info         // info of the latest process; before the first, the catalog's if predicted is set, or zero
	hookDescription *hook.Description // description of the latest process; nil for a driver
	predicted       bool              // the driver's state was set to a predicted fingerprint, before the first process
	fingerprinted   bool              // the first fingerprint of a driver or device plugin has arrived; true for a hook, which has none
	exits           processExits
	lastAcquiredAt  time.Time // time when Driver or Hook last returned the plugin
	lastFailure     launchFailure
	supersededBy    string // describes the plugin that is used instead of this one; "" if there is none
	launchRequests  launchRequests
}

// lastServed is the result of Config.LastServedKey for a plugin.
type lastServed struct {
	key              PluginKey // driver or hook that the plugin served when it last ran
	programUnchanged bool      // the plugin ran with the same content and settings
}

// launchRequests has the channels by which the supervisor requests a process of a plugin from its pluginLoop.
type launchRequests struct {
	idleLaunchRequested chan struct{} // closed when an idle plugin, which has no process, is requested
	restartRequested    chan struct{} // capacity 1; a value stops the process, and ends the delay before the next launch
}

// processExits counts the processes of a plugin that have exited, and describes the last exit. Unlike
// launchFailure, it is kept when the next process runs.
type processExits struct {
	count   int
	lastErr error // reason of the latest exit; nil before the first exit
	lastAt  time.Time
}

// launchFailure is the error of the last launch, or the reason for the exit of a process that exited early. It is zero
// after a successful launch.
type launchFailure struct {
	err     error
	retryAt time.Time // time of the next launch; zero if there is none
}

func (m *managedPlugin) applyEvent(e pluginEvent) { m.state = m.state.next(e) }

// err returns the reason why the plugin has no process, or nil if it has one or is being
// started.
func (m *managedPlugin) err() error {
	if stateFacts[m.state].failed {
		return m.lastFailure.err
	}
	return nil
}

// hasReportedOrFailed returns the value of Plugin.HasReportedOrFailed.
func (m *managedPlugin) hasReportedOrFailed() bool {
	return m.fingerprinted || stateFacts[m.state].reportsNothing
}

// mayServe reports whether the plugin serves the driver or hook, or may report that it
// does. A file that has never run may contain any driver or hook, whatever the name of the
// file is.
func (m *managedPlugin) mayServe(key PluginKey) bool {
	switch {
	case m.reportedInfo.Name != "":
		return servedKey(m.reportedInfo) == key
	case m.entry.Builtin:
		return m.entry.Type == key.Type && m.entry.Name == key.Name
	}
	return !m.lastServed.programUnchanged || m.lastServed.key == key || m.entry.ExpectedDriverName() == key.Name
}

// inheritLastServed sets lastServed of the changed version m of a plugin, unless m has run before or the earlier version
// was superseded.
func (m *managedPlugin) inheritLastServed(earlier *managedPlugin) {
	switch {
	case m.lastServed.programUnchanged, earlier.supersededBy != "":
	case earlier.reportedInfo.Name != "":
		m.lastServed.key = servedKey(earlier.reportedInfo)
	case earlier.lastServed.key != PluginKey{}:
		m.lastServed.key = earlier.lastServed.key
	}
}

// asCandidate returns the plugin's pluginCandidate for the arbitration.
func (m *managedPlugin) asCandidate() pluginCandidate {
	c := pluginCandidate{entry: m.entry, catalogPosition: m.catalogPosition, info: m.reportedInfo, inUse: !m.lastAcquiredAt.IsZero()}
	if c.info.Name == "" && m.entry.Builtin {
		// The catalog has the name of a builtin, which may not have been launched yet.
		c.info = base.Info{Type: m.entry.Type, Name: m.entry.Name, Version: m.entry.Version}
	}
	return c
}

// registry contains the managed plugins, and records which of them serves which driver, hook or devices, and what they
// have reported. Supervisor.mu guards it.
type registry struct {
	plugins                []*managedPlugin             // in the order of the catalog
	ownerByKey             map[PluginKey]*managedPlugin // the plugin that serves each driver, hook or device plugin name
	driverInfoByName       map[string]DriverInfo
	notStartedDriverByName map[string]DriverInfo      // builtin drivers that the catalog does not start, by name
	devicesByPlugin        map[string]reportedDevices // last report of each device plugin, by its name
	firstLaunchesDone      bool                       // no first launch is pending, or readyTimeout has passed
	logger                 hclog.Logger
}

// awaitsConfiguredReplacement reports whether plugin m is a builtin that a configured plugin is
// expected to replace, because of its file name or because it served the same driver or hook when
// it last ran. If the configured plugin cannot be started, the builtin is not started either.
func (r *registry) awaitsConfiguredReplacement(m *managedPlugin) bool {
	return m.entry.Builtin && slices.ContainsFunc(r.plugins, func(other *managedPlugin) bool {
		servedIt := other.entry.Block != nil && other.lastServed.key == PluginKey{m.entry.Type, m.entry.Name}
		return !other.entry.Builtin && other.entry.Path != "" && other.state != stateSuperseded &&
			other.reportedInfo.Name == "" && (servedIt || other.entry.ExpectedDriverName() == m.entry.Name)
	})
}

// findPlugin returns the plugin that serves a driver, a hook or devices. For a plugin whose first process has not
// reported a name yet, it uses the name that the catalog expects, and then what the plugin served when it last ran,
// for unchanged plugins before changed ones. It returns nil if there is no such plugin.
func (r *registry) findPlugin(key PluginKey) *managedPlugin {
	if m := r.ownerByKey[key]; m != nil {
		return m
	}
	for _, m := range r.plugins {
		if m.entry.Builtin && m.entry.Type != key.Type {
			continue
		}
		if m.state != stateSuperseded && m.reportedInfo.Name == "" && m.entry.ExpectedDriverName() == key.Name && !r.awaitsConfiguredReplacement(m) {
			return m
		}
	}
	var firstChanged *managedPlugin
	for _, m := range r.plugins {
		switch {
		case m.state == stateSuperseded || m.reportedInfo.Name != "" || m.lastServed.key != key:
		case m.lastServed.programUnchanged:
			return m
		case firstChanged == nil:
			firstChanged = m
		}
	}
	return firstChanged
}

// isCandidateStarting reports whether an external plugin that may serve the driver or hook is
// being launched, and has not reported its name yet.
func (r *registry) isCandidateStarting(key PluginKey) bool {
	return slices.ContainsFunc(r.plugins, func(m *managedPlugin) bool {
		return !m.entry.Builtin && m.reportedInfo.Name == "" && stateFacts[m.state].starting && m.mayServe(key)
	})
}

// notFoundError returns the error for a driver or hook that no plugin serves.
func (r *registry) notFoundError(key PluginKey) error {
	var available []string
	for served := range r.ownerByKey {
		if served.Type == key.Type {
			available = append(available, served.Name)
		}
	}
	for _, m := range r.plugins {
		switch {
		case m.reportedInfo.Name != "" || m.state == stateSuperseded:
		case m.entry.Builtin && m.entry.Type == key.Type:
			available = append(available, m.entry.Name) // a builtin that was not started yet
		case m.lastServed.programUnchanged && m.lastServed.key.Type == key.Type && m.err() == nil:
			available = append(available, m.lastServed.key.Name) // an external plugin that is being started
		}
	}
	slices.Sort(available)
	available = slices.Compact(available)
	// misnamedPlugins describes plugins whose file has the requested name and that serve another driver or
	// hook; failureReasons has the errors of plugins that have no process.
	var misnamedPlugins, failureReasons []string
	for _, m := range r.plugins {
		if m.entry.ExpectedDriverName() == key.Name && m.reportedInfo.Name != "" {
			misnamedPlugins = append(misnamedPlugins, fmt.Sprintf("%s reports itself as %s", m.entry, servedKey(m.reportedInfo)))
		} else if err := m.err(); err != nil {
			failureReasons = append(failureReasons, err.Error())
		}
	}
	if len(misnamedPlugins) > 0 {
		failureReasons = misnamedPlugins
	} else if info, ok := r.notStartedDriverByName[key.Name]; ok && key.Type == base.TypeDriver {
		failureReasons = []string{info.Description}
	}
	msg := "no plugin serves it"
	switch len(available) {
	case 0:
	case 1:
		msg = "there is only " + available[0]
	default:
		msg = "there are " + strings.Join(available, ", ")
	}
	if len(failureReasons) > 0 {
		msg += "; " + strings.Join(failureReasons, "; ")
	}
	none := ErrNoDriver
	switch key.Type {
	case base.TypeHook:
		none = ErrNoHook
	case base.TypeDevice:
		none = ErrNoDevicePlugin
	}
	return fmt.Errorf("%s: %w: %s", key, none, msg)
}

// registerOwner makes plugin m the owner of the driver or hook in info. If several plugins serve
// it, arbitratePlugins selects one and the others are superseded. If m is superseded, the error is
// errSuperseded.
func (r *registry) registerOwner(m *managedPlugin, info base.Info) error {
	if was, is := servedKey(m.reportedInfo), servedKey(info); m.reportedInfo.Name != "" && was != is {
		return fmt.Errorf("%s: it was %s and reports itself as %s now; start again to accept that", m.entry, was, is)
	}
	if m.state == stateSuperseded {
		return errSuperseded
	}
	var otherPlugins []*managedPlugin
	var rivalPlugins []pluginCandidate
	for _, other := range r.plugins {
		if other != m && other.state != stateSuperseded {
			otherPlugins, rivalPlugins = append(otherPlugins, other), append(rivalPlugins, other.asCandidate())
		}
	}
	losers, winner := arbitratePlugins(pluginCandidate{entry: m.entry, catalogPosition: m.catalogPosition, info: info}, rivalPlugins)
	for _, i := range losers {
		r.supersedePlugin(otherPlugins[i], m, rivalPlugins[i].info, info)
	}
	if winner >= 0 {
		r.supersedePlugin(m, otherPlugins[winner], info, rivalPlugins[winner].info)
		return errSuperseded
	}
	r.ownerByKey[servedKey(info)] = m
	return nil
}

func (r *registry) supersedePlugin(loser, winner *managedPlugin, loserInfo, winnerInfo base.Info) {
	loser.applyEvent(eventPluginReplaced)
	loser.supersededBy = fmt.Sprintf("%s is served by %s, version %s", servedKey(winnerInfo), winner.entry, winnerInfo.Version)
	loser.inst = nil
	loser.reportedInfo = loserInfo // so that deletePluginAndAddReplacement finds loser by its served driver or hook when winner is removed
	if loser.cancelLoop != nil {
		loser.cancelLoop(errSuperseded)
	}
	r.logger.Info("multiple versions of plugin detected", winnerInfo.Type.String(), winnerInfo.Name,
		"used", winner.entry.String(), "used_version", winnerInfo.Version,
		"ignored", loser.entry.String(), "ignored_version", loserInfo.Version)
	r.updateFirstLaunchesDone()
}

// isFirstLaunchPending reports whether the first launch of plugin m has neither succeeded nor
// failed.
func (r *registry) isFirstLaunchPending(m *managedPlugin) bool {
	return stateFacts[m.state].firstLaunchPending && !r.awaitsConfiguredReplacement(m)
}

// mayOwnerChange reports whether a plugin whose first launch is pending may become the owner of
// the driver or hook.
func (r *registry) mayOwnerChange(key PluginKey) bool {
	return !r.firstLaunchesDone && slices.ContainsFunc(r.plugins, func(m *managedPlugin) bool { return r.isFirstLaunchPending(m) && m.mayServe(key) })
}

// updateFirstLaunchesDone sets firstLaunchesDone if no first launch is pending.
func (r *registry) updateFirstLaunchesDone() {
	r.firstLaunchesDone = r.firstLaunchesDone || !slices.ContainsFunc(r.plugins, r.isFirstLaunchPending)
}

// readiness selects plugins. It is reached when each selected plugin has reported its state or has failed to start.
type readiness struct {
	needsFirstLaunches bool // it is not reached before registry.firstLaunchesDone
	acceptsPredictions bool // a plugin with a predicted fingerprint counts as launched and reported
	selects            func(*managedPlugin) bool
}

// The readiness values whose names have Slow leave out the builtins whose fingerprint is slow. knownPlugins selects the other
// builtins, and the external plugins that have served a driver or hook before, perhaps with another program; knownGoodPlugins those
// that have served it with this one.
var (
	allPlugins          = readiness{true, false, func(*managedPlugin) bool { return true }}
	allButSlow          = readiness{true, true, (*managedPlugin).isNotSlow}
	allProcessesButSlow = readiness{true, false, (*managedPlugin).isNotSlow}
	knownPlugins        = readiness{false, true, func(m *managedPlugin) bool { return m.isFastBuiltin() || m.lastServed.key != PluginKey{} }}
	knownGoodPlugins    = readiness{false, true, func(m *managedPlugin) bool { return m.isFastBuiltin() || m.lastServed.programUnchanged }}
)

func (m *managedPlugin) isNotSlow() bool { return !m.entry.NodeReadyWithoutFingerprint }

func (m *managedPlugin) isFastBuiltin() bool { return m.entry.Builtin && m.isNotSlow() }

func (r *registry) hasReached(goal readiness) bool {
	return !slices.ContainsFunc(r.plugins, func(m *managedPlugin) bool {
		switch {
		case goal.acceptsPredictions && m.predicted:
			return false
		case goal.needsFirstLaunches && !r.firstLaunchesDone && r.isFirstLaunchPending(m):
			return true
		}
		return goal.selects(m) && !m.hasReportedOrFailed() && !r.awaitsConfiguredReplacement(m)
	})
}

// updateDriverInfo changes the DriverInfo of the driver that plugin m serves. It returns false if m
// serves no driver.
func (r *registry) updateDriverInfo(m *managedPlugin, change func(*DriverInfo)) bool {
	name := m.reportedInfo.Name
	if r.ownerByKey[driverKey(name)] != m {
		return false // plugin m is a hook, or another plugin serves its driver
	}
	m.fingerprinted = true
	r.changeDriverInfo(name, change)
	return true
}

func (r *registry) changeDriverInfo(name string, change func(*DriverInfo)) {
	info := r.driverInfoByName[name]
	change(&info)
	info.UpdatedAt = time.Now()
	r.driverInfoByName[name] = info
}

// reportedDevices are the devices of a device plugin.
type reportedDevices struct {
	reporter      pluginInstance // the process that has reported groups; nil if there is none
	groups        []device.Group
	failureReason string // why the process could not look for devices; empty if it could
}

// setReportedDevices sets the devices of plugin m, and why m could not look for devices. It returns false if nothing has changed, or m is no device
// plugin.
func (r *registry) setReportedDevices(m *managedPlugin, reporter pluginInstance, f device.Fingerprint) (changed bool) {
	name := m.reportedInfo.Name
	if r.ownerByKey[PluginKey{base.TypeDevice, name}] != m {
		return false
	}
	before := r.devicesByPlugin[name]
	r.devicesByPlugin[name] = reportedDevices{reporter, f.Groups, f.FailureReason}
	if reflect.DeepEqual(before.groups, f.Groups) {
		return reporter != before.reporter || f.FailureReason != before.failureReason
	}
	all := r.uniqueDeviceGroups()
	for _, g := range f.Groups {
		if i := slices.IndexFunc(all, func(o DeviceGroup) bool { return o.ID == g.ID }); all[i].PluginName != name {
			r.logger.Warn("devices are ignored, because another plugin reports devices with the same name", "devices", g.ID.String(), "plugin", name, "used_plugin", all[i].PluginName)
		}
	}
	return true
}

// uniqueDeviceGroups implements Supervisor.DeviceGroups.
func (r *registry) uniqueDeviceGroups() []DeviceGroup {
	var all []DeviceGroup
	known := make(map[device.GroupID]bool)
	for _, name := range slices.Sorted(maps.Keys(r.devicesByPlugin)) {
		for _, g := range r.devicesByPlugin[name].groups {
			if !known[g.ID] {
				known[g.ID] = true
				all = append(all, DeviceGroup{name, g})
			}
		}
	}
	return all
}

// launchFailures returns the external plugins whose launch has failed before they have reported what they serve, by the names
// of the plugins, with the reasons. A plugin that is launched again keeps the reason until the launch has succeeded.
func (r *registry) launchFailures() map[string]string {
	reasons := map[string]string{}
	for _, m := range r.plugins {
		if m.reportedInfo.Name == "" && !m.entry.Builtin && m.state != stateSuperseded && m.lastFailure.err != nil {
			reasons[m.entry.Name] = m.lastFailure.err.Error()
		}
	}
	return reasons
}

// deviceFailureReason returns why the device plugin m has no process, or could not look for devices; "" if it could, or
// serves no devices.
func (r *registry) deviceFailureReason(m *managedPlugin) string {
	if m.reportedInfo.Type != base.TypeDevice || r.ownerByKey[PluginKey{base.TypeDevice, m.reportedInfo.Name}] != m {
		return ""
	}
	if err := m.err(); err != nil {
		return err.Error()
	}
	return r.devicesByPlugin[m.reportedInfo.Name].failureReason
}

func newManagedPlugin(e catalog.Entry, catalogPosition int) *managedPlugin {
	return &managedPlugin{entry: e, catalogPosition: catalogPosition, launchRequests: launchRequests{restartRequested: make(chan struct{}, 1)}}
}

// requestRestart stops the process of the plugin, and ends the delay before the next launch. It does not block.
func (m *managedPlugin) requestRestart() {
	wait.Notify(m.launchRequests.restartRequested)
}

// newManagedPlugins returns a managedPlugin for each entry of a catalog. lastServedKey is Config.LastServedKey, and may
// be nil.
func newManagedPlugins(entries []catalog.Entry, lastServedKey func(catalog.Entry) (PluginKey, bool)) []*managedPlugin {
	plugins := make([]*managedPlugin, len(entries))
	for i, e := range entries {
		plugins[i] = newManagedPlugin(e, i)
		if lastServedKey != nil && !e.Builtin {
			plugins[i].lastServed.key, plugins[i].lastServed.programUnchanged = lastServedKey(e)
		}
	}
	return plugins
}

// replaceCatalogPlugins changes the registry to catalogPlugins, the plugins of another catalog. A plugin with an equal
// entry continues; a plugin whose entry is missing or has changed is removed.
func (r *registry) replaceCatalogPlugins(catalogPlugins []*managedPlugin) {
	before := slices.Clone(r.plugins)
	moved := make(map[string]bool) // names of plugins whose file has another path
	for _, m := range before {
		var replacement *managedPlugin
		if i := slices.IndexFunc(catalogPlugins, func(f *managedPlugin) bool { return f.entry.SameID(m.entry) }); i >= 0 {
			replacement = catalogPlugins[i]
			catalogPlugins = slices.Delete(catalogPlugins, i, i+1)
		}
		if !m.mustStopWhenUnused && replacement != nil && replacement.entry.Equal(m.entry) {
			continue
		}
		sameName := slices.IndexFunc(catalogPlugins, func(f *managedPlugin) bool { return f.entry.Name == m.entry.Name })
		switch {
		case replacement != nil && m.replacement == nil:
			r.logger.Info("plugin has changed", "plugin", m.entry.Name)
		case replacement != nil || m.mustStopWhenUnused: // an earlier catalog has changed or removed the plugin
		case sameName >= 0:
			moved[m.entry.Name] = true
			r.logger.Info("plugin has moved", "plugin", m.entry.Name, "from", m.entry.Path, "to", catalogPlugins[sameName].entry.Path)
		default:
			r.logger.Info("plugin was removed from the configuration", "plugin", m.entry.Name)
		}
		r.removeOrReplaceWhenUnused(m, replacement)
	}
	r.plugins = append(r.plugins, catalogPlugins...)
	if len(before) == 0 {
		return // no log at the start, when every plugin is new
	}
	r.sortPlugins()
	for _, m := range catalogPlugins {
		if !moved[m.entry.Name] {
			r.logger.Info("plugin is new", "plugin", m.entry.Name)
		}
	}
}

// setNotStartedDrivers sets the builtin drivers that the catalog does not start, with the reasons.
func (r *registry) setNotStartedDrivers(reasonByDriver map[string]string) {
	before := r.notStartedDriverByName
	r.notStartedDriverByName = make(map[string]DriverInfo, len(reasonByDriver))
	for name, reason := range reasonByDriver {
		info := DriverInfo{Description: reason, UpdatedAt: time.Now()}
		if old, ok := before[name]; ok && old.Description == reason {
			info = old
		}
		r.notStartedDriverByName[name] = info
	}
}

// sortPlugins sorts the plugins in the order of the catalog.
func (r *registry) sortPlugins() {
	slices.SortStableFunc(r.plugins, func(a, b *managedPlugin) int { return a.entry.Compare(&b.entry) })
}

// removeOrReplaceWhenUnused makes plugin m stop as soon as no task needs its process. If replacement is not nil, it is
// the changed version of m, and replaces m then.
func (r *registry) removeOrReplaceWhenUnused(m, replacement *managedPlugin) {
	m.mustStopWhenUnused, m.replacement = true, replacement
	m.applyEvent(eventPluginRemoved)
	if !m.loopRunning {
		r.deletePluginAndAddReplacement(m)
	}
}

// deletePluginAndAddReplacement deletes a removed plugin from the registry, and adds the replacement if there is one.
// Plugins that the removed plugin has superseded are launched again, and one of them can serve its driver or hook.
func (r *registry) deletePluginAndAddReplacement(m *managedPlugin) {
	m.applyEvent(eventPluginDiscarded)
	r.plugins = slices.DeleteFunc(r.plugins, func(other *managedPlugin) bool { return other == m })
	if served := servedKey(m.reportedInfo); r.ownerByKey[served] == m {
		delete(r.ownerByKey, served)
		switch {
		case served.Type == base.TypeDriver && m.replacement == nil:
			delete(r.driverInfoByName, served.Name)
		case served.Type == base.TypeDevice:
			delete(r.devicesByPlugin, served.Name)
		}
		for i, loser := range r.plugins {
			if loser.state == stateSuperseded && !loser.loopRunning && servedKey(loser.reportedInfo) == served {
				loser.applyEvent(eventPluginDiscarded)
				r.plugins[i] = newManagedPlugin(loser.entry, loser.catalogPosition)
				r.plugins[i].lastServed = loser.lastServed
			}
		}
	}
	if m.replacement != nil {
		m.replacement.inheritLastServed(m)
		r.plugins = append(r.plugins, m.replacement)
		r.sortPlugins()
	}
}

// Causes with which the supervisor cancels the context of one plugin's goroutine.
var (
	errSuperseded = errors.New("replaced by another plugin")
	errRemoved    = errors.New("removed from the configuration")
)

func servedKey(info base.Info) PluginKey { return PluginKey{info.Type, info.Name} }
