package driver

import (
	"context"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// told is what a driver says about its program, which is the same as long as its
// process lives. It is asked once, however many tasks want to know at the same time,
// and all of them keep the one answer.
type told[T any] struct {
	mu       sync.Mutex
	question *question[T] // the one that was answered, or may be; nil before the first
}

// question is asked by one, for all who come until it is over.
type question[T any] struct {
	over    chan struct{} // closed by who has asked, when the others are set
	answer  *T
	err     error
	givenUp bool // the end of who has asked, which is not that of the others
}

// get returns the answer, and asks if nobody has. An error is that of all who have
// waited, and who comes then asks again.
func (t *told[T]) get(ctx context.Context, conn *base.Conn, ask func() (*T, error)) (*T, error) {
	for {
		select {
		case <-conn.Done():
			return nil, ErrPluginDown
		default:
		}
		q, mine := t.next()
		if mine {
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
func (t *told[T]) next() (q *question[T], mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.question == nil {
		t.question, mine = &question[T]{over: make(chan struct{})}, true
	}
	return t.question, mine
}

func (t *told[T]) end(q *question[T], givenUp bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.err != nil {
		q.givenUp, t.question = givenUp, nil
	}
	close(q.over)
}
