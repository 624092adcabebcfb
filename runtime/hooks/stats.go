package hooks

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

var (
	_ hook.Hook          = (*Stats)(nil)
	_ hook.TaskPoststart = (*Stats)(nil)
	_ hook.TaskExited    = (*Stats)(nil)
	_ hook.TaskStop      = (*Stats)(nil)
	_ hook.TaskShutdown  = (*Stats)(nil)
)

// The pauses between attempts to sample grow from one to the other.
const (
	minStatsPause = time.Second
	maxStatsPause = 5 * time.Second
)

const (
	// statsLinger is how long sampling goes on when nobody asks any more.
	statsLinger = 10 * time.Second
	// statsPatience is how long a question waits for a driver that says nothing.
	statsPatience = 2 * time.Second
)

// StatsSource asks the driver for samples of what the running task uses. The
// channel may close at any time; then the hook asks again.
type StatsSource func(ctx context.Context, interval time.Duration) (<-chan *driver.TaskStats, error)

// Stats samples what the task uses as long as somebody asks for it.
type Stats struct {
	source   StatsSource
	interval time.Duration
	logger   hclog.Logger

	mu       sync.Mutex
	latest   *driver.TaskStats // nil before the first sample
	running  bool              // from Poststart until the process ends or is left
	sampling *sampling         // nil before anybody has asked about this process
	wg       sync.WaitGroup    // all samplings; grows only while running
}

// sampling is one stream of samples, renewed when it breaks.
type sampling struct {
	cancel context.CancelFunc
	idle   *time.Timer   // cancels it when nobody asks any more
	first  chan struct{} // closed by sample when there is an answer, be it none
	final  bool          // the driver has no samples of this process; guarded by Stats.mu
}

// NewStats returns the hook for one task.
func NewStats(source StatsSource, interval time.Duration, logger hclog.Logger) *Stats {
	return &Stats{source: source, interval: interval, logger: logger}
}

// Name implements hook.Hook.
func (*Stats) Name() string { return "stats_hook" }

// Latest returns the newest sample, or nil if there never was one. It may be
// called at any time. Only the first question in a while has to wait: for the
// driver to take a sample, not for an interval. Then samples are taken in
// intervals, until nobody has asked for ten seconds.
func (h *Stats) Latest(ctx context.Context) *driver.TaskStats {
	if first := h.ask(ctx); first != nil {
		patience := time.NewTimer(statsPatience)
		defer patience.Stop()
		select {
		case <-first:
		case <-patience.C:
		case <-ctx.Done():
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.latest
}

// ask lets samples be taken from now on and for some time. The channel closes
// when the first is there; it is nil when there is nothing to wait for.
func (h *Stats) ask(ctx context.Context) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.running || h.sampling != nil && h.sampling.final {
		return nil
	}
	if h.sampling == nil || !h.sampling.idle.Stop() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		s := &sampling{cancel: cancel, idle: time.AfterFunc(statsLinger, cancel), first: make(chan struct{})}
		h.sampling = s
		h.wg.Go(func() { h.sample(ctx, s) })
	}
	h.sampling.idle.Reset(statsLinger)
	return h.sampling.first
}

// Poststart implements hook.TaskPoststart.
func (h *Stats) Poststart(context.Context, hook.TaskPoststartRequest) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = true
	return nil
}

// Exited implements hook.TaskExited.
func (h *Stats) Exited(context.Context, hook.TaskExitedRequest) error {
	h.end()
	return nil
}

// Stop implements hook.TaskStop.
func (h *Stats) Stop(context.Context, hook.TaskStopRequest) error {
	h.end()
	return nil
}

// Shutdown implements hook.TaskShutdown.
func (h *Stats) Shutdown(context.Context, hook.TaskShutdownRequest) error {
	h.end()
	return nil
}

func (h *Stats) end() {
	h.mu.Lock()
	if h.sampling != nil {
		h.sampling.idle.Stop()
		h.sampling.cancel()
	}
	h.running, h.sampling = false, nil
	h.mu.Unlock()
	h.wg.Wait()
}

// sample takes samples until ctx ends or the driver says that it has none.
func (h *Stats) sample(ctx context.Context, s *sampling) {
	answered := sync.OnceFunc(func() { close(s.first) })
	defer answered()
	pause := minStatsPause
	for {
		samples, err := h.source(ctx, h.interval)
		if isFinal(err) {
			h.logger.Debug("driver has no stats", "error", err)
			h.mu.Lock()
			s.final = true
			h.mu.Unlock()
			return
		}
		wait := h.interval
		if err != nil {
			h.logger.Debug("no stats", "error", err, "delay", pause)
			wait, pause = pause, min(2*pause, maxStatsPause)
		} else {
			pause = minStatsPause
			for sample := range samples {
				h.mu.Lock()
				h.latest = sample
				h.mu.Unlock()
				answered()
			}
		}
		answered()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// isFinal reports whether the driver says that asking again is of no use.
func isFinal(err error) bool {
	var e *driver.Error
	return errors.As(err, &e) && !e.Recoverable
}
