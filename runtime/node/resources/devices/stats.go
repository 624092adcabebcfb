package devices

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/device"
)

const (
	// streamIdleTimeout is how long sampling continues after the last call of Stats.
	streamIdleTimeout = 10 * time.Second
	// firstSampleTimeout is how long Stats waits for the first sample of a plugin.
	firstSampleTimeout = 2 * time.Second

	// The minimum and maximum pause after an error of a stream.
	minStatsRetryDelay = 5 * time.Second
	maxStatsRetryDelay = 30 * time.Minute
)

// sampler collects the statistics of device plugins on demand: the first request opens a stream
// of each plugin, which stays open until ten seconds have passed without a request.
type sampler struct {
	plugins  plugins
	interval time.Duration
	logger   hclog.Logger
	ctx      context.Context // ended by stop
	stop     context.CancelFunc
	wg       sync.WaitGroup

	mu      sync.Mutex
	streams map[string]*statsStream // by name of the plugin
}

// statsStream is the state of the statistics of one plugin. Its fields are guarded by sampler.mu.
type statsStream struct {
	cancel           context.CancelFunc // cancel: ends the stream; nil if there is none
	idleTimer        *time.Timer        // idleTimer: calls cancel
	firstAttemptDone chan struct{}      // firstAttemptDone: closed after the first sample or error of the latest stream, or after firstSampleTimeout
	latest           []device.GroupStats
	failures         int       // number of consecutive errors
	retryAt          time.Time // retryAt: no stream is opened earlier
}

func newSampler(p plugins, interval time.Duration, logger hclog.Logger) sampler {
	ctx, stop := context.WithCancel(context.Background())
	return sampler{plugins: p, interval: interval, logger: logger, ctx: ctx, stop: stop, streams: map[string]*statsStream{}}
}

func (s *sampler) close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.wg.Wait()
}

// Stats returns the latest statistics of all devices, in the order of their names. Only the
// first call in a while blocks, for two seconds at most, until each plugin has sent its
// statistics. The result must not be changed.
func (m *Manager) Stats(ctx context.Context) []*api.DeviceGroupStats {
	names := make(map[string]bool)
	for _, g := range m.plugins.DeviceGroups() {
		names[g.Plugin] = true
	}
	return m.sampler.collect(ctx, slices.Sorted(maps.Keys(names)))
}

