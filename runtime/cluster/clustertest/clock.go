package clustertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Clock is the time of a cluster: of heartbeats, blocking queries, delays of faults, and tokens.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f after d, unless stop was called before. f must not block.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }

func (realClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	return time.AfterFunc(d, f).Stop
}

// ManualClock is a Clock that stands still until Advance. Its methods may be called concurrently.
type ManualClock struct {
	mu      sync.Mutex
	now     time.Time
	timers  []*manualTimer
	changed chan struct{} // closed and replaced when a timer is added
}

type manualTimer struct {
	at time.Time
	f  func()
}

// NewManualClock returns a clock that shows start.
func NewManualClock(start time.Time) *ManualClock {
	return &ManualClock{now: start, changed: make(chan struct{})}
}

// Now returns the time of the clock.
func (c *ManualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc implements Clock. Advance calls f.
func (c *ManualClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := &manualTimer{c.now.Add(d), f}
	c.timers = append(c.timers, timer)
	close(c.changed)
	c.changed = make(chan struct{})
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.timers, timer)
		if i >= 0 {
			c.timers = slices.Delete(c.timers, i, i+1)
		}
		return i >= 0
	}
}

// WaitTimers waits until at least n functions wait for their times. Each node that sends heartbeats has one, and each call
// that blocks. The error is that of ctx.
func (c *ManualClock) WaitTimers(ctx context.Context, n int) error {
	for {
		c.mu.Lock()
		waiting, changed := len(c.timers), c.changed
		c.mu.Unlock()
		if waiting >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d timers, have %d: %w", n, waiting, context.Cause(ctx))
		}
	}
}

// Advance moves the clock by d, and calls the functions that are due in the order of their times. It returns after the
// last of these functions has returned.
func (c *ManualClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := c.now.Add(d)
	for {
		var next *manualTimer
		for _, timer := range c.timers {
			if !timer.at.After(end) && (next == nil || timer.at.Before(next.at)) {
				next = timer
			}
		}
		if next == nil {
			c.now = end
			return
		}
		c.timers = slices.DeleteFunc(c.timers, func(t *manualTimer) bool { return t == next })
		if next.at.After(c.now) {
			c.now = next.at
		}
		c.mu.Unlock()
		next.f()
		c.mu.Lock()
	}
}
