package supervisor

import "time"

const (
	// stableAfter is how long a process must live for its past to be forgotten.
	stableAfter = time.Minute

	// reopenStable is the same for a stream.
	reopenStable = 5 * time.Second
)

// backoff says how long to wait before something is tried again: not at all after no
// trouble, first after one, and then twice as long each time, up to most.
type backoff struct{ first, most time.Duration }

var (
	// launching is before a launch: a plugin that was well is launched again at once.
	launching = backoff{5 * time.Second, 2 * time.Minute}

	// answering is launching for a hook that dies when it is called: it comes up
	// well, and those who call it next may have better luck.
	answering = backoff{100 * time.Millisecond, time.Second}

	// reopening is before a stream is opened again that broke while its plugin lives.
	reopening = backoff{250 * time.Millisecond, 30 * time.Second}
)

// after is the delay after so many troubles in a row.
func (b backoff) after(troubles int) time.Duration {
	if troubles <= 0 {
		return 0
	}
	d := b.first
	for ; troubles > 1 && d < b.most; troubles-- {
		d *= 2
	}
	return min(d, b.most)
}

// runResult is how a process of a plugin has come to its end.
type runResult struct {
	wanted <-chan struct{} // nobody needs the plugin until this is closed; nil otherwise

	err      error         // why the plugin is down
	began    bool          // the process came up
	lasted   time.Duration // since its launch
	overCall bool          // it was a hook, and somebody had asked for it
}

// failures is how often in a row a plugin has not come up, or has died soon.
type failures int

// delay counts the end of a life, and returns how long the next one has to wait.
func (t *failures) delay(l runResult) time.Duration {
	switch {
	case !l.began:
		*t = max(*t, 1) // the same again at once would fail the same
	case l.lasted >= stableAfter:
		*t = 0
	}
	b := launching
	if l.overCall {
		b = answering
	}
	*t++
	return b.after(int(*t) - 1)
}
