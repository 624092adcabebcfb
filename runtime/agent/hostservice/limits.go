package hostservice

import (
	"fmt"
	"maps"
	"sync"
	"time"
)

// Limits for hook requests.
const (
	maxRequestBytes = 4 << 20
	// maxCalls limits the calls on a connection. A plugin has one connection, where hundreds of tasks' templates wait for changes.
	maxCalls = 50_000
	// maxWatchCalls limits all tokens' calls that wait for a change, so that other calls on a connection remain possible.
	maxWatchCalls = 40_000
	maxTextBytes  = 1 << 10 // maxTextBytes limits a reason or an event text, in bytes; longer texts are cut
)

// callKind is a kind of long-running call.
type callKind int

const (
	execCalls callKind = iota
	statsCalls
	watchCalls
	callKindCount
)

// callLimits are the maximum concurrent calls per token, by kind.
var callLimits = [callKindCount]struct {
	max         int
	description string // in messages
}{
	execCalls:  {16, "commands in the task"},
	statsCalls: {16, "streams of samples"},
	watchCalls: {1000, "calls that wait for a change"},
}

// An event, a signal or a restart costs a state write. These are the burst and the long-term rate per token.
const (
	writeBurst      = 100
	writesPerSecond = 10
)

// callLimiter counts each token's recent calls. It has no counts for a token without recent calls.
type callLimiter struct {
	mu            sync.Mutex
	countsByToken map[tokenClaims]*tokenCallCounts
	watchCalls    int // for all tokens
}

type tokenCallCounts struct {
	runningCallsByKind [callKindCount]int // running calls by kind
	usedWriteBudget    float64            // writes not yet refilled by writesPerSecond
	lastRefill         time.Time          // last refill time
}

// refillWrites refills the writes, and reports whether the token's counts can be removed.
func (b *tokenCallCounts) refillWrites(now time.Time) (countsRemovable bool) {
	b.usedWriteBudget = max(b.usedWriteBudget-now.Sub(b.lastRefill).Seconds()*writesPerSecond, 0)
	b.lastRefill = now
	return b.usedWriteBudget == 0 && b.runningCallsByKind == [callKindCount]int{}
}

// refilledCountsLocked returns a token's counts, with the writes refilled until now.
func (l *callLimiter) refilledCountsLocked(c tokenClaims) *tokenCallCounts {
	now := time.Now()
	if b := l.countsByToken[c]; b != nil {
		b.refillWrites(now)
		return b
	}
	maps.DeleteFunc(l.countsByToken, func(_ tokenClaims, other *tokenCallCounts) bool { return other.refillWrites(now) })
	if l.countsByToken == nil {
		l.countsByToken = make(map[tokenClaims]*tokenCallCounts)
	}
	l.countsByToken[c] = &tokenCallCounts{lastRefill: now}
	return l.countsByToken[c]
}

// countRunningCall counts one more call until end is called. It fails at the limit.
func (l *callLimiter) countRunningCall(c tokenClaims, k callKind) (end func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.refilledCountsLocked(c)
	if b.runningCallsByKind[k] >= callLimits[k].max {
		return nil, fmt.Errorf("hook %q has %d %s under way, and may not have more: end one first", c.Hook, b.runningCallsByKind[k], callLimits[k].description)
	}
	watches := 0
	if k == watchCalls {
		watches = 1
	}
	if l.watchCalls+watches > maxWatchCalls {
		return nil, fmt.Errorf("all hooks together have %d %s under way, and may not have more", l.watchCalls, callLimits[k].description)
	}
	l.watchCalls += watches
	b.runningCallsByKind[k]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		b.runningCallsByKind[k]--
		l.watchCalls -= watches
	}, nil
}

// countStateChange counts one more state-changing call. It fails at the rate limit.
func (l *callLimiter) countStateChange(c tokenClaims) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.refilledCountsLocked(c)
	if b.usedWriteBudget > writeBurst-1 {
		return fmt.Errorf("hook %q asks for too much: %d events, signals and the like at once are allowed, and %d a second", c.Hook, writeBurst, writesPerSecond)
	}
	b.usedWriteBudget++
	return nil
}
