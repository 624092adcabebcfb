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
	// streamIdleTimeout is how long the streams stay open after the last Stats call.
	streamIdleTimeout = 10 * time.Second
	// firstSampleTimeout is how long Stats waits for a plugin's first sample.
	firstSampleTimeout = 2 * time.Second

	// The minimum and the maximum delay until a stream is opened again after an error.
	minStatsRetryDelay = 5 * time.Second
	maxStatsRetryDelay = 30 * time.Minute
)

// statsSampler collects device plugin statistics on demand: startSamplingAndGetStats opens a stream to each plugin,
// which stays open until streamIdleTimeout has passed without another startSamplingAndGetStats call.
type statsSampler struct {
	plugins        devicePlugins
	sampleInterval time.Duration
	logger         hclog.Logger
	ctx            context.Context    // parent of all streams' contexts
	cancelStreams  context.CancelFunc // ends ctx
	streamsWG      sync.WaitGroup

	mu              sync.Mutex
	streamsByPlugin map[string]*statsStream // plugin name -> stream
}

// statsStream is one plugin's statistics stream, which may be closed. sampler.mu guards its fields.
type statsStream struct {
	cancel              context.CancelFunc  // closes the stream; nil while the stream is closed
	idleTimer           *time.Timer         // calls cancel after streamIdleTimeout
	firstAttemptDone    chan struct{}       // closed after the first sample or error since the stream was opened, or after firstSampleTimeout
	latestSample        []device.GroupStats // latest sample; nil while the stream is closed
	consecutiveFailures int                 // consecutive errors
	noReopenBefore      time.Time           // time before which the stream is not opened again
}

func newSampler(p devicePlugins, interval time.Duration, logger hclog.Logger) statsSampler {
	ctx, stop := context.WithCancel(context.Background())
	return statsSampler{plugins: p, sampleInterval: interval, logger: logger, ctx: ctx, cancelStreams: stop, streamsByPlugin: map[string]*statsStream{}}
}

func (s *statsSampler) close() {
	s.mu.Lock()
	s.cancelStreams()
	s.mu.Unlock()
	s.streamsWG.Wait()
}

// StartSamplingAndGetStats returns the latest statistics for all devices, sorted by vendor, type and name. A call that
// opens a stream blocks until the plugin has sent its statistics, for two seconds at most. The caller must not change
// the result.
func (m *Manager) StartSamplingAndGetStats(ctx context.Context) []*api.DeviceGroupStats {
	names := make(map[string]bool)
	for _, g := range m.plugins.DeviceGroups() {
		names[g.PluginName] = true
	}
	return m.sampler.startSamplingAndGetStats(ctx, slices.Sorted(maps.Keys(names)))
}

