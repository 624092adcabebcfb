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
	_ Hook               = (*StatsHook)(nil)
	_ hook.TaskPoststart = (*StatsHook)(nil)
	_ hook.TaskExited    = (*StatsHook)(nil)
	_ hook.TaskStop      = (*StatsHook)(nil)
	_ hook.TaskShutdown  = (*StatsHook)(nil)
)

// The minimum and maximum pause between attempts to open a stream.
const (
	minStatsRetryDelay = time.Second
	maxStatsRetryDelay = 5 * time.Second
)

const (
	// streamIdleTimeout is how long sampling continues after the last StartSamplingAndGetLatest call.
	streamIdleTimeout = 10 * time.Second
	// firstSampleTimeout is how long StartSamplingAndGetLatest waits for a driver's first sample.
	firstSampleTimeout = 2 * time.Second
)

// OpenStatsFunc opens a stream of resource samples for the running task. The channel may be closed
// at any time; then the hook opens a new stream.
type OpenStatsFunc func(ctx context.Context, interval time.Duration) (<-chan *driver.TaskStats, error)

// StatsHook samples the task's resource usage on demand.
type StatsHook struct {
	BuiltinHookDefaults
	openStream OpenStatsFunc
	interval   time.Duration
	logger     hclog.Logger

	mu           sync.Mutex
	latestSample *driver.TaskStats // nil before the first sample
	taskRunning  bool              // true from Poststart until Exited, Stop or Shutdown
	stream       *sampleStream     // nil before the first StartSamplingAndGetLatest for this process
	streamsWG    sync.WaitGroup    // all stream goroutines; a goroutine is added only while taskRunning is set
}

// sampleStream is one sample stream, reopened when it breaks.
type sampleStream struct {
	cancel           context.CancelFunc
	idleTimer        *time.Timer   // cancels the stream streamIdleTimeout after the last StartSamplingAndGetLatest
	firstAttemptDone chan struct{} // closed by sampleUntilDoneOrUnsupported after the first attempt, with or without a sample
	statsUnsupported bool          // the driver has no samples for this process; guarded by StatsHook.mu
}

// NewStatsHook returns the hook for one task.
func NewStatsHook(openStream OpenStatsFunc, interval time.Duration, logger hclog.Logger) *StatsHook {
	return &StatsHook{openStream: openStream, interval: interval, logger: logger}
}

// Name implements Hook.
func (*StatsHook) Name() string { return "stats_hook" }

// StartSamplingAndGetLatest returns the newest sample, or nil if there never was one. It may be called at
// any time. Only the first call in a while blocks, for two seconds at most, until the driver has sent a
// sample. Sampling then continues at the interval, until ten seconds have passed without a call.
func (st *StatsHook) StartSamplingAndGetLatest(ctx context.Context) *driver.TaskStats {
	if first := st.startOrExtendSampling(ctx); first != nil {
		timeout := time.NewTimer(firstSampleTimeout)
		defer timeout.Stop()
		select {
		case <-first:
		case <-timeout.C:
		case <-ctx.Done():
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.latestSample
}

// RecentSample returns the newest sample, or nil if it is older than maxAge. It does not start or extend sampling.
func (st *StatsHook) RecentSample(maxAge time.Duration) *driver.TaskStats {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.latestSample == nil || time.Since(st.latestSample.Timestamp) > maxAge {
		return nil
	}
	return st.latestSample
}

// startOrExtendSampling starts sampling, or extends it by streamIdleTimeout. The channel is closed when the
// first sample has arrived or the first attempt has failed; it is nil if no sample can arrive.
func (st *StatsHook) startOrExtendSampling(ctx context.Context) <-chan struct{} {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.taskRunning || st.stream != nil && st.stream.statsUnsupported {
		return nil
	}
	if st.stream == nil || !st.stream.idleTimer.Stop() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		s := &sampleStream{cancel: cancel, idleTimer: time.AfterFunc(streamIdleTimeout, cancel), firstAttemptDone: make(chan struct{})}
		st.stream = s
		st.streamsWG.Go(func() { st.sampleUntilDoneOrUnsupported(ctx, s) })
	}
	st.stream.idleTimer.Reset(streamIdleTimeout)
	return st.stream.firstAttemptDone
}

// Poststart implements hook.TaskPoststart.
func (st *StatsHook) Poststart(context.Context, hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.taskRunning = true
	return hook.TaskPoststartResponse{}, nil
}

// Exited implements hook.TaskExited.
func (st *StatsHook) Exited(context.Context, hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	st.endSamplingAndWait()
	return hook.TaskExitedResponse{}, nil
}

// Stop implements hook.TaskStop.
func (st *StatsHook) Stop(context.Context, hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	st.endSamplingAndWait()
	return hook.TaskStopResponse{}, nil
}

// Shutdown implements hook.TaskShutdown.
func (st *StatsHook) Shutdown(context.Context, hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	st.endSamplingAndWait()
	return hook.TaskShutdownResponse{}, nil
}

func (st *StatsHook) endSamplingAndWait() {
	st.mu.Lock()
	if st.stream != nil {
		st.stream.idleTimer.Stop()
		st.stream.cancel()
	}
	st.taskRunning, st.stream = false, nil
	st.mu.Unlock()
	st.streamsWG.Wait()
}

// sampleUntilDoneOrUnsupported takes samples until ctx ends or the driver reports that it has none.
func (st *StatsHook) sampleUntilDoneOrUnsupported(ctx context.Context, s *sampleStream) {
	answered := sync.OnceFunc(func() { close(s.firstAttemptDone) })
	defer answered()
	pause := minStatsRetryDelay
	for {
		samples, err := st.openStream(ctx, st.interval)
		if isPermanentDriverError(err) {
			st.logger.Debug("driver has no stats", "error", err)
			st.mu.Lock()
			s.statsUnsupported = true
			st.mu.Unlock()
			return
		}
		wait := st.interval
		if err != nil {
			st.logger.Debug("no stats", "error", err, "delay", pause)
			wait, pause = pause, min(2*pause, maxStatsRetryDelay)
		} else {
			pause = minStatsRetryDelay
			for sample := range samples {
				st.mu.Lock()
				st.latestSample = sample
				st.mu.Unlock()
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

// isPermanentDriverError reports whether err means a retry cannot succeed.
func isPermanentDriverError(err error) bool {
	var e *driver.Error
	return errors.As(err, &e) && !e.Recoverable
}
