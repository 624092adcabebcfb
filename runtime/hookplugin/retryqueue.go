package hookplugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
)

// How long a repeated call excludes other repeated calls of its plugin: the first time,
// and when it is repeated once more because other calls were running when the plugin died.
const (
	retryWindow   = 5 * time.Second
	lastProbation = time.Minute
)

// retryQueue serializes the repeated calls of one plugin.
type retryQueue struct {
	turn chan struct{} // turn holds a tick while one repeated call excludes the others

	mu      sync.Mutex
	running map[*repeated]bool
}

// repeated is a running call of a retryQueue.
type repeated struct {
	concurrent bool // concurrent is set if other repeated calls ran at the same time
}

func newRetryQueue() *retryQueue {
	return &retryQueue{turn: make(chan struct{}, 1), running: make(map[*repeated]bool)}
}

func (r *retryQueue) begin() *repeated {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &repeated{concurrent: len(r.running) > 0}
	for other := range r.running {
		other.concurrent = true
	}
	r.running[c] = true
	return c
}

// end removes the call, and reports whether no other repeated call ran meanwhile.
func (r *retryQueue) end(c *repeated) (alone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, c)
	return !c.concurrent
}

// repeat makes a call again. When a plugin dies, many calls may be running, and one of
// them may have killed it. The calls are repeated one after the other, so that this call
// does not fail the others a second time. A call that kills the plugin only after
// retryWindow leaves the cause unknown again, and each call is made a last time.
func (h *Hook) repeat(ctx context.Context, point hook.Point, f call) error {
	died := "twice"
	alone, err := h.serialized(ctx, point, retryWindow, f)
	if errors.Is(err, hook.ErrPluginDown) && !alone && ctx.Err() == nil {
		died = "three times"
		_, err = h.serialized(ctx, point, lastProbation, f)
	}
	if errors.Is(err, hook.ErrPluginDown) {
		return &hooks.UnavailableError{Err: fmt.Errorf("%w: it died at this call, %s; the agent's log has its last words", hook.ErrPluginDown, died)}
	}
	return err
}

// serialized waits for the call's turn and makes the call. The turn ends with the call,
// or after retryWindow. alone reports whether no other repeated call ran meanwhile.
func (h *Hook) serialized(ctx context.Context, point hook.Point, retryWindow time.Duration, f call) (alone bool, err error) {
	r := h.set.repeatsOf(h.name)
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return true, ctx.Err()
	}
	endTurn := sync.OnceFunc(func() { <-r.turn })
	defer endTurn()
	c := r.begin()
	err = h.once(ctx, point, func(ctx context.Context, remote Remote, a asked) error {
		defer time.AfterFunc(retryWindow, endTurn).Stop()
		return f(ctx, remote, a)
	})
	return r.end(c), err
}
