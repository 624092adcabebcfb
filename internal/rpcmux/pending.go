package rpcmux

import (
	"context"
	"errors"
	"sync"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// PendingCalls holds the requests of one connection that have no response yet. Its methods
// may be called concurrently.
type PendingCalls[T any] struct {
	errDown        error
	onLateResponse func(T)
	done           chan struct{} // closed by End

	mu               sync.Mutex
	lastRequestID    uint64
	responseChanByID map[uint64]chan T // keys are request numbers of pending calls; nil after the connection has ended
}

// New returns the PendingCalls of a new connection. down is the error of Call after the connection has ended.
// drop, which may be nil, is called with each response that arrives after its Call has returned.
func New[T any](down error, drop func(T)) *PendingCalls[T] {
	if drop == nil {
		drop = func(T) {}
	}
	return &PendingCalls[T]{errDown: down, onLateResponse: drop, done: make(chan struct{}), responseChanByID: make(map[uint64]chan T)}
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
	opcount.Count(opcount.Request)
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
	if p.responseChanByID == nil {
		return 0, nil, false
	}
	ch = make(chan T, 1)
	p.lastRequestID++
	p.responseChanByID[p.lastRequestID] = ch
	return p.lastRequestID, ch, true
}

// removeCaller cancels a request. A response that has already arrived is passed to onLateResponse.
func (p *PendingCalls[T]) removeCaller(id uint64, ch chan T) {
	p.mu.Lock()
	delete(p.responseChanByID, id)
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
	ch := p.responseChanByID[id]
	delete(p.responseChanByID, id)
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
	for _, ch := range p.responseChanByID {
		close(ch)
	}
	p.responseChanByID = nil
	p.mu.Unlock()
	close(p.done)
}

// Done returns a channel that is closed by End.
func (p *PendingCalls[T]) Done() <-chan struct{} { return p.done }

// Ended reports whether End was called.
func (p *PendingCalls[T]) Ended() bool {
	return wait.IsClosed(p.done)
}
