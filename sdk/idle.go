package sdk

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/stats"

	"github.com/nomad-lite/nomad-lite/internal/memtrim"
)

// idleTimer stops a plugin after idleTimeout without a connection and without a task.
type idleTimer struct {
	isNeededWithoutHost func() bool

	mu         sync.Mutex
	openConns  int
	timer      *time.Timer
	stopServer func()
}

// start starts the timer. When the timer expires, stop is called in a goroutine of its own.
func (i *idleTimer) start(stop func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stopServer = stop
	i.timer = time.AfterFunc(idleTimeout, i.exitIfStillIdle)
}

func (i *idleTimer) exitIfStillIdle() {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.openConns > 0:
	case i.isNeededWithoutHost():
		i.timer.Reset(idleTimeout)
	default:
		go i.stopServer() // in a goroutine, because stopServer waits until connections are closed, and connClosed locks mu
	}
}

func (i *idleTimer) connOpened() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.openConns++
	i.timer.Stop()
}

func (i *idleTimer) connClosed() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.openConns--
	if i.openConns == 0 {
		i.timer.Reset(idleTimeout)
	}
}

// grpcStatsHandler reports connections to idleTimer, and calls to trimmer. It calls onConnOpened at each new
// connection; the function itself has an effect only once.
type grpcStatsHandler struct {
	idleTimer    *idleTimer
	trimmer      *memtrim.Trimmer
	onConnOpened func()
}

var _ stats.Handler = (*grpcStatsHandler)(nil)

func (g *grpcStatsHandler) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		g.idleTimer.connOpened()
		g.onConnOpened()
	case *stats.ConnEnd:
		g.idleTimer.connClosed()
	}
}

func (g *grpcStatsHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

// TagRPC implements stats.Handler. It reports a DestroyTask call to trimmer as busy: the garbage
// collector then runs less often while tasks stop or restart. A StartTask call is not
// reported, because the objects that it allocates stay in use.
func (g *grpcStatsHandler) TagRPC(ctx context.Context, call *stats.RPCTagInfo) context.Context {
	if strings.HasSuffix(call.FullMethodName, "/DestroyTask") {
		g.trimmer.NotifyBusy()
	}
	if strings.HasSuffix(call.FullMethodName, "/SampleTasks") {
		return context.WithValue(ctx, regularCallKey{}, true)
	}
	return ctx
}

// regularCallKey marks the context of a call that a host makes regularly while nothing happens. A release of memory after
// each of these calls would cost more than the calls.
type regularCallKey struct{}

// HandleRPC implements stats.Handler.
func (g *grpcStatsHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ended := s.(*stats.End); ended && ctx.Value(regularCallKey{}) == nil {
		g.trimmer.PostponeTrim()
	}
}
