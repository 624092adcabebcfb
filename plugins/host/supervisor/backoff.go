package supervisor

import "time"

const (
	// stableUptime is the uptime after which the failure count of a plugin is reset.
	stableUptime = time.Minute

	// stableStreamUptime is the duration after which the failure count of a stream is reset.
	stableStreamUptime = 5 * time.Second
)

// backoff computes the delay before a retry: 0 without a failure, minDelay after one failure, and twice the last delay
// after each further failure, up to maxDelay.
type backoff struct{ minDelay, maxDelay time.Duration }

var (
	// launchBackoff is the backoff before a launch. A plugin that has run for stableUptime
	// is launched again immediately.
	launchBackoff = backoff{5 * time.Second, 2 * time.Minute}

	// callCrashBackoff replaces launchBackoff for a hook that dies during calls: the hook
	// has started without errors, and calls of other allocations may succeed.
	callCrashBackoff = backoff{100 * time.Millisecond, time.Second}

	// streamBackoff is the backoff before the supervisor reopens the broken stream of a
	// plugin that still runs.
	streamBackoff = backoff{250 * time.Millisecond, 30 * time.Second}
)

// delayAfter returns the delay after the given number of consecutive failures.
func (b backoff) delayAfter(failureCount int) time.Duration {
	if failureCount <= 0 {
		return 0
	}
	d := b.minDelay
	for ; failureCount > 1 && d < b.maxDelay; failureCount-- {
		d *= 2
	}
	return min(d, b.maxDelay)
}

// pluginRunResult is the reason why a plugin has no process: the launch has failed, or the process has exited or was
// stopped.
type pluginRunResult struct {
	// relaunchRequested is set only if the process was stopped because it was unused. It is closed when the plugin is
	// requested again.
	relaunchRequested <-chan struct{}
	// restartRequested means that the process was stopped for Supervisor.Restart.
	restartRequested bool

	exitOrLaunchErr error // why the process has exited or was not started
	// deviceStreamErr is the reason why the process of a device plugin was stopped, and is not launched
	// again: the plugin has ended its stream of fingerprints.
	deviceStreamErr error
	processStarted  bool          // the launch has succeeded
	uptime          time.Duration // time from the launch to the exit
	// mayHaveCrashedInCall means that the plugin is a hook that was requested while the process ran, and may have
	// died in a call.
	mayHaveCrashedInCall bool
}

// failureCounter counts the consecutive early exits and failed starts of a plugin.
type failureCounter int

// countFailureAndNextDelay updates the failure count after a failed launch or an exit, and returns the delay before the
// next launch.
func (f *failureCounter) countFailureAndNextDelay(result pluginRunResult) time.Duration {
	switch {
	case !result.processStarted:
		*f = max(*f, 1) // at least one, because an immediate retry of a failed start would fail too
	case result.uptime >= stableUptime:
		*f = 0
	}
	b := launchBackoff
	if result.mayHaveCrashedInCall {
		b = callCrashBackoff
	}
	*f++
	return b.delayAfter(int(*f) - 1)
}
