package lifecycle

import (
	"context"
	"sync"
)

// Gate holds task runners back until it opens. It can be closed and opened
// again any number of times, also while others wait. The zero value is closed.
type Gate struct {
	mu     sync.Mutex
	open   bool
	opened chan struct{} // made by the first waiter, closed and dropped by Set when the gate opens
}

// Set opens or closes the gate, and never blocks. Once Set(false) has
// returned, no waiter passes.
func (g *Gate) Set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	if open && g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// Wait blocks until the gate is open. When ctx ends it returns the cause, even
// if the gate is open: what ends a task is stronger than what lets it start.
func (g *Gate) Wait(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		opened := g.wait()
		if opened == nil {
			return nil
		}
		select {
		case <-opened: // look again: the gate may be closed by now, or ctx over
		case <-ctx.Done():
		}
	}
}

// wait returns nil if the gate is open, else a channel that closes when it opens.
func (g *Gate) wait() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		return nil
	}
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
	return g.opened
}
