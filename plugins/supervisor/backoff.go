package supervisor

import "time"

const (
	// stableAfter is the uptime after which the failure count of a plugin is reset.
	stableAfter = time.Minute

	// stableStreamAfter is the same for a stream.
	stableStreamAfter = 5 * time.Second
)

// backoff computes the delay before a retry: none without a failure, first after one failure,
// then twice as long each time, up to limit.
type backoff struct{ first, limit time.Duration }

var (
	// launchBackoff is the backoff before a launch: a plugin that was stable is launched again at
	// once.
	launchBackoff = backoff{5 * time.Second, 2 * time.Minute}

	// callCrashBackoff replaces launchBackoff for a hook that dies during calls: the hook starts without
	// errors, and its next callers may succeed.
	callCrashBackoff = backoff{100 * time.Millisecond, time.Second}

	// streamBackoff is the backoff before a broken stream of a living plugin is opened again.
	streamBackoff = backoff{250 * time.Millisecond, 30 * time.Second}
)

// after returns the delay after the given number of consecutive failures.
func (b backoff) after(failureCount int) time.Duration {
	if failureCount <= 0 {
		return 0
	}
	d := b.first
	for ; failureCount > 1 && d < b.limit; failureCount-- {
		d *= 2
	}
	return min(d, b.limit)
}

// runResult describes how a run of a plugin process ended.
type runResult struct {
	launchRequested <-chan struct{} // closed when the plugin is requested again; set only if the process was stopped as unused

	err           error         // the reason why the plugin is down
	started       bool          // the process was started
	uptime        time.Duration // time from the launch to the exit
	crashedInCall bool          // the plugin is a hook that was requested during this run, so that it may have died in a call
}

// failures counts how often in a row a plugin has failed to start or has died early.
type failures int

// delay counts the end of a run, and returns the delay before the next launch.
func (f *failures) delay(result runResult) time.Duration {
	switch {
	case !result.started:
		*f = max(*f, 1) // an immediate retry would fail in the same way
	case result.uptime >= stableAfter:
		*f = 0
	}
	b := launchBackoff
	if result.crashedInCall {
		b = callCrashBackoff
	}
	*f++
	return b.after(int(*f) - 1)
}
