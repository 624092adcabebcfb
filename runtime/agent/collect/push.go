package collect

import (
	"context"
	"net"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
)

// PushToSinks sends the metrics to the settings' sinks once per collection interval, until ctx ends. Without sinks it collects
// nothing. An unreachable sink loses the interval's metrics; nothing else waits for it.
func (c *MetricsCollector) PushToSinks(ctx context.Context, logger hclog.Logger) {
	var senders []*sinkSender
	defer func() { closeSenders(senders) }()
	for ctx.Err() == nil {
		changed, settings := c.settingsChanged(), c.Settings()
		senders = updateSenders(senders, settings.Sinks)
		var next <-chan time.Time // nil if there are no sinks
		if len(senders) > 0 {
			next = time.After(settings.Interval())
			families := c.Gather(ctx)
			for _, s := range senders {
				if err := s.sendPackets(ctx, metrics.Packets(s.encoder.Lines(families))); ctx.Err() == nil {
					s.countFailureAndWarnRarely(err, logger)
				}
			}
		}
		select {
		case <-next:
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// PushOTLP sends the metrics to an OpenTelemetry collector once per exporter interval, until ctx ends, and then once more, for
// two seconds at most. Values not sent before the next interval starts are lost.
func (c *MetricsCollector) PushOTLP(ctx context.Context, e *otlp.MetricsExporter) {
	ticker := time.NewTicker(e.Interval())
	defer ticker.Stop()
	for ctx.Err() == nil {
		c.gatherAndExportOTLP(ctx, e, e.Interval())
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	c.gatherAndExportOTLP(context.WithoutCancel(ctx), e, lastExportTimeout)
}

// lastExportTimeout is how long an agent's shutdown waits for the OpenTelemetry collector.
const lastExportTimeout = 2 * time.Second

func (c *MetricsCollector) gatherAndExportOTLP(ctx context.Context, e *otlp.MetricsExporter, timeout time.Duration) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if exported := e.Export(limited, c.Gather(limited), time.Now()); !exported && ctx.Err() == nil {
		metrics.SinkFailures.Add(1, "otlp")
	}
}

// updateSenders returns a sender for each sink. It keeps the senders for unchanged sinks, and closes the others.
func updateSenders(old []*sinkSender, sinks []metrics.Sink) (senders []*sinkSender) {
	for _, sink := range sinks {
		if sink.Address == "" {
			continue
		}
		i := slices.IndexFunc(old, func(s *sinkSender) bool { return reflect.DeepEqual(s.sink, sink) })
		if i >= 0 {
			senders, old = append(senders, old[i]), slices.Delete(slices.Clone(old), i, i+1)
			continue
		}
		senders = append(senders, &sinkSender{sink: sink, encoder: metrics.StatsdEncoder{Tags: sink.Protocol == metrics.Datadog, ConstantTags: sink.Tags}})
	}
	closeSenders(old)
	return senders
}

func closeSenders(senders []*sinkSender) {
	for _, s := range senders {
		s.close()
	}
}

// sinkSender sends metrics to one sink.
type sinkSender struct {
	sink          metrics.Sink
	encoder       metrics.StatsdEncoder
	conn          net.Conn  // nil without a connection
	lastWarningAt time.Time // last warning's time
}

// sendTimeout limits one call of sinkSender.sendPackets.
const sendTimeout = time.Second

// sendPackets sends packets, and connects first if necessary.
func (s *sinkSender) sendPackets(ctx context.Context, packets [][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if s.conn == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, s.sink.Protocol.Network(), s.sink.Address)
		if err != nil {
			return err
		}
		s.conn = conn
	}
	deadline, _ := ctx.Deadline()
	_ = s.conn.SetWriteDeadline(deadline) // fails only on a closed connection, which Write reports
	for _, packet := range packets {
		if _, err := s.conn.Write(packet); err != nil {
			s.close() // the next send resolves the sink's name again, because its address may have changed
			return err
		}
	}
	return nil
}

func (s *sinkSender) close() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// minWarningInterval is the minimum time between two warnings about a sink. A successful send does not end the interval, because
// a UDP socket returns an error for only some packets to an unreachable port.
const minWarningInterval = 10 * time.Minute

// countFailureAndWarnRarely counts a failure, and logs it if the last warning was long ago.
func (s *sinkSender) countFailureAndWarnRarely(err error, logger hclog.Logger) {
	if err == nil {
		return
	}
	metrics.SinkFailures.Add(1, s.sink.Protocol.String())
	if s.lastWarningAt.IsZero() || time.Since(s.lastWarningAt) > minWarningInterval {
		s.lastWarningAt = time.Now()
		logger.Warn("metrics are not sent", "sink", s.sink.Protocol, "address", s.sink.Address, "error", err)
	}
}