func (s *sampler) collect(ctx context.Context, names []string) []*api.DeviceGroupStats {
	var firstAttempts []<-chan struct{}
	for _, name := range names {
		firstAttempts = append(firstAttempts, s.request(name))
	}
	for _, done := range firstAttempts {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []*api.DeviceGroupStats{}
	for _, name := range names {
		for _, g := range s.streams[name].latest {
			all = append(all, groupStats(g))
		}
	}
	slices.SortStableFunc(all, func(a, b *api.DeviceGroupStats) int {
		return strings.Compare(a.Vendor+"/"+a.Type+"/"+a.Name, b.Vendor+"/"+b.Type+"/"+b.Name)
	})
	return all
}

// request opens the stream of a plugin, or prevents its end for a while. The channel is closed
// when the plugin has sent its statistics or an error, and after firstSampleTimeout.
func (s *sampler) request(name string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream := s.streams[name]
	if stream == nil {
		stream = &statsStream{firstAttemptDone: make(chan struct{})}
		close(stream.firstAttemptDone)
		s.streams[name] = stream
	}
	switch {
	case stream.cancel != nil:
		stream.idleTimer.Reset(streamIdleTimeout)
	case time.Now().Before(stream.retryAt), s.ctx.Err() != nil:
	default:
		ctx, cancel := context.WithCancel(s.ctx)
		done := make(chan struct{})
		stream.cancel, stream.idleTimer, stream.firstAttemptDone = cancel, time.AfterFunc(streamIdleTimeout, cancel), done
		s.wg.Go(func() { s.read(ctx, name, stream, sync.OnceFunc(func() { close(done) })) })
	}
	return stream.firstAttemptDone
}

// read reads the stream of a plugin until it ends or ctx ends. It calls answered after the first
// sample and at the end.
func (s *sampler) read(ctx context.Context, name string, stream *statsStream, answered func()) {
	timeout := time.AfterFunc(firstSampleTimeout, answered)
	defer timeout.Stop()
	err := s.readSamples(ctx, name, func(groups []device.GroupStats) {
		s.mu.Lock()
		stream.latest, stream.failures = groups, 0
		s.mu.Unlock()
		answered()
	})
	cancelled := ctx.Err() != nil
	s.mu.Lock()
	defer s.mu.Unlock()
	stream.idleTimer.Stop()
	stream.cancel()
	stream.cancel, stream.latest = nil, nil
	switch {
	case cancelled:
	case err != nil:
		delay := min(minStatsRetryDelay<<min(stream.failures, 16), maxStatsRetryDelay)
		stream.failures++
		stream.retryAt = time.Now().Add(delay)
		s.logger.Debug("no statistics of devices", "plugin", name, "error", err, "delay", delay)
	default:
		stream.retryAt = time.Now().Add(maxStatsRetryDelay) // the plugin has no further statistics
	}
	answered()
}

func (s *sampler) readSamples(ctx context.Context, name string, onSample func([]device.GroupStats)) error {
	plugin, err := s.plugins.Device(ctx, name, time.Time{})
	if err != nil {
		return err
	}
	samples, err := plugin.Stats(ctx, s.interval)
	if err != nil {
		return err
	}
	for sample := range samples {
		if sample.Err != nil {
			return sample.Err
		}
		onSample(sample.Groups)
	}
	return nil
}

// StatsOf returns the statistics of allocated devices.
func StatsOf(all []*api.DeviceGroupStats, allocated []*api.AllocatedDeviceResource) []*api.DeviceGroupStats {
	own := []*api.DeviceGroupStats{}
	for _, d := range allocated {
		for _, g := range all {
			if g.Vendor != d.Vendor || g.Type != d.Type || g.Name != d.Name {
				continue
			}
			part := &api.DeviceGroupStats{Vendor: g.Vendor, Type: g.Type, Name: g.Name, InstanceStats: make(map[string]*api.DeviceStats)}
			for _, id := range d.DeviceIDs {
				if stats := g.InstanceStats[id]; stats != nil {
					part.InstanceStats[id] = stats
				}
			}
			own = append(own, part)
		}
	}
	return own
}

func groupStats(g device.GroupStats) *api.DeviceGroupStats {
	out := &api.DeviceGroupStats{Vendor: g.ID.Vendor, Type: g.ID.Type, Name: g.ID.Name, InstanceStats: make(map[string]*api.DeviceStats, len(g.Instances))}
	for id, d := range g.Instances {
		out.InstanceStats[id] = &api.DeviceStats{Summary: statValue(d.Summary), Stats: statObject(d.Stats), Timestamp: d.Timestamp}
	}
	return out
}

func statObject(o device.StatObject) *api.StatObject {
	out := &api.StatObject{}
	for name, nested := range o.Nested {
		if out.Nested == nil {
			out.Nested = make(map[string]*api.StatObject, len(o.Nested))
		}
		out.Nested[name] = statObject(nested)
	}
	for name, v := range o.Attributes {
		if out.Attributes == nil {
			out.Attributes = make(map[string]*api.StatValue, len(o.Attributes))
		}
		out.Attributes[name] = statValue(v)
	}
	return out
}

func statValue(v device.StatValue) *api.StatValue {
	out := &api.StatValue{Unit: v.Unit, Desc: v.Description}
	switch value := v.Value.(type) {
	case int64:
		out.IntNumeratorVal = &value
	case float64:
		out.FloatNumeratorVal = &value
	case string:
		out.StringVal = &value
	case bool:
		out.BoolVal = &value
	}
	switch limit := v.Max.(type) {
	case int64:
		out.IntDenominatorVal = &limit
	case float64:
		out.FloatDenominatorVal = &limit
	}
	return out
}
