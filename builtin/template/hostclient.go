package template

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// hostClient calls the host for the templates of a task. It uses the scope of
// the newest request, because the next agent may not accept the scope of an
// agent that has shut down.
type hostClient struct {
	host hook.Host

	mu                     sync.Mutex
	scope                  hook.Scope
	callWithScopeSucceeded bool          // the host has accepted a call with this scope
	scopeReplaced          chan struct{} // closed when a newer request arrives
}

func newHostClient(host hook.Host, scope hook.Scope) *hostClient {
	return &hostClient{host: host, scope: scope, scopeReplaced: make(chan struct{})}
}

// setScope stores the scope that later calls of the host use. It also makes the host client repeat the
// calls that an agent rejected during its shutdown; for that reason it is called by the next agent's
// request, even if the scope is the same.
func (l *hostClient) setScope(scope hook.Scope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scope, l.callWithScopeSucceeded = scope, false
	close(l.scopeReplaced)
	l.scopeReplaced = make(chan struct{})
}

// callUntilAnswered calls the host, and repeats the call if the host becomes unavailable: a
// signal that is sent twice does less harm than a lost signal. If the host
// denies permission for a scope that it has accepted before, call blocks until
// there is a new scope. A success is returned even if ctx has ended, because
// killing the task cancels the request that has requested the kill.
func (l *hostClient) callUntilAnswered(ctx context.Context, request func(hook.Scope) error) error {
	for {
		l.mu.Lock()
		scope, good, replaced := l.scope, l.callWithScopeSucceeded, l.scopeReplaced
		l.mu.Unlock()
		err := request(scope)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, hook.ErrHostUnavailable):
		case errors.Is(err, hook.ErrPermissionDenied) && good:
			select {
			case <-replaced:
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			l.mu.Lock()
			l.callWithScopeSucceeded = l.callWithScopeSucceeded || l.scope == scope && err == nil
			l.mu.Unlock()
			return err
		}
	}
}

// fetchVariable returns the fetchFunc of a variable.
func (l *hostClient) fetchVariable(path string) fetchFunc {
	return func(ctx context.Context, after uint64) (value any, index uint64, err error) {
		err = l.callUntilAnswered(ctx, func(s hook.Scope) error {
			found, at, err := l.host.Variable(ctx, s, path, after)
			if value, index = nil, at; found != nil {
				value = found
			}
			return err
		})
		return value, index, err
	}
}

// fetchVariables returns the fetchFunc of the list of variable paths below a
// prefix.
func (l *hostClient) fetchVariables(prefix string) fetchFunc {
	return func(ctx context.Context, after uint64) (value any, index uint64, err error) {
		err = l.callUntilAnswered(ctx, func(s hook.Scope) error {
			paths, at, err := l.host.Variables(ctx, s, prefix, after)
			slices.Sort(paths)
			value, index = paths, at
			return err
		})
		return value, index, err
	}
}

// fetchServices returns the fetchFunc of the instances of a service, or of all services.
func (l *hostClient) fetchServices(name string) fetchFunc {
	return func(ctx context.Context, after uint64) (value any, index uint64, err error) {
		err = l.callUntilAnswered(ctx, func(s hook.Scope) error {
			value, index, err = l.host.Services(ctx, s, name, after)
			return err
		})
		return value, index, err
	}
}
