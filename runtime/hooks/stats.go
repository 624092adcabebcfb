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

// StatsSource asks the driver for samples of what the running task uses. The
// channel may close at any time; then the hook asks again.
type StatsSource func(ctx context.Context, interval time.Duration) (<-chan *driver.TaskStats, error)

// Stats samples what the task uses as long as it runs.
type Stats struct {
	source   StatsSource
	record   func(*driver.TaskStats)
	interval time.Duration
	logger   hclog.Logger

	// One moment of a hook follows the other, so nobody else uses these.
	cancel   context.CancelFunc // nil unless sampling
	sampling sync.WaitGroup
}

// NewStats returns the hook for one task. record gets each sample.
func NewStats(source StatsSource, record func(*driver.TaskStats), interval time.Duration, logger hclog.Logger) *Stats {
	return &Stats{source: source, record: record, interval: interval, logger: logger}
}

// Name implements hook.Hook.
func (*Stats) Name() string { return "stats_hook" }

// Poststart implements hook.TaskPoststart.
func (h *Stats) Poststart(ctx context.Context, _ hook.TaskPoststartRequest) error {
	h.end()
	ctx, h.cancel = context.WithCancel(context.WithoutCancel(ctx))
	h.sampling.Go(func() { h.sample(ctx) })
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
	if h.cancel != nil {
		h.cancel()
		h.cancel = nil
	}
	h.sampling.Wait()
}

func (h *Stats) sample(ctx context.Context) {
	pause := minStatsPause
	for {
		samples, err := h.source(ctx, h.interval)
		if isFinal(err) {
			h.logger.Debug("driver has no stats", "error", err)
			return
		}
		wait := h.interval
		if err != nil {
			h.logger.Debug("no stats", "error", err, "delay", pause)
			wait, pause = pause, min(2*pause, maxStatsPause)
		} else {
			pause = minStatsPause
			for s := range samples {
				h.record(s)
			}
		}
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
