package supervisor

// state is the state of a managed plugin.
type state int

const (
	stateNotLaunched state = iota // not launched yet: a configured plugin may replace the builtin, or the goroutine has not started
	stateStarting                 // a process is being started or reattached
	stateRunning                  // a process runs
	stateIdle                     // an unused builtin has no process until the next request
	stateBackingOff               // the last launch or process has failed, and the next launch follows after a delay
	stateFailed                   // the catalog has an error for the plugin, so that no process is launched
	stateSuperseded               // another plugin serves the driver or hook
	stateDraining                 // the plugin was removed from the catalog or changed, and its process still has tasks
	stateGone                     // the supervisor no longer manages the plugin
)

// event changes the state of a managed plugin.
type event int

const (
	eventLaunchRejected event = iota // the catalog has an error for the plugin
	eventLaunchStarted               // a launch starts: the first one, on request, or after a delay
	eventLaunchFailed                // the launch has failed
	eventLaunched                    // the process is registered for its driver or hook
	eventExited                      // the process has exited, and the next launch starts at once
	eventExitedEarly                 // the process has exited, and the next launch follows after a delay
	eventUnused                      // the plugin is a builtin that no task needs
	eventReplaced                    // the plugin has lost the arbitration
	eventRemoved                     // the plugin was removed from the catalog or changed
	eventDiscarded                   // the goroutine of a removed plugin has ended, or a superseded plugin can compete again
)

// transitions shows the whole machine. An event that is not in the row of a state leaves the
// state as it is: a superseded plugin stays superseded when its process exits.
var transitions = [...]map[event]state{
	stateNotLaunched: {
		eventLaunchRejected: stateFailed, eventLaunchStarted: stateStarting, eventUnused: stateIdle,
		eventReplaced: stateSuperseded, eventDiscarded: stateGone,
	},
	stateStarting: {
		eventLaunched: stateRunning, eventLaunchFailed: stateBackingOff,
		eventReplaced: stateSuperseded, eventDiscarded: stateGone,
	},
	stateRunning: {
		eventExited: stateStarting, eventExitedEarly: stateBackingOff, eventUnused: stateIdle,
		eventReplaced: stateSuperseded, eventRemoved: stateDraining, eventDiscarded: stateGone,
	},
	stateIdle:       {eventLaunchStarted: stateStarting, eventReplaced: stateSuperseded, eventDiscarded: stateGone},
	stateBackingOff: {eventLaunchStarted: stateStarting, eventReplaced: stateSuperseded, eventDiscarded: stateGone},
	stateFailed:     {eventReplaced: stateSuperseded, eventDiscarded: stateGone},
	stateSuperseded: {eventDiscarded: stateGone},
	stateDraining: {
		eventExited: stateStarting, eventExitedEarly: stateBackingOff, eventUnused: stateIdle,
		eventReplaced: stateSuperseded, eventDiscarded: stateGone,
	},
	stateGone: {},
}

// next returns the state that follows s after e.
func (s state) next(e event) state {
	if to, ok := transitions[s][e]; ok {
		return to
	}
	return s
}
