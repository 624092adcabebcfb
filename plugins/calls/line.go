package calls

import (
	"context"
	"errors"
	"sync"
	"time"
)

// connection is what a Line leads over; the zero value is none.
type connection interface {
	comparable
	Ended() bool
}

// Reconnector is the way to a process that comes and goes: one connection after the other,
// and none in between. Its methods may be called concurrently.
type Reconnector[C connection] struct {
	stop   <-chan struct{}
	closed error

	mu      sync.Mutex
	now     C
	err     error         // why there is no connection
	changed chan struct{} // closed and replaced by Set
}

// NewReconnector returns a line without a connection. When stop is closed, the error of
// those who wait is closed.
func NewReconnector[C connection](stop <-chan struct{}, closed error) *Reconnector[C] {
	return &Reconnector[C]{stop: stop, closed: closed, changed: make(chan struct{})}
}

// Set replaces the connection. Without one, err may say why.
func (l *Reconnector[C]) Set(c C, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.err = c, err
	close(l.changed)
	l.changed = make(chan struct{})
}

// Now returns the connection that was set last, which may have ended.
func (l *Reconnector[C]) Now() C {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Wait returns the connection, and waits while there is none. If ctx ends before,
// the error also says why there was none.
func (l *Reconnector[C]) Wait(ctx context.Context) (c C, err error) {
	var none C
	for {
		l.mu.Lock()
		now, changed, last := l.now, l.changed, l.err
		l.mu.Unlock()
		if now != none && !now.Ended() {
			return now, nil
		}
		select {
		case <-changed:
		case <-l.stop:
			return none, l.closed
		case <-ctx.Done():
			return none, errors.Join(context.Cause(ctx), last)
		}
	}
}

// The pauses between attempts to reach a process.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = 2 * time.Second
)

// ConnectWithBackoff connects again and again until that succeeds, or ctx ends, when it returns
// false. Those who wait are told why they have to, and so is failed, before each
// further attempt. It does not Set what it returns.
func (l *Reconnector[C]) ConnectWithBackoff(ctx context.Context, connect func(context.Context) (C, error), failed func(error)) (c C, ok bool) {
	var none C
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, mostPause) {
		c, err := connect(ctx)
		if err == nil {
			return c, true
		}
		if ctx.Err() == nil {
			l.Set(none, err)
			failed(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return none, false
}
