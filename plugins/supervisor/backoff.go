package supervisor

import "time"

const (
	// stableAfter is the uptime after which the failure count of a plugin is reset.
	stableAfter = time.Minute

	// reopenStable is the same for a stream.
	reopenStable = 5 * time.Second
)

// backoff computes the delay before a retry: none without a failure, first after one failure,
// then twice as long each time, up to most.
type backoff struct{ first, most time.Duration }

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
	for ; failureCount > 1 && d < b.most; failureCount-- {
		d *= 2
	}
	return min(d, b.most)
}

// runResult describes how a run of a plugin process ended.
type runResult struct {
	requested <-chan struct{} // closed when the plugin is requested again; set only if the process was stopped as unused

	err      error         // the reason why the plugin is down
	began    bool          // the process was started
	lasted   time.Duration // time since the launch
	overCall bool          // the plugin is a hook that was requested during this run
}

// failures counts how often in a row a plugin has failed to start or has died early.
type failures int

// delay counts the end of a run, and returns the delay before the next launch.
func (t *failures) delay(l runResult) time.Duration {
	switch {
	case !l.began:
		*t = max(*t, 1) // an immediate retry would fail in the same way
	case l.lasted >= stableAfter:
		*t = 0
	}
	b := launchBackoff
	if l.overCall {
		b = callCrashBackoff
	}
	*t++
	return b.after(int(*t) - 1)
}
