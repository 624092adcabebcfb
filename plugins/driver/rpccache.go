package driver

import (
	"context"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// rpcCache is what a driver says about its program, which is the same as long as its
// process lives. It is asked once, however many tasks want to know at the same time,
// and all of them keep the one answer.
type rpcCache[T any] struct {
	mu       sync.Mutex
	question *inflight[T] // the one that was answered, or may be; nil before the first
}

// inflight is asked by one, for all who come until it is over.
type inflight[T any] struct {
	over    chan struct{} // closed by who has asked, when the others are set
	answer  *T
	err     error
	givenUp bool // the end of who has asked, which is not that of the others
}

// get returns the answer, and asks if nobody has. An error is that of all who have
// waited, and who comes then asks again.
func (t *rpcCache[T]) get(ctx context.Context, conn *base.Conn, ask func() (*T, error)) (*T, error) {
	for {
		select {
		case <-conn.Done():
			return nil, ErrPluginDown
		default:
		}
		q, leader := t.next()
		if leader {
			q.answer, q.err = ask()
			t.end(q, ctx.Err() != nil)
			return q.answer, q.err
		}
		select {
		case <-q.over:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if q.err == nil || !q.givenUp {
			return q.answer, q.err
		}
	}
}

// next returns the question to wait for, or one that the caller has to ask.
func (t *rpcCache[T]) next() (q *inflight[T], leader bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.question == nil {
		t.question, leader = &inflight[T]{over: make(chan struct{})}, true
	}
	return t.question, leader
}

func (t *rpcCache[T]) end(q *inflight[T], givenUp bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.err != nil {
		q.givenUp, t.question = givenUp, nil
	}
	close(q.over)
}
