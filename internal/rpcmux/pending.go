package rpcmux

import (
	"context"
	"errors"
	"sync"
)

// PendingCalls holds the requests of one connection that have no response yet. Its methods
// may be called concurrently.
type PendingCalls[T any] struct {
	errDown        error
	onLateResponse func(T)
	done           chan struct{} // closed by End

	mu      sync.Mutex
	lastID  uint64
	callers map[uint64]chan T // callers: nil after the connection has ended
}

// New returns the PendingCalls of a new connection. After the connection has ended, Call
// returns the error down. drop, which may be nil, is called with each response that arrives
// after its Call has returned.
func New[T any](down error, drop func(T)) *PendingCalls[T] {
	if drop == nil {
		drop = func(T) {}
	}
	return &PendingCalls[T]{errDown: down, onLateResponse: drop, done: make(chan struct{}), callers: make(map[uint64]chan T)}
}

// Call calls send with a new request number, and blocks until DeliverResponse is called with the
// same number. It returns the error of send, the cause of ctx when ctx ends, or the error
// down when the connection has ended. If send returns down, Call waits for End first, so
// that Ended returns true after Call has returned.
func (p *PendingCalls[T]) Call(ctx context.Context, send func(id uint64) error) (answer T, err error) {
	id, ch, ok := p.addCaller()
	if !ok {
		return answer, p.waitForEnd()
	}
	if err := send(id); err != nil {
		p.removeCaller(id, ch)
		if errors.Is(err, p.errDown) {
			return answer, p.waitForEnd()
		}
		return answer, err
	}
	select {
	case answer, ok = <-ch:
		if !ok {
			return answer, p.waitForEnd()
		}
		return answer, nil
	case <-ctx.Done():
		p.removeCaller(id, ch)
		return answer, context.Cause(ctx)
	}
}

// waitForEnd blocks until End is called, and returns the error of an ended connection.
func (p *PendingCalls[T]) waitForEnd() error {
	<-p.done
	return p.errDown
}

func (p *PendingCalls[T]) addCaller() (id uint64, ch chan T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.callers == nil {
		return 0, nil, false
	}
	ch = make(chan T, 1)
	p.lastID++
	p.callers[p.lastID] = ch
	return p.lastID, ch, true
}

// removeCaller cancels a request, and drops its response if that has already arrived.
func (p *PendingCalls[T]) removeCaller(id uint64, ch chan T) {
	p.mu.Lock()
	delete(p.callers, id)
	p.mu.Unlock()
	select {
	case answer, ok := <-ch:
		if ok {
			p.onLateResponse(answer)
		}
	default:
	}
}

// DeliverResponse passes a received response to the Call with its request number.
func (p *PendingCalls[T]) DeliverResponse(id uint64, answer T) {
	p.mu.Lock()
	ch := p.callers[id]
	delete(p.callers, id)
	if ch != nil {
		ch <- answer // ch never blocks: it has capacity 1 and gets one response
	}
	p.mu.Unlock()
	if ch == nil {
		p.onLateResponse(answer)
	}
}

// End marks the connection as ended: no more responses will arrive. It must be called
// once.
func (p *PendingCalls[T]) End() {
	p.mu.Lock()
	for _, ch := range p.callers {
		close(ch)
	}
	p.callers = nil
	p.mu.Unlock()
	close(p.done)
}

// Done returns a channel that is closed by End.
func (p *PendingCalls[T]) Done() <-chan struct{} { return p.done }

// Ended reports whether End was called.
func (p *PendingCalls[T]) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
