package rpcmux

import (
	"context"
	"errors"
	"sync"
	"time"
)

// connection is the type of the connections of a Reconnector; the zero value means "no
// connection".
type connection interface {
	comparable
	Ended() bool
}

// Reconnector holds the current connection to a process that may exit and be started again.
// Between two processes it has no connection. Its methods may be called concurrently.
type Reconnector[C connection] struct {
	stop      <-chan struct{}
	errClosed error

	mu          sync.Mutex
	currentConn C
	err         error         // the reason why there is no connection
	changed     chan struct{} // changed: closed and replaced by Set
}

// NewReconnector returns a Reconnector without a connection. When stop is closed, Wait
// returns the error closed.
func NewReconnector[C connection](stop <-chan struct{}, closed error) *Reconnector[C] {
	return &Reconnector[C]{stop: stop, errClosed: closed, changed: make(chan struct{})}
}

// Set replaces the connection. If c is the zero value, there is no connection, and err is
// the reason or nil.
func (r *Reconnector[C]) Set(c C, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.currentConn, r.err = c, err
	close(r.changed)
	r.changed = make(chan struct{})
}

// Now returns the connection that was set last. It may have ended.
func (r *Reconnector[C]) Now() C {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.currentConn
}

// Wait returns the connection, and blocks while there is none. If ctx ends first, the
// error includes the last error passed to Set.
func (r *Reconnector[C]) Wait(ctx context.Context) (c C, err error) {
	var zero C
	for {
		r.mu.Lock()
		now, changed, last := r.currentConn, r.changed, r.err
		r.mu.Unlock()
		if now != zero && !now.Ended() {
			return now, nil
		}
		select {
		case <-changed:
		case <-r.stop:
			return zero, r.errClosed
		case <-ctx.Done():
			return zero, errors.Join(context.Cause(ctx), last)
		}
	}
}

// Minimum and maximum pause between two attempts to connect.
const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// ConnectWithBackoff calls connect until it succeeds, and returns the connection, or false
// if ctx ends first. It passes each error to Set, for callers of Wait, and to failed. The
// caller must pass the connection to Set.
func (r *Reconnector[C]) ConnectWithBackoff(ctx context.Context, connect func(context.Context) (C, error), failed func(error)) (c C, ok bool) {
	var zero C
	for pause := minBackoff; ctx.Err() == nil; pause = min(2*pause, maxBackoff) {
		c, err := connect(ctx)
		if err == nil {
			return c, true
		}
		if ctx.Err() == nil {
			r.Set(zero, err)
			failed(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return zero, false
}
