package template

import (
	"context"
	"errors"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// hostClient calls the host for the templates of a task. It uses the scope of
// the newest request, because the next agent may not accept the scope of an
// agent that has shut down.
type hostClient struct {
	host hook.Host

	mu              sync.Mutex
	scope           hook.Scope
	isScopeAccepted bool          // true if the host has accepted a call with this scope
	scopeReplaced   chan struct{} // closed when a newer request replaces the scope
}

func newHostClient(host hook.Host, scope hook.Scope) *hostClient {
	return &hostClient{host: host, scope: scope, scopeReplaced: make(chan struct{})}
}

// replaceScopeAndRetryCalls stores the scope that later calls of the host use. It also makes the host client repeat the
// calls that an agent rejected during its shutdown; for that reason it is called by the next agent's
// request, even if the scope is the same.
func (h *hostClient) replaceScopeAndRetryCalls(scope hook.Scope) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scope, h.isScopeAccepted = scope, false
	close(h.scopeReplaced)
	h.scopeReplaced = make(chan struct{})
}

// callUntilAnswered calls the host, and repeats the call if the host becomes unavailable: a signal
// that is sent twice does less harm than a lost signal. If the host denies permission for a scope
// that it has accepted before, callUntilAnswered blocks until there is a new scope. A success is
// returned even if ctx has ended, because a successful call that kills the task also cancels ctx.
func (h *hostClient) callUntilAnswered(ctx context.Context, request func(hook.Scope) error) error {
	for {
		h.mu.Lock()
		scope, accepted, replaced := h.scope, h.isScopeAccepted, h.scopeReplaced
		h.mu.Unlock()
		err := request(scope)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, hook.ErrHostUnavailable):
		case errors.Is(err, hook.ErrPermissionDenied) && accepted:
			select {
			case <-replaced:
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			h.mu.Lock()
			h.isScopeAccepted = h.isScopeAccepted || h.scope == scope && err == nil
			h.mu.Unlock()
			return err
		}
	}
}
