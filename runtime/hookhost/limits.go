package hookhost

import (
	"fmt"
	"maps"
	"sync"
	"time"
)

// Limits of what hooks may ask for.
const (
	maxRequest = 4 << 20 // bytes
	// maxCalls may be under way on one connection, which is all that a plugin has: the
	// templates of hundreds of tasks wait for changes.
	maxCalls = 50_000
	maxText  = 1 << 10 // of a reason, or of a text of an event, in bytes; the rest is cut off
)

// kind is a kind of calls that take their time.
type kind int

const (
	execs kind = iota
	samples
	watches
	kinds
)

// limits is how many calls of a kind one capability may have under way.
var limits = [kinds]struct {
	n    int
	what string
}{
	execs:   {16, "commands in the task"},
	samples: {16, "streams of samples"},
	watches: {1000, "calls that wait for a change"},
}

// What changes or shows in a task – events, signals, restarts – costs a write of the
// state: one capability may ask for so much at once, and for so much in the long run.
const (
	actsAtOnce    = 100
	actsPerSecond = 10
)

// limiter know what the bearers of capabilities have asked for lately, and nothing
// of those who have asked for nothing.
type limiter struct {
	mu sync.Mutex
	of map[claims]*tokenBucket
}

type tokenBucket struct {
	underWay [kinds]int
	acts     float64 // that have not been made up for
	at       time.Time
}

// settled reports whether there is nothing to be remembered.
func (a *tokenBucket) settled(now time.Time) bool {
	a.acts = max(a.acts-now.Sub(a.at).Seconds()*actsPerSecond, 0)
	a.at = now
	return a.acts == 0 && a.underWay == [kinds]int{}
}

// openLocked returns the account of a bearer, up to date.
func (a *limiter) openLocked(b claims) *tokenBucket {
	now := time.Now()
	if known := a.of[b]; known != nil {
		known.settled(now)
		return known
	}
	maps.DeleteFunc(a.of, func(_ claims, other *tokenBucket) bool { return other.settled(now) })
	if a.of == nil {
		a.of = make(map[claims]*tokenBucket)
	}
	a.of[b] = &tokenBucket{at: now}
	return a.of[b]
}

// begin allows one more call of a kind, which goes on until end is called.
func (a *limiter) begin(b claims, k kind) (end func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	mine := a.openLocked(b)
	if mine.underWay[k] >= limits[k].n {
		return nil, fmt.Errorf("hook %q has %d %s under way, and may not have more: end one first", b.Hook, mine.underWay[k], limits[k].what)
	}
	mine.underWay[k]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		mine.underWay[k]--
	}, nil
}

// act allows one more act.
func (a *limiter) act(b claims) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	mine := a.openLocked(b)
	if mine.acts > actsAtOnce-1 {
		return fmt.Errorf("hook %q asks for too much: %d events, signals and the like at once are allowed, and %d a second", b.Hook, actsAtOnce, actsPerSecond)
	}
	mine.acts++
	return nil
}
