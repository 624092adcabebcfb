package scheduler

import (
	"context"
	"sort"
	"sync"
	"time"
)

// timerQueue says what is to be done when. It may be used concurrently.
type timerQueue[K comparable] struct {
	changed chan struct{} // holds a tick when there is something new to wait for

	mu sync.Mutex
	at map[K]time.Time
}

func newTimerQueue[K comparable]() *timerQueue[K] {
	return &timerQueue[K]{changed: make(chan struct{}, 1), at: make(map[K]time.Time)}
}

// set notes when to do something, in place of what was noted before. The zero
// time means never.
func (a *timerQueue[K]) set(key K, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at.IsZero() {
		delete(a.at, key)
		return
	}
	if !a.at[key].Equal(at) {
		a.at[key] = at
		tick(a.changed)
	}
}

// due returns what should be done by now, in the order of the times. It stays
// noted.
func (a *timerQueue[K]) due(now time.Time) []K {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []K
	for key, at := range a.at {
		if !at.After(now) {
			due = append(due, key)
		}
	}
	sort.Slice(due, func(i, j int) bool { return a.at[due[i]].Before(a.at[due[j]]) })
	return due
}

// next returns the first of the times.
func (a *timerQueue[K]) next() (first time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.at {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// maxWait is how long a wait may be: the clock of the machine may be set.
const maxWait = time.Minute

// wait returns when something is due or also ticks, or false when ctx ends.
func (a *timerQueue[K]) wait(ctx context.Context, now func() time.Time, also <-chan struct{}) bool {
	for ctx.Err() == nil {
		delay := maxWait
		if at := a.next(); !at.IsZero() {
			if delay = min(delay, at.Sub(now())); delay <= 0 {
				return true
			}
		}
		select {
		case <-time.After(delay):
		case <-a.changed:
		case <-also:
			return ctx.Err() == nil
		case <-ctx.Done():
		}
	}
	return false
}

// tick leaves a tick in a channel that holds one.
func tick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
