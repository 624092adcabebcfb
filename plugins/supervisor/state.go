package supervisor

// state is the state of a managed plugin.
type state int

const (
	held       state = iota // not launched yet: a configured plugin may replace the builtin, or the goroutine has not started
	starting                // a process is being started or reattached
	running                 // a process runs
	idle                    // an unused builtin has no process until the next request
	backingOff              // the last launch or process has failed, and the next launch follows after a delay
	failed                  // the catalog has an error for the plugin, so that no process is launched
	superseded              // another plugin serves the driver or hook
	draining                // the plugin was removed from the catalog or changed, and its process still has tasks
	gone                    // the supervisor no longer manages the plugin
)

// event changes the state of a managed plugin.
type event int

const (
	launchRejected event = iota // the catalog has an error for the plugin
	launchStarted               // a launch starts: the first one, on request, or after a delay
	launchFailed                // the launch has failed
	launched                    // the process is registered for its driver or hook
	exited                      // the process has exited, and the next launch starts at once
	exitedEarly                 // the process has exited, and the next launch follows after a delay
	unused                      // the plugin is a builtin that no task needs
	replaced                    // the plugin has lost the arbitration
	removed                     // the plugin was removed from the catalog or changed
	released                    // the goroutine of a removed plugin has ended, or a superseded plugin can compete again
)

// transitions shows the whole machine. An event that is not in the row of a state leaves the
// state as it is: a superseded plugin stays superseded when its process exits.
var transitions = [...]map[event]state{
	held: {
		launchRejected: failed, launchStarted: starting, unused: idle,
		replaced: superseded, released: gone,
	},
	starting: {
		launched: running, launchFailed: backingOff,
		replaced: superseded, released: gone,
	},
	running: {
		exited: starting, exitedEarly: backingOff, unused: idle,
		replaced: superseded, removed: draining, released: gone,
	},
	idle:       {launchStarted: starting, replaced: superseded, released: gone},
	backingOff: {launchStarted: starting, replaced: superseded, released: gone},
	failed:     {replaced: superseded, released: gone},
	superseded: {released: gone},
	draining: {
		exited: starting, exitedEarly: backingOff, unused: idle,
		replaced: superseded, released: gone,
	},
	gone: {},
}

// next returns the state that follows s after e.
func (s state) next(e event) state {
	if to, ok := transitions[s][e]; ok {
		return to
	}
	return s
}
