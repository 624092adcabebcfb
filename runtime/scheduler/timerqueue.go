package scheduler

import (
	"context"
	"sort"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// timerQueue maps keys to the times at which they are due. Its methods may be called
// concurrently.
type timerQueue[K comparable] struct {
	timesChanged chan struct{} // receives a value when a due time was set

	dueTimesMu   sync.Mutex
	dueTimeByKey map[K]time.Time
}

func newTimerQueue[K comparable]() *timerQueue[K] {
	return &timerQueue[K]{timesChanged: make(chan struct{}, 1), dueTimeByKey: make(map[K]time.Time)}
}

// setOrClearDueTime sets or replaces a key's due time. The zero time removes the key.
func (t *timerQueue[K]) setOrClearDueTime(key K, at time.Time) {
	t.dueTimesMu.Lock()
	defer t.dueTimesMu.Unlock()
	if at.IsZero() {
		delete(t.dueTimeByKey, key)
		return
	}
	at = at.Round(0) // without the monotonic reading, which a step of the clock does not change
	if !t.dueTimeByKey[key].Equal(at) {
		t.dueTimeByKey[key] = at
		wait.Notify(t.timesChanged)
	}
}

// dueKeys returns the keys with a reached due time, sorted by due time. It does not remove them: setOrClearDueTime does.
func (t *timerQueue[K]) dueKeys(now time.Time) []K {
	t.dueTimesMu.Lock()
	defer t.dueTimesMu.Unlock()
	var due []K
	for key, at := range t.dueTimeByKey {
		if !at.After(now) {
			due = append(due, key)
		}
	}
	sort.Slice(due, func(i, j int) bool { return t.dueTimeByKey[due[i]].Before(t.dueTimeByKey[due[j]]) })
	return due
}

// earliestDueTime returns the earliest due time of all keys, or the zero time if there are no keys.
func (t *timerQueue[K]) earliestDueTime() (first time.Time) {
	t.dueTimesMu.Lock()
	defer t.dueTimesMu.Unlock()
	for _, at := range t.dueTimeByKey {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// maxTimerWait is the longest sleep between two clock readings: the wall clock may be set during a sleep.
const maxTimerWait = time.Minute

// waitUntilDueOrSignal blocks until a key is due or the channel signal receives a value. It returns false if ctx ends
// before.
func (t *timerQueue[K]) waitUntilDueOrSignal(ctx context.Context, now func() time.Time, signal <-chan struct{}) (isDueOrSignaled bool) {
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
