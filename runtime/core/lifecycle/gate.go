package lifecycle

import (
	"context"
	"sync"
)

// Gate blocks task runners until it opens. It can be closed and opened any number of times, also
// while runners wait. The zero value is closed.
type Gate struct {
	mu     sync.Mutex
	isOpen bool
	opened chan struct{} // created by the first waiter, closed and dropped by SetOpen when the gate opens
}

// SetOpen opens or closes the gate. It never blocks. After SetOpen(false) has returned, no
// waiter passes.
func (g *Gate) SetOpen(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOpen = open
	if open && g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// Wait blocks until the gate is open. When ctx is done it returns the cause, even if
// the gate is open: a kill or shutdown has priority over a start.
func (g *Gate) Wait(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		opened := g.openedChanOrNilIfOpen()
		if opened == nil {
			return nil
		}
		select {
		case <-opened: // the loop checks again, because the gate may be closed by now, or ctx done
		case <-ctx.Done():
		}
	}
}

// openedChanOrNilIfOpen returns nil if the gate is open, else a channel that is closed when the gate
// opens.
func (g *Gate) openedChanOrNilIfOpen() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOpen {
		return nil
	}
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
	return g.opened
}
