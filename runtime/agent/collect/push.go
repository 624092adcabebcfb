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

// Push sends the metrics to the sinks of the settings once per collection interval, until ctx ends. Without sinks it
// collects nothing. A sink that cannot be reached loses the metrics of the interval; nothing else waits for it.
func (c *Collector) Push(ctx context.Context, logger hclog.Logger) {
	var senders []*sender
	defer func() { closeAll(senders) }()
	for ctx.Err() == nil {
		changed, settings := c.settingsChanged(), c.Settings()
		senders = updateSenders(senders, settings.Sinks)
		var next <-chan time.Time // nil without sinks
		if len(senders) > 0 {
			next = time.After(settings.Interval())
			families := c.Gather(ctx)
			for _, s := range senders {
				if err := s.send(ctx, metrics.Packets(s.encoder.Lines(families))); ctx.Err() == nil {
					s.report(err, logger)
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

// PushOTLP sends the metrics to an OpenTelemetry collector once per interval of the exporter, until ctx ends, and then
// once more, for two seconds at most. A reading that cannot be sent before the next one is lost.
func (c *Collector) PushOTLP(ctx context.Context, e *otlp.MetricsExporter) {
	ticker := time.NewTicker(e.Interval())
	defer ticker.Stop()
	for ctx.Err() == nil {
		c.export(ctx, e, e.Interval())
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	c.export(context.WithoutCancel(ctx), e, lastExportTimeout)
}

// lastExportTimeout limits how long an agent that shuts down waits for the collector.
const lastExportTimeout = 2 * time.Second

func (c *Collector) export(ctx context.Context, e *otlp.MetricsExporter, timeout time.Duration) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if exported := e.Export(limited, c.Gather(limited), time.Now()); !exported && ctx.Err() == nil {
		metrics.SinkFailures.Add(1, "otlp")
	}
}

// updateSenders returns a sender for each sink. It keeps the senders of unchanged sinks, and closes the others.
func updateSenders(old []*sender, sinks []metrics.Sink) (senders []*sender) {
	for _, sink := range sinks {
		if sink.Address == "" {
			continue
		}
		i := slices.IndexFunc(old, func(s *sender) bool { return reflect.DeepEqual(s.sink, sink) })
		if i >= 0 {
			senders, old = append(senders, old[i]), slices.Delete(slices.Clone(old), i, i+1)
			continue
		}
		senders = append(senders, &sender{sink: sink, encoder: metrics.StatsdEncoder{Tags: sink.Protocol == metrics.Datadog, ConstantTags: sink.Tags}})
	}
	closeAll(old)
	return senders
}

func closeAll(senders []*sender) {
	for _, s := range senders {
		s.close()
	}
}

// sender sends metrics to one sink.
type sender struct {
	sink    metrics.Sink
	encoder metrics.StatsdEncoder
	conn    net.Conn  // nil without a connection
	warned  time.Time // time of the last warning
}

// sendTimeout limits the time in which the metrics of one reading are sent.
const sendTimeout = time.Second

// send sends packets, and connects first if necessary.
func (s *sender) send(ctx context.Context, packets [][]byte) error {
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
	_ = s.conn.SetWriteDeadline(deadline) // an error means that the connection is closed, which Write reports
	for _, packet := range packets {
		if _, err := s.conn.Write(packet); err != nil {
			s.close() // the address of the name may have changed
			return err
		}
	}
	return nil
}

func (s *sender) close() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// minWarningInterval limits the log of a sink that cannot be reached. A socket of UDP reports an unreachable port with
// only some of the packets.
const minWarningInterval = 10 * time.Minute

// report counts a failure, and logs it if the last warning was long ago.
func (s *sender) report(err error, logger hclog.Logger) {
	if err == nil {
		return
	}
	metrics.SinkFailures.Add(1, s.sink.Protocol.String())
	if s.warned.IsZero() || time.Since(s.warned) > minWarningInterval {
		s.warned = time.Now()
		logger.Warn("metrics are not sent", "sink", s.sink.Protocol, "address", s.sink.Address, "error", err)
	}
}
