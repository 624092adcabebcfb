package scheduler

import (
	"context"
	"sort"
	"sync"
	"time"
)

// timerQueue maps keys to the times at which they are due. It may be used
// concurrently.
type timerQueue[K comparable] struct {
	changed chan struct{} // receives a value when the times have changed

	mu sync.Mutex
	at map[K]time.Time
}

func newTimerQueue[K comparable]() *timerQueue[K] {
	return &timerQueue[K]{changed: make(chan struct{}, 1), at: make(map[K]time.Time)}
}

// set sets the time of a key and replaces an earlier one. The zero time removes the
// key.
func (a *timerQueue[K]) set(key K, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at.IsZero() {
		delete(a.at, key)
		return
	}
	if !a.at[key].Equal(at) {
		a.at[key] = at
		notify(a.changed)
	}
}

// due returns the keys that are due, sorted by time. They stay in the queue.
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

// next returns the earliest time, or zero.
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

// maxTimerWait limits how long wait sleeps without reading the clock: the clock of the machine may be set meanwhile.
const maxTimerWait = time.Minute

// wait returns true when a key is due or when also receives a value, and false when ctx ends.
func (a *timerQueue[K]) wait(ctx context.Context, now func() time.Time, also <-chan struct{}) bool {
	for ctx.Err() == nil {
		delay := maxTimerWait
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

// notify sends a value on a channel that has a buffer of one. It does not block: if the buffer is full,
// it does nothing.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
