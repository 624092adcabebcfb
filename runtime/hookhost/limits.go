package hookhost

import (
	"fmt"
	"maps"
	"sync"
	"time"
)

// Limits of the requests of hooks.
const (
	maxRequest = 4 << 20 // bytes
	// maxCalls limits the calls on one connection. A plugin has one connection, and the
	// templates of hundreds of tasks wait for changes on it.
	maxCalls = 50_000
	maxText  = 1 << 10 // maxText limits a reason or a text of an event, in bytes; longer texts are cut
)

// kind is a kind of long-running calls.
type kind int

const (
	execs kind = iota
	samples
	watches
	kinds
)

// limits are the numbers of concurrent calls of each kind per token.
var limits = [kinds]struct {
	n    int
	what string
}{
	execs:   {16, "commands in the task"},
	samples: {16, "streams of samples"},
	watches: {1000, "calls that wait for a change"},
}

// An event, a signal or a restart costs a write of the state. These are the burst and
// the long-term rate per token.
const (
	actsAtOnce    = 100
	actsPerSecond = 10
)

// limiter counts the recent calls of each token. It has no entry for a token without
// recent calls.
type limiter struct {
	mu sync.Mutex
	of map[claims]*tokenBucket
}

type tokenBucket struct {
	underWay [kinds]int
	acts     float64 // acts are the calls not yet refilled by actsPerSecond
	at       time.Time
}

// settled refills the bucket and reports whether its entry can be removed.
func (a *tokenBucket) settled(now time.Time) bool {
	a.acts = max(a.acts-now.Sub(a.at).Seconds()*actsPerSecond, 0)
	a.at = now
	return a.acts == 0 && a.underWay == [kinds]int{}
}

// openLocked returns the refilled bucket of a token.
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

// begin counts one more call of a kind until end is called. It fails at the limit.
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

// act counts one more state-changing call. It fails at the rate limit.
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