// startSamplingAndGetStats returns the named plugins' latest statistics.
func (s *statsSampler) startSamplingAndGetStats(ctx context.Context, pluginNames []string) []*api.DeviceGroupStats {
	var firstAttempts []<-chan struct{}
	for _, name := range pluginNames {
		firstAttempts = append(firstAttempts, s.openOrKeepStream(name))
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
	for _, name := range pluginNames {
		for _, g := range s.streamsByPlugin[name].latestSample {
			all = append(all, toAPIGroupStats(g))
		}
	}
	slices.SortStableFunc(all, func(a, b *api.DeviceGroupStats) int {
		return strings.Compare(a.Vendor+"/"+a.Type+"/"+a.Name, b.Vendor+"/"+b.Type+"/"+b.Name)
	})
	return all
}

// openOrKeepStream opens a plugin's stream, or restarts an open stream's idle timer. It returns
// statsStream.firstAttemptDone.
func (s *statsSampler) openOrKeepStream(pluginName string) (firstAttemptDone <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream := s.streamsByPlugin[pluginName]
	if stream == nil {
		stream = &statsStream{firstAttemptDone: make(chan struct{})}
		close(stream.firstAttemptDone)
		s.streamsByPlugin[pluginName] = stream
	}
	switch {
	case stream.cancel != nil:
		stream.idleTimer.Reset(streamIdleTimeout)
	case time.Now().Before(stream.noReopenBefore), s.ctx.Err() != nil:
	default:
		ctx, cancel := context.WithCancel(s.ctx)
		done := make(chan struct{})
		stream.cancel, stream.idleTimer, stream.firstAttemptDone = cancel, time.AfterFunc(streamIdleTimeout, cancel), done
		s.streamsWG.Go(func() { s.runStream(ctx, pluginName, stream, sync.OnceFunc(func() { close(done) })) })
	}
	return stream.firstAttemptDone
}

// runStream reads a plugin's stream until the stream or ctx ends. It calls onFirstAttemptDone after each sample, after
// firstSampleTimeout, and at the end.
func (s *statsSampler) runStream(ctx context.Context, pluginName string, stream *statsStream, onFirstAttemptDone func()) {
	timeout := time.AfterFunc(firstSampleTimeout, onFirstAttemptDone)
	defer timeout.Stop()
	err := s.readSamplesUntilEnd(ctx, pluginName, func(groups []device.GroupStats) {
		s.mu.Lock()
		stream.latestSample, stream.consecutiveFailures = groups, 0
		s.mu.Unlock()
		onFirstAttemptDone()
	})
	cancelled := ctx.Err() != nil
	s.mu.Lock()
	defer s.mu.Unlock()
	stream.idleTimer.Stop()
	stream.cancel()
	stream.cancel, stream.latestSample = nil, nil
	switch {
	case cancelled:
	case err != nil:
		delay := min(minStatsRetryDelay<<min(stream.consecutiveFailures, 16), maxStatsRetryDelay)
		stream.consecutiveFailures++
		stream.noReopenBefore = time.Now().Add(delay)
		s.logger.Debug("no statistics of devices", "plugin", pluginName, "error", err, "delay", delay)
	default:
		stream.noReopenBefore = time.Now().Add(maxStatsRetryDelay) // a plugin that ends its stream without an error has no statistics
	}
	onFirstAttemptDone()
}

// readSamplesUntilEnd opens a plugin's stream and passes each sample to onSample. It returns nil if the plugin ends the
// stream.
func (s *statsSampler) readSamplesUntilEnd(ctx context.Context, pluginName string, onSample func([]device.GroupStats)) error {
	plugin, err := s.plugins.Device(ctx, pluginName, time.Time{})
	if err != nil {
		return err
	}
	samples, err := plugin.Stats(ctx, s.sampleInterval)
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

// StatsOfAllocated returns the statistics in all for the allocated devices.
func StatsOfAllocated(all []*api.DeviceGroupStats, allocated []*api.AllocatedDeviceResource) []*api.DeviceGroupStats {
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

func toAPIGroupStats(g device.GroupStats) *api.DeviceGroupStats {
	out := &api.DeviceGroupStats{Vendor: g.ID.Vendor, Type: g.ID.Type, Name: g.ID.Name, InstanceStats: make(map[string]*api.DeviceStats, len(g.Instances))}
	for id, d := range g.Instances {
		out.InstanceStats[id] = &api.DeviceStats{Summary: toAPIStatValue(d.Summary), Stats: toAPIStatObject(d.Stats), Timestamp: d.Timestamp}
	}
	return out
}

func toAPIStatObject(o device.StatObject) *api.StatObject {
	out := &api.StatObject{}
	for name, nested := range o.Nested {
		if out.Nested == nil {
			out.Nested = make(map[string]*api.StatObject, len(o.Nested))
		}
		out.Nested[name] = toAPIStatObject(nested)
	}
	for name, v := range o.Attributes {
		if out.Attributes == nil {
			out.Attributes = make(map[string]*api.StatValue, len(o.Attributes))
		}
		out.Attributes[name] = toAPIStatValue(v)
	}
	return out
}

func toAPIStatValue(v device.StatValue) *api.StatValue {
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
