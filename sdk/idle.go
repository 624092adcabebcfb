package sdk

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/stats"

	"github.com/nomad-lite/nomad-lite/plugins/memtrim"
)

// idleTimer ends a plugin that has had no connection and no task for the time that a host
// may need to come back.
type idleTimer struct {
	busy func() bool

	mu    sync.Mutex
	conns int
	timer *time.Timer
	stop  func()
}

// start starts the timer; stop may be called from another goroutine.
func (i *idleTimer) start(stop func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stop = stop
	i.timer = time.AfterFunc(idleTimeout, i.expired)
}

func (i *idleTimer) expired() {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.conns > 0:
	case i.busy():
		i.timer.Reset(idleTimeout)
	default:
		go i.stop() // stop waits for connections, and the end of each takes mu
	}
}

func (i *idleTimer) opened() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.conns++
	i.timer.Stop()
}

func (i *idleTimer) closed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.conns--
	if i.conns == 0 {
		i.timer.Reset(idleTimeout)
	}
}

// connections reports connections to idle, and calls to trim; first runs at the first
// connection.
type connections struct {
	idle  *idleTimer
	trim  *memtrim.Trimmer
	first func()
}

var _ stats.Handler = (*connections)(nil)

func (c *connections) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		c.idle.opened()
		c.first()
	case *stats.ConnEnd:
		c.idle.closed()
	}
}

func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler. Tasks are destroyed before they restart and when they
// stop; tasks that only start make objects that stay.
func (c *connections) TagRPC(ctx context.Context, call *stats.RPCTagInfo) context.Context {
	if strings.HasSuffix(call.FullMethodName, "/DestroyTask") {
		c.trim.Busy()
	}
	return ctx
}

// HandleRPC implements stats.Handler.
func (c *connections) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ended := s.(*stats.End); ended {
		c.trim.Postpone()
	}
}
