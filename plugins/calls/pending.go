package calls

import (
	"context"
	"errors"
	"sync"
)

// PendingCalls are the requests of one connection that wait for their answers. Its
// methods may be called concurrently.
type PendingCalls[T any] struct {
	down error
	drop func(T)
	done chan struct{} // closed by End

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan T // nil once the connection is down
}

// New returns the requests of a new connection. down is the error of those whose
// connection has ended; drop, which may be nil, gets the answers that nobody waits
// for any more.
func New[T any](down error, drop func(T)) *PendingCalls[T] {
	if drop == nil {
		drop = func(T) {}
	}
	return &PendingCalls[T]{down: down, drop: drop, done: make(chan struct{}), waiting: make(map[uint64]chan T)}
}

// Call has a request sent under a number of its own, and waits for the answer that
// has the same number. The error is that of send, the cause of the end of ctx, or
// down, also if that is what send says: no answer will come any more then.
func (p *PendingCalls[T]) Call(ctx context.Context, send func(id uint64) error) (answer T, err error) {
	id, ch, ok := p.begin()
	if !ok {
		return answer, p.isDown()
	}
	if err := send(id); err != nil {
		p.forget(id, ch)
		if errors.Is(err, p.down) {
			return answer, p.isDown()
		}
		return answer, err
	}
	select {
	case answer, ok = <-ch:
		if !ok {
			return answer, p.isDown()
		}
		return answer, nil
	case <-ctx.Done():
		p.forget(id, ch)
		return answer, context.Cause(ctx)
	}
}

// isDown waits until Ended says so, too.
func (p *PendingCalls[T]) isDown() error {
	<-p.done
	return p.down
}

func (p *PendingCalls[T]) begin() (id uint64, ch chan T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		return 0, nil, false
	}
	ch = make(chan T, 1)
	p.last++
	p.waiting[p.last] = ch
	return p.last, ch, true
}

// forget gives up a request, whose answer may have come already.
func (p *PendingCalls[T]) forget(id uint64, ch chan T) {
	p.mu.Lock()
	delete(p.waiting, id)
	p.mu.Unlock()
	select {
	case answer, ok := <-ch:
		if ok {
			p.drop(answer)
		}
	default:
	}
}

// Answer hands out what has been received.
func (p *PendingCalls[T]) Answer(id uint64, answer T) {
	p.mu.Lock()
	ch := p.waiting[id]
	delete(p.waiting, id)
	if ch != nil {
		ch <- answer // has room for one, and gets one
	}
	p.mu.Unlock()
	if ch == nil {
		p.drop(answer)
	}
}

// End says that no answer will come any more. It is called once.
func (p *PendingCalls[T]) End() {
	p.mu.Lock()
	for _, ch := range p.waiting {
		close(ch)
	}
	p.waiting = nil
	p.mu.Unlock()
	close(p.done)
}

// Done is closed by End.
func (p *PendingCalls[T]) Done() <-chan struct{} { return p.done }

// Ended reports whether no answer will come any more.
func (p *PendingCalls[T]) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
