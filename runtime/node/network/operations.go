package network

import (
	"context"
	"sync"
)

// operations has the operations that change networks. At most one at a time changes an allocation's network: otherwise a repair
// could connect a namespace just disconnected by Destroy.
type operations struct {
	mu        sync.Mutex
	byAllocID map[string]*operation
}

// operation creates, repairs or destroys an allocation's network.
type operation struct {
	allocID  string
	destroys bool
	ended    chan struct{} // closed by end
}

// start starts an operation, which the caller must end. If another operation changes the network, start returns that one instead.
func (o *operations) start(allocID string, destroys bool) (started, other *operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if other := o.byAllocID[allocID]; other != nil {
		return nil, other
	}
	if o.byAllocID == nil {
		o.byAllocID = make(map[string]*operation)
	}
	started = &operation{allocID, destroys, make(chan struct{})}
	o.byAllocID[allocID] = started
	return started, nil
}

// startWhenFree starts an operation, which the caller must end. It blocks while another operation changes the network, or until ctx is
// done. The result is nil if both operations destroy the network.
func (o *operations) startWhenFree(ctx context.Context, allocID string, destroys bool) (*operation, error) {
	for {
		started, other := o.start(allocID, destroys)
		if started != nil || other.destroys && destroys {
			return started, nil
		}
		select {
		case <-other.ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (o *operations) end(started *operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byAllocID, started.allocID)
	close(started.ended)
}
