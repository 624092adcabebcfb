package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// errDown means that the connection ended before the answer came.
var errDown = errors.New("connection to the keeper is down")

// link is one connection of a client, with many requests under way at once.
type link struct {
	wire      *wire
	keeper    Process
	ephemeral bool
	wg        sync.WaitGroup
	done      chan struct{} // closed by read

	mu      sync.Mutex
	last    uint64
	pending map[uint64]chan result // nil once the connection is down
}

type result struct {
	resp *response
	fds  []int
}

// newLink introduces itself on a connection, which it owns from now on.
func newLink(ctx context.Context, conn *net.UnixConn, agent bool) (*link, error) {
	l := &link{wire: &wire{conn: conn}, done: make(chan struct{}), pending: map[uint64]chan result{}}
	l.wg.Go(l.read)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, _, err := l.call(ctx, &request{Op: opHello, Agent: agent})
	if err == nil {
		err = resp.err()
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("introduce to keeper: %w", err)
	}
	l.keeper, l.ephemeral = resp.Process, resp.Ephemeral
	return l, nil
}

// close ends the connection and waits for its goroutine.
func (l *link) close() {
	l.wire.conn.Close()
	l.wg.Wait()
}

// call sends a request and waits for its answer. The caller owns the
// descriptors that come with it, and keeps those that it passes.
func (l *link) call(ctx context.Context, req *request, fds ...int) (*response, []int, error) {
	ch := make(chan result, 1)
	r := *req
	l.mu.Lock()
	if l.pending == nil {
		l.mu.Unlock()
		return nil, nil, l.down()
	}
	l.last++
	r.ID = l.last
	l.pending[r.ID] = ch
	l.mu.Unlock()

	if err := l.wire.send(&r, fds...); err != nil {
		l.forget(r.ID, ch)
		var op *net.OpError
		if errors.As(err, &op) {
			return nil, nil, l.down()
		}
		return nil, nil, err // the request itself is at fault
	}
	select {
	case res, ok := <-ch:
		if !ok {
			return nil, nil, l.down()
		}
		return res.resp, res.fds, nil
	case <-ctx.Done():
		l.forget(r.ID, ch)
		_ = l.wire.send(&request{ID: r.ID, Op: opCancel})
		return nil, nil, context.Cause(ctx)
	}
}

// down is the error of a call on a connection that has ended, or is about to:
// once it is returned, ended says so too.
func (l *link) down() error {
	<-l.done
	return errDown
}

// ended reports whether no answer will come any more.
func (l *link) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// forget gives up a request; an answer that has come already is dropped.
func (l *link) forget(id uint64, ch chan result) {
	l.mu.Lock()
	delete(l.pending, id)
	l.mu.Unlock()
	select {
	case res := <-ch:
		closeAll(res.fds)
	default:
	}
}

// read hands out answers until the connection ends.
func (l *link) read() {
	defer close(l.done)
	for {
		resp := &response{}
		fds, err := l.wire.receive(resp)
		if err != nil {
			break
		}
		l.mu.Lock()
		ch := l.pending[resp.ID]
		delete(l.pending, resp.ID)
		if ch != nil {
			ch <- result{resp, fds} // has room for one, and gets one
		}
		l.mu.Unlock()
		if ch == nil {
			closeAll(fds)
		}
	}
	l.wire.conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ch := range l.pending {
		close(ch)
	}
	l.pending = nil
}
