package scheduler

import (
	"context"
	"sort"
	"sync"
	"time"
)

// timerQueue maps keys to the times at which they are due. Its methods may be called
// concurrently.
type timerQueue[K comparable] struct {
	timesChanged chan struct{} // receives a value when a due time was set

	mu       sync.Mutex
	dueTimes map[K]time.Time
}

func newTimerQueue[K comparable]() *timerQueue[K] {
	return &timerQueue[K]{timesChanged: make(chan struct{}, 1), dueTimes: make(map[K]time.Time)}
}

// setDueTime sets or replaces the due time of a key. The zero time removes the key.
func (t *timerQueue[K]) setDueTime(key K, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.IsZero() {
		delete(t.dueTimes, key)
		return
	}
	if !t.dueTimes[key].Equal(at) {
		t.dueTimes[key] = at
		notify(t.timesChanged)
	}
}

// dueKeys returns the keys whose due time has been reached, sorted by due time. It does not remove them: setDueTime does.
func (t *timerQueue[K]) dueKeys(now time.Time) []K {
	t.mu.Lock()
	defer t.mu.Unlock()
	var due []K
	for key, at := range t.dueTimes {
		if !at.After(now) {
			due = append(due, key)
		}
	}
	sort.Slice(due, func(i, j int) bool { return t.dueTimes[due[i]].Before(t.dueTimes[due[j]]) })
	return due
}

// earliestDueTime returns the earliest due time of all keys, or the zero time if there are no keys.
func (t *timerQueue[K]) earliestDueTime() (first time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, at := range t.dueTimes {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// maxTimerWait is the longest sleep between two readings of the clock: the wall clock may be set during a sleep.
const maxTimerWait = time.Minute

// waitUntilDueOrSignal blocks until a key is due or the channel signal receives a value. It returns false if ctx ends
// before.
func (t *timerQueue[K]) waitUntilDueOrSignal(ctx context.Context, now func() time.Time, signal <-chan struct{}) bool {
	for ctx.Err() == nil {
		delay := maxTimerWait
		if at := t.earliestDueTime(); !at.IsZero() {
			if delay = min(delay, at.Sub(now())); delay <= 0 {
				return true
			}
		}
		select {
		case <-time.After(delay):
		case <-t.timesChanged:
		case <-signal:
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
