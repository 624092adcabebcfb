package supervisor

import "time"

const (
	backoffBase = 5 * time.Second
	backoffMost = 2 * time.Minute

	overCallBase = 100 * time.Millisecond
	overCallMost = time.Second

	// stableAfter is how long a process must live for its past to be forgotten.
	stableAfter = time.Minute

	// A stream that breaks while its plugin lives is opened again after
	// reopenBase, and after more when it does not last for reopenStable.
	reopenBase   = 250 * time.Millisecond
	reopenMost   = 30 * time.Second
	reopenStable = 5 * time.Second
)

// backoff is the delay before a launch after so many troubles in a row: none
// after none, for a plugin that was well is launched again at once.
func backoff(troubles int) time.Duration {
	if troubles <= 0 {
		return 0
	}
	return doubled(backoffBase, troubles-1, backoffMost)
}

// overCallBackoff is backoff for a hook that dies when it is called: it comes up
// well, and those who call it next may have better luck.
func overCallBackoff(troubles int) time.Duration {
	if troubles <= 0 {
		return 0
	}
	return doubled(overCallBase, troubles-1, overCallMost)
}

// reopen is the delay before a stream is opened again after so many short lives.
func reopen(short int) time.Duration { return doubled(reopenBase, short, reopenMost) }

func doubled(d time.Duration, times int, most time.Duration) time.Duration {
	for ; times > 0 && d < most; times-- {
		d *= 2
	}
	return min(d, most)
}
