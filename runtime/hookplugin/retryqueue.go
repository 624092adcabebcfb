package hookplugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// How long a repeated call has the plugin for itself, as far as other repeated ones
// go: the first time, and when it is made once more because it has died in company.
const (
	retryWindow   = 5 * time.Second
	lastProbation = time.Minute
)

// retryQueue are the repeated calls of one plugin.
type retryQueue struct {
	turn chan struct{} // holds a tick while one of them has the plugin for itself

	mu      sync.Mutex
	running map[*repeated]bool
}

// repeated is one of them.
type repeated struct {
	concurrent bool // others were under way meanwhile
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

// end reports whether the call was the only one all the time.
func (r *retryQueue) end(c *repeated) (alone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, c)
	return !c.concurrent
}

// repeat makes a call again. Many may have been under way when the plugin died, of
// which one has killed it: they come again one after the other, that it may not
// take the others with it a second time. If it did, as it took its time, nobody knows
// again which it was, and each is made a last time.
func (h *Hook) repeat(ctx context.Context, m hook.Point, f call) error {
	died := "twice"
	alone, err := h.serialized(ctx, m, retryWindow, f)
	if errors.Is(err, hook.ErrPluginDown) && !alone && ctx.Err() == nil {
		died = "three times"
		_, err = h.serialized(ctx, m, lastProbation, f)
	}
	if errors.Is(err, hook.ErrPluginDown) {
		return &unavailableError{fmt.Errorf("%w: it died at this call, %s; the agent's log has its last words", hook.ErrPluginDown, died)}
	}
	return err
}

// serialized makes a repeated call when it is its turn, which ends with the probation at
// the latest. It reports whether no other was under way.
func (h *Hook) serialized(ctx context.Context, m hook.Point, retryWindow time.Duration, f call) (alone bool, err error) {
	r := h.set.repeatsOf(h.name)
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return true, ctx.Err()
	}
	endTurn := sync.OnceFunc(func() { <-r.turn })
	defer endTurn()
	c := r.begin()
	err = h.once(ctx, m, func(ctx context.Context, remote Remote, a asked) error {
		defer time.AfterFunc(retryWindow, endTurn).Stop()
		return f(ctx, remote, a)
	})
	return r.end(c), err
}
