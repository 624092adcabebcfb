package template

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// hostClient connects a task's templates with the host. It uses the scope of the
// newest request: the scope of an agent that has shut down may not be valid for
// the next agent.
type hostClient struct {
	host hook.Host

	mu       sync.Mutex
	scope    hook.Scope
	good     bool          // the host has accepted the scope
	replaced chan struct{} // closed when a newer request arrives
}

func newHostClient(host hook.Host, scope hook.Scope) *hostClient {
	return &hostClient{host: host, scope: scope, replaced: make(chan struct{})}
}

// renew stores the scope of a newer request. It may be equal to the old scope,
// which the previous agent has denied while it shut down.
func (l *hostClient) renew(scope hook.Scope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scope, l.good = scope, false
	close(l.replaced)
	l.replaced = make(chan struct{})
}

// call calls the host until the result is known: a signal that arrives twice
// does less harm than a signal that never arrives. After ErrDenied for a scope
// that was accepted before, it blocks until there is a new scope. A success
// counts even if ctx has ended: a kill ends the request that has caused it.
func (l *hostClient) call(ctx context.Context, ask func(hook.Scope) error) error {
	for {
		l.mu.Lock()
		scope, good, replaced := l.scope, l.good, l.replaced
		l.mu.Unlock()
		err := ask(scope)
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
			l.good = l.good || l.scope == scope && err == nil
			l.mu.Unlock()
			return err
		}
	}
}

// variable returns the fetch of one variable.
func (l *hostClient) variable(path string) fetch {
	return func(ctx context.Context, after uint64) (value any, index uint64, err error) {
		err = l.call(ctx, func(s hook.Scope) error {
			found, at, err := l.host.Variable(ctx, s, path, after)
			if value, index = nil, at; found != nil {
				value = found
			}
			return err
		})
		return value, index, err
	}
}

// variables returns the fetch of the list of paths below a prefix.
func (l *hostClient) variables(prefix string) fetch {
	return func(ctx context.Context, after uint64) (value any, index uint64, err error) {
		err = l.call(ctx, func(s hook.Scope) error {
			paths, at, err := l.host.Variables(ctx, s, prefix, after)
			slices.Sort(paths)
			value, index = paths, at
			return err
		})
		return value, index, err
	}
}

// services returns the fetch of the instances of a service, or of all services.
func (l *hostClient) services(name string) fetch {
	return func(ctx context.Context, after uint64) (value any, index uint64, err error) {
		err = l.call(ctx, func(s hook.Scope) error {
			value, index, err = l.host.Services(ctx, s, name, after)
			return err
		})
		return value, index, err
	}
}
