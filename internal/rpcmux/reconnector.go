package rpcmux

import (
	"context"
	"errors"
	"sync"
	"time"
)

// endableConn is the type of the connections of a Reconnector; the zero value means "no
// connection".
type endableConn interface {
	comparable
	Ended() bool
}

// Reconnector holds the current connection to a process that may exit and be started again.
// Between two processes it has no connection. Its methods may be called concurrently.
type Reconnector[C endableConn] struct {
	stopped   <-chan struct{}
	errClosed error

	mu           sync.Mutex
	currentConn  C
	noConnReason error         // why there is no connection; may be nil
	changed      chan struct{} // closed and replaced by SetConn
}

// NewReconnector returns a Reconnector without a connection. When stop is closed, WaitForConn
// returns the error closed.
func NewReconnector[C endableConn](stop <-chan struct{}, closed error) *Reconnector[C] {
	return &Reconnector[C]{stopped: stop, errClosed: closed, changed: make(chan struct{})}
}

// SetConn replaces the current connection by c. If c is the zero value, there is no connection, and err is
// the reason or nil.
func (r *Reconnector[C]) SetConn(c C, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.currentConn, r.noConnReason = c, err
	close(r.changed)
	r.changed = make(chan struct{})
}

// CurrentConn returns the connection that was last passed to SetConn. The connection may have ended.
func (r *Reconnector[C]) CurrentConn() C {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.currentConn
}

// WaitForConn returns the current connection, and blocks while there is none. If ctx ends first, the
// error includes the last error that was passed to SetConn.
func (r *Reconnector[C]) WaitForConn(ctx context.Context) (c C, err error) {
	var zero C
	for {
		r.mu.Lock()
		now, changed, last := r.currentConn, r.changed, r.noConnReason
		r.mu.Unlock()
		if now != zero && !now.Ended() {
			return now, nil
		}
		select {
		case <-changed:
		case <-r.stopped:
			return zero, r.errClosed
		case <-ctx.Done():
			return zero, errors.Join(context.Cause(ctx), last)
		}
	}
}

// CallUntilConnStays calls f with the current connection, and again with each new one as long as f returns down, which says that
// the connection has ended. It returns f's other errors and WaitForConn's errors.
func (r *Reconnector[C]) CallUntilConnStays(ctx context.Context, down error, f func(C) error) error {
	for {
		c, err := r.WaitForConn(ctx)
		if err != nil {
			return err // can include down, with which the last attempt to connect ended
		}
		if err := f(c); !errors.Is(err, down) {
			return err
		}
	}
}

// Minimum and maximum pause between two attempts to connect.
const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// ConnectWithBackoff calls connect until it succeeds, and returns the connection, or false
// if ctx ends first. It passes each error to SetConn, for callers of WaitForConn, and to failed. The
// caller must pass the returned connection to SetConn.
func (r *Reconnector[C]) ConnectWithBackoff(ctx context.Context, connect func(context.Context) (C, error), failed func(error)) (c C, ok bool) {
	var zero C
	for pause := minBackoff; ctx.Err() == nil; pause = min(2*pause, maxBackoff) {
		c, err := connect(ctx)
		if err == nil {
			return c, true
		}
		if ctx.Err() == nil {
			r.SetConn(zero, err)
			failed(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return zero, false
}
