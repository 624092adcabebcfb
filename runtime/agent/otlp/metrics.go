package otlp

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/hashicorp/go-hclog"
	dto "github.com/prometheus/client_model/go"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
)

// MetricsExporter sends metric values to a collector. It has no goroutine and stores no values. It is not for concurrent use.
type MetricsExporter struct {
	config        Config
	countersStart time.Time // time at which all counters were 0
	resource      *resourcepb.Resource
	scope         *commonpb.InstrumentationScope
	sender        otlpSender
	logger        hclog.Logger
	isFailing     bool // the last Export call has failed
}

// NewMetricsExporter returns an exporter for an enabled metrics Config. start is the time at which all counters were 0. The
// caller must call Close. NewMetricsExporter does not connect to the collector.
func NewMetricsExporter(c Config, agent AgentFacts, start time.Time, logger hclog.Logger) (*MetricsExporter, error) {
	s, err := newSender(c, &metricSignal)
	if err != nil {
		return nil, err
	}
	e := &MetricsExporter{
		config: c, countersStart: start, resource: newResource(c, agent), scope: newScope(agent.Version), sender: s, logger: logger.Named("otlp"),
	}
	e.logger.Info("metrics are exported", "endpoint", c.CollectorURL, "protocol", c.Protocol, "interval", c.MetricsExportInterval)
	return e, nil
}

// Interval returns the time between two exports.
func (e *MetricsExporter) Interval() time.Duration { return e.config.MetricsExportInterval }

// Close closes the connection to the collector.
func (e *MetricsExporter) Close() { e.sender.close() }

// Export sends the metric values from one time. It repeats a request while the collector is unavailable, until ctx ends. It
// returns false if the collector has not accepted all values. It logs the first failure in a row.
func (e *MetricsExporter) Export(ctx context.Context, families []*dto.MetricFamily, at time.Time) (allAccepted bool) {
	for _, request := range e.splitIntoRequests(families, at) {
		if err := e.sendWithRetry(ctx, request); err != nil {
			if !e.isFailing {
				e.isFailing = true
				e.logger.Warn("metrics are not exported", "error", err, "retry", err.canRetry)
			}
			return false
		}
	}
	if e.isFailing {
		e.isFailing = false
		e.logger.Info("metrics are exported again")
	}
	return true
}

func (e *MetricsExporter) sendWithRetry(ctx context.Context, request *metricspb.MetricsData) *sendError {
	for delay := minRetryDelay; ; delay = min(2*delay, maxRetryDelay) {
		rejected, err := e.sender.send(ctx, request)
		switch {
		case err == nil && rejected > 0:
			return &sendError{text: fmt.Sprintf("the collector has rejected %d values", rejected)}
		case err == nil, !err.canRetry, ctx.Err() != nil:
			return err
		}
		select {
		case <-time.After(max(delay, min(err.retryDelay, maxRetryDelay))):
		case <-ctx.Done():
			return err
		}
	}
}

// maxMetricsRequest is a request's approximate size in bytes. The collector accepts 4 MB by default; a value has less than 16 kB,
// usually 0.3 kB.
const maxMetricsRequest = 1 << 20

// splitIntoRequests returns requests of about maxMetricsRequest bytes with all values.
func (e *MetricsExporter) splitIntoRequests(families []*dto.MetricFamily, at time.Time) (requests []*metricspb.MetricsData) {
	var all []*metricspb.Metric
	size := 0
	flush := func() {
		if len(all) > 0 {
			requests = append(requests, e.newMetricsData(all))
		}
		all, size = nil, 0
	}
	for _, f := range families {
		var m *metricspb.Metric // f's metric in the current request
		for _, value := range f.GetMetric() {
			if m == nil {
				m = newEmptyMetric(f)
				all = append(all, m)
			}
			size += e.addDataPoint(m, value, at)
			if size >= maxMetricsRequest {
				flush()
				m = nil
			}
		}
	}
	flush()
	return requests
}

// newEmptyMetric returns a metric without values. Its name and unit are those in package metrics, if it has the metric.
func newEmptyMetric(f *dto.MetricFamily) *metricspb.Metric {
	m := &metricspb.Metric{Name: f.GetName(), Description: f.GetHelp()}
	if d := metrics.FindByPrometheusName(f.GetName()); d != nil {
		m.Name, m.Unit = d.Name, d.Unit
	}
	const cumulative = metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		m.Data = &metricspb.Metric_Sum{Sum: &metricspb.Sum{IsMonotonic: true, AggregationTemporality: cumulative}}
	case dto.MetricType_HISTOGRAM:
		m.Data = &metricspb.Metric_Histogram{Histogram: &metricspb.Histogram{AggregationTemporality: cumulative}}
	default:
		m.Data = &metricspb.Metric_Gauge{Gauge: new(metricspb.Gauge)}
	}
	return m
}

// addDataPoint adds a value to a metric, and returns its encoded size in bytes.
func (e *MetricsExporter) addDataPoint(m *metricspb.Metric, value *dto.Metric, at time.Time) (encodedSize int) {
	attributes := make([]*commonpb.KeyValue, 0, len(value.GetLabel()))
	for _, p := range value.GetLabel() {
		attributes = append(attributes, newStringAttribute(p.GetName(), p.GetValue()))
	}
	if h := value.GetHistogram(); h != nil {
		point := newHistogramPoint(h)
		point.Attributes, point.StartTimeUnixNano, point.TimeUnixNano = attributes, unixNano(e.countersStart), unixNano(at)
		data := m.GetHistogram()
		data.DataPoints = append(data.DataPoints, point)
		return proto.Size(point)
	}
	point := &metricspb.NumberDataPoint{Attributes: attributes, TimeUnixNano: unixNano(at)}
	if data := m.GetSum(); data != nil {
		point.StartTimeUnixNano = unixNano(e.countersStart)
		point.Value = &metricspb.NumberDataPoint_AsDouble{AsDouble: value.GetCounter().GetValue()}
		data.DataPoints = append(data.DataPoints, point)
	} else {
		point.Value = &metricspb.NumberDataPoint_AsDouble{AsDouble: value.GetGauge().GetValue()}
		data := m.GetGauge()
		data.DataPoints = append(data.DataPoints, point)
	}
	return proto.Size(point)
}

// newHistogramPoint returns a histogram's buckets, count and sum. A Prometheus bucket includes the smaller buckets; an
// OpenTelemetry bucket does not, and the last bucket has no upper limit.
func newHistogramPoint(h *dto.Histogram) *metricspb.HistogramDataPoint {
	point := &metricspb.HistogramDataPoint{Count: h.GetSampleCount(), Sum: new(h.GetSampleSum())}
	var below uint64 // observations in the smaller buckets
	for _, b := range h.GetBucket() {
		if math.IsInf(b.GetUpperBound(), 1) {
			break
		}
		point.ExplicitBounds = append(point.ExplicitBounds, b.GetUpperBound())
		point.BucketCounts = append(point.BucketCounts, b.GetCumulativeCount()-below)
		below = b.GetCumulativeCount()
	}
	point.BucketCounts = append(point.BucketCounts, point.GetCount()-below)
	return point
}

func (e *MetricsExporter) newMetricsData(all []*metricspb.Metric) *metricspb.MetricsData {
	return &metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource:     e.resource,
		ScopeMetrics: []*metricspb.ScopeMetrics{{Scope: e.scope, Metrics: all}},
	}}}
}
