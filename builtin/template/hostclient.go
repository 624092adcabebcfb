package template

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/nomad-lite/nomad-lite/sdk"
)

// hostClient is the connection of a task's templates to the host: the scope of the
// newest request. That of an agent that has gone may not be good for the next.
type hostClient struct {
	host sdk.Host

	mu       sync.Mutex
	scope    sdk.Scope
	good     bool          // the host has taken it
	replaced chan struct{} // closed when there is a newer request
}

func newHostClient(host sdk.Host, scope sdk.Scope) *hostClient {
	return &hostClient{host: host, scope: scope, replaced: make(chan struct{})}
}

// renew has the scope of a newer request. It may be the same one, which the agent
// before that of the request has denied at its end.
func (l *hostClient) renew(scope sdk.Scope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.scope, l.good = scope, false
	close(l.replaced)
	l.replaced = make(chan struct{})
}

// call asks the host for something until it is known to be done: a signal that
// comes twice does less harm than one that never comes. A scope that is denied
// waits for a new one. What is done is done, also when it is what ended ctx: a
// kill ends the request that asked for it.
func (l *hostClient) call(ctx context.Context, ask func(sdk.Scope) error) error {
	for {
		l.mu.Lock()
		scope, good, replaced := l.scope, l.good, l.replaced
		l.mu.Unlock()
		err := ask(scope)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, sdk.ErrHostGone):
		case errors.Is(err, sdk.ErrDenied) && good:
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

// variable reads one variable.
func (l *hostClient) variable(path string) fetch {
	return func(ctx context.Context, after uint64) (value any, index uint64, err error) {
		err = l.call(ctx, func(s sdk.Scope) error {
			found, at, err := l.host.Variable(ctx, s, path, after)
			if value, index = nil, at; found != nil {
				value = found
			}
			return err
		})
		return value, index, err
	}
}

// variables lists the paths below a prefix.
func (l *hostClient) variables(prefix string) fetch {
	return func(ctx context.Context, after uint64) (value any, index uint64, err error) {
		err = l.call(ctx, func(s sdk.Scope) error {
			paths, at, err := l.host.Variables(ctx, s, prefix, after)
			slices.Sort(paths)
			value, index = paths, at
			return err
		})
		return value, index, err
	}
}

// services lists the instances of a service, or of all.
func (l *hostClient) services(name string) fetch {
	return func(ctx context.Context, after uint64) (value any, index uint64, err error) {
		err = l.call(ctx, func(s sdk.Scope) error {
			value, index, err = l.host.Services(ctx, s, name, after)
			return err
		})
		return value, index, err
	}
}
