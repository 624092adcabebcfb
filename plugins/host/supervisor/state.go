package supervisor

// pluginState is the state of a managed plugin.
type pluginState int

const (
	// Not launched yet: the plugin's goroutine has not started, or waits for a configured
	// plugin that may replace the builtin.
	stateNotLaunched   pluginState = iota
	stateFirstStarting             // the first process is being started or reattached
	stateStarting                  // a process is being started again or on request, or will be when other plugins have started
	stateRunning                   // a process runs
	stateIdle                      // an unused builtin has no process until the next request
	// The last launch or process has failed, and the plugin is launched again after a
	// delay.
	stateBackingOff
	stateFailed     // the catalog has an error for the plugin, or a device plugin has ended its fingerprint stream; the plugin is not launched again
	stateSuperseded // another plugin serves the driver or hook of this one
	stateDraining   // the plugin was removed from the catalog or changed, and its process still has tasks
	stateGone       // the supervisor no longer manages the plugin
)

// pluginEvent changes the state of a managed plugin.
type pluginEvent int

const (
	eventLaunchRejected pluginEvent = iota // the catalog has an error for the plugin, which is not launched
	eventLaunchDeferred                    // the first launch waits for other plugins
	eventLaunchStarted                     // a launch starts: the first one, on request, or after a delay
	eventLaunchFailed                      // the launch has failed
	eventLaunched                          // the process runs, and is registered for its driver, hook or devices
	eventExited                            // the process has exited, and the plugin is launched again immediately
	eventExitedEarly                       // the process has exited early, and the plugin is launched again after a delay
	eventStreamEnded                       // the fingerprint stream of a device plugin has ended, and its process was stopped
	eventPluginUnused                      // the plugin is a builtin that no task needs; its process was stopped or not started
	eventPluginReplaced                    // another plugin serves the driver, hook or devices of this plugin (arbitratePlugins)
	eventPluginRemoved                     // the plugin was removed from the catalog or changed
	// eventPluginDiscarded: the plugin was removed and its goroutine has ended, or the plugin was superseded and a new
	// managedPlugin takes its place, because the plugin that superseded it was removed.
	eventPluginDiscarded
)

// stateTransitions is the transition table of the states. An event without an entry does not
// change the state: for example, a superseded plugin stays superseded when its process
// exits.
var stateTransitions = [...]map[pluginEvent]pluginState{
	stateNotLaunched: {
		eventLaunchRejected: stateFailed, eventLaunchDeferred: stateStarting, eventLaunchStarted: stateFirstStarting, eventPluginUnused: stateIdle,
		eventPluginReplaced: stateSuperseded, eventPluginDiscarded: stateGone,
	},
	stateFirstStarting: {
		eventLaunched: stateRunning, eventLaunchFailed: stateBackingOff,
		eventPluginReplaced: stateSuperseded, eventPluginDiscarded: stateGone,
	},
	stateStarting: {
		eventLaunched: stateRunning, eventLaunchFailed: stateBackingOff,
		eventPluginReplaced: stateSuperseded, eventPluginDiscarded: stateGone,
	},
	stateRunning: {
		eventExited: stateStarting, eventExitedEarly: stateBackingOff, eventStreamEnded: stateFailed, eventPluginUnused: stateIdle,
		eventPluginReplaced: stateSuperseded, eventPluginRemoved: stateDraining, eventPluginDiscarded: stateGone,
	},
	stateIdle:       {eventLaunchStarted: stateStarting, eventPluginReplaced: stateSuperseded, eventPluginDiscarded: stateGone},
	stateBackingOff: {eventLaunchStarted: stateStarting, eventPluginReplaced: stateSuperseded, eventPluginDiscarded: stateGone},
	stateFailed:     {eventPluginReplaced: stateSuperseded, eventPluginDiscarded: stateGone},
	stateSuperseded: {eventPluginDiscarded: stateGone},
	stateDraining: {
		eventExited: stateStarting, eventExitedEarly: stateBackingOff, eventStreamEnded: stateFailed, eventPluginUnused: stateIdle,
		eventPluginReplaced: stateSuperseded, eventPluginDiscarded: stateGone,
	},
	stateGone: {},
}

// next returns the state after event e.
func (s pluginState) next(e pluginEvent) pluginState {
	if to, ok := stateTransitions[s][e]; ok {
		return to
	}
	return s
}

// stateFacts is what each state means to callers that wait for plugins.
var stateFacts = [...]struct {
	firstLaunchPending bool // the first launch has neither succeeded nor failed, and does not wait for a request or for other plugins
	starting           bool // a process will run, or the launch will fail
	failed             bool // managedPlugin.lastFailure is the reason why no process runs
	reportsNothing     bool // no process will report soon
}{
	stateNotLaunched:   {firstLaunchPending: true, starting: true},
	stateFirstStarting: {firstLaunchPending: true, starting: true},
	stateStarting:      {starting: true},
	stateIdle:          {reportsNothing: true},
	stateBackingOff:    {failed: true, reportsNothing: true},
	stateFailed:        {failed: true, reportsNothing: true},
	stateSuperseded:    {reportsNothing: true},
	stateGone:          {},
}
