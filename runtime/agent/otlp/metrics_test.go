package otlp

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	dto "github.com/prometheus/client_model/go"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp/otlptest"
)

var agentStart = time.Unix(1000, 0)

func openMetricsExporter(t testing.TB, c Config, logger hclog.Logger) *MetricsExporter {
	t.Helper()
	e, err := NewMetricsExporter(c, testAgent, agentStart, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// newReading returns a gauge, a counter and a histogram.
func newReading() []*dto.MetricFamily {
	set := metrics.NewSet(&metrics.Settings{})
	set.Add("nomad.client.allocs.memory.usage", 4096, metrics.NewLabels("job", "web", "task", "t"))
	set.Add("nomad.client.allocs.restart", 3, metrics.NewLabels("job", "web"))
	families := set.Families()
	name, kind := "nomad_lite_hook_duration_seconds", dto.MetricType_HISTOGRAM
	return append(families, &dto.MetricFamily{Name: &name, Type: &kind, Metric: []*dto.Metric{{
		Label: metrics.NewLabels("hook", "artifact"),
		Histogram: &dto.Histogram{SampleCount: new(uint64(6)), SampleSum: new(7.5), Bucket: []*dto.Bucket{
			{UpperBound: new(0.1), CumulativeCount: new(uint64(1))}, {UpperBound: new(1.0), CumulativeCount: new(uint64(4))},
		}},
	}}})
}

func TestMetricsOfBothProtocols(t *testing.T) {
	for _, protocol := range []string{ProtocolHTTP, ProtocolGRPC} {
		t.Run(protocol, func(t *testing.T) {
			c := otlptest.New(t, protocol)
			config, warnings := Settings{Endpoint: c.URL, Protocol: protocol, ExportMetrics: true, Headers: map[string]string{"X-Key": "secret"}}.MetricsConfigWithEnv(noEnv)
			if warnings != nil {
				t.Fatal(warnings)
			}
			e := openMetricsExporter(t, config, hclog.NewNullLogger())
			if !e.Export(t.Context(), newReading(), time.Unix(2000, 0)) {
				t.Fatal("the metrics were not exported")
			}
			got := make(map[string]*metricspb.Metric)
			for _, m := range c.Metrics() {
				got[m.GetName()] = m
			}
			if len(got) != 3 {
				t.Fatalf("%d metrics were received: %v", len(got), got)
			}
			const start, at = 1000e9, 2000e9

			gauge := got["nomad.client.allocs.memory.usage"]
			if p := gauge.GetGauge().GetDataPoints()[0]; gauge.GetUnit() != "By" || gauge.GetDescription() == "" || p.GetAsDouble() != 4096 || p.GetTimeUnixNano() != at ||
				!reflect.DeepEqual(otlptest.StringAttributes(p), map[string]string{"job": "web", "task": "t"}) {
				t.Errorf("gauge %v", gauge)
			}
			sum := got["nomad.client.allocs.restart"]
			if p := sum.GetSum().GetDataPoints()[0]; !sum.GetSum().GetIsMonotonic() || sum.GetSum().GetAggregationTemporality() != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE ||
				sum.GetUnit() != "" || p.GetAsDouble() != 3 || p.GetStartTimeUnixNano() != start || p.GetTimeUnixNano() != at {
				t.Errorf("counter %v", sum)
			}
			histogram := got["nomad_lite_hook_duration_seconds"]
			p := histogram.GetHistogram().GetDataPoints()[0]
			if histogram.GetUnit() != "s" || histogram.GetHistogram().GetAggregationTemporality() != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE ||
				p.GetCount() != 6 || p.GetSum() != 7.5 || p.GetStartTimeUnixNano() != start ||
				!reflect.DeepEqual(p.GetExplicitBounds(), []float64{0.1, 1}) || !reflect.DeepEqual(p.GetBucketCounts(), []uint64{1, 3, 2}) {
				t.Errorf("histogram %v", histogram)
			}

			resource := otlptest.StringAttributes(c.ResourceMetrics()[0].GetResource())
			if resource["service.name"] != "nomad-lite" || resource["nomad.node.name"] != "node" || resource["service.version"] != "1.2.3" {
				t.Errorf("resource %v", resource)
			}
			if key := c.RequestHeaders()[0]["x-key"]; len(key) != 1 || key[0] != "secret" {
				t.Errorf("header is %q", key)
			}
		})
	}
}

// An export to an unreachable or unresponsive collector ends with its context.
func TestMetricsOfUnusableCollectors(t *testing.T) {
	for _, url := range []string{otlptest.SilentURL(t), otlptest.ClosedURL(t)} {
		for _, protocol := range []string{ProtocolHTTP, ProtocolGRPC} {
			t.Run(protocol+" "+url, func(t *testing.T) {
				t.Parallel()
				e := openMetricsExporter(t, Config{CollectorURL: url, Protocol: protocol}, hclog.NewNullLogger())
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				begin := time.Now()
				if e.Export(ctx, newReading(), time.Now()) {
					t.Error("the metrics were exported")
				}
				if took := time.Since(begin); took > 3*time.Second {
					t.Errorf("the export took %v", took)
				}
			})
		}
	}
}

// A reading is sent again after an answer that allows it, and the log has each outage once, without secrets.
func TestMetricsAfterAnswersOfCollector(t *testing.T) {
	const secret = "s3cr3t"
	var requests atomic.Int32
	c := otlptest.NewHTTP(t, func(w http.ResponseWriter, r *http.Request) bool {
		switch requests.Add(1) {
		case 1, 2:
			http.Error(w, "bad key "+r.Header.Get("x-key"), http.StatusForbidden)
		case 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			return false
		}
		return true
	})
	var log bytes.Buffer
	e := openMetricsExporter(t, Config{CollectorURL: c.URL + "/v1/metrics", Headers: map[string]string{"x-key": secret}}, hclog.New(&hclog.LoggerOptions{Output: &log}))
	for i, want := range []bool{false, false, true} {
		if got := e.Export(t.Context(), newReading(), time.Now()); got != want {
			t.Errorf("export %d: got %v, want %v", i, got, want)
		}
	}
	text := log.String()
	if strings.Contains(text, secret) || strings.Count(text, "metrics are not exported") != 1 || strings.Count(text, "403") != 1 || strings.Count(text, "exported again") != 1 {
		t.Errorf("log:\n%s", text)
	}
	if n := len(c.Metrics()); n != 3 {
		t.Errorf("%d metrics were received, want 3", n)
	}
}

// Each request is below a collector's limit, and together they have all values.
func TestMetricsAreSplit(t *testing.T) {
	set := metrics.NewSet(&metrics.Settings{})
	const values = 20000
	for i := range values {
		set.Add("nomad.client.allocs.restart", 1, metrics.NewLabels("alloc_id", strconv.Itoa(i), "job", strings.Repeat("x", 256)))
	}
	e := openMetricsExporter(t, Config{CollectorURL: "http://localhost:1"}, hclog.NewNullLogger())
	found := 0
	for _, r := range e.splitIntoRequests(append(set.Families(), newReading()...), time.Now()) {
		if size := proto.Size(r); size > 4<<20 {
			t.Errorf("request of %d bytes", size)
		}
		for _, m := range r.GetResourceMetrics()[0].GetScopeMetrics()[0].GetMetrics() {
			found += len(m.GetSum().GetDataPoints())
		}
	}
	if found != values+1 {
		t.Errorf("%d values, want %d", found, values+1)
	}
}

func TestMetricsWithEnv(t *testing.T) {
	const base = "http://a:4318"
	for _, test := range []struct {
		name     string
		settings Settings
		env      map[string]string
		want     Config
		warning  string
	}{
		{name: "nothing is exported by default"},
		{name: "an endpoint alone exports traces", settings: Settings{Endpoint: base}, env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": base}},
		{name: "setting", settings: Settings{Endpoint: base, ExportMetrics: true}, want: Config{CollectorURL: base + "/v1/metrics", Protocol: ProtocolHTTP, MetricsExportInterval: time.Minute}},
		{name: "default endpoint", settings: Settings{ExportMetrics: true, Protocol: ProtocolGRPC}, want: Config{CollectorURL: "http://localhost:4317", Protocol: ProtocolGRPC, MetricsExportInterval: time.Minute}},
		{
			name: "exporter", env: map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": base, "OTEL_METRIC_EXPORT_INTERVAL": "5000"},
			want: Config{CollectorURL: base + "/v1/metrics", Protocol: ProtocolHTTP, MetricsExportInterval: 5 * time.Second},
		},
		{
			name: "variables of metrics win",
			env: map[string]string{
				"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://c/x", "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "a=b", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc",
				"OTEL_EXPORTER_OTLP_ENDPOINT": base, "OTEL_EXPORTER_OTLP_HEADERS": "a=c", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=d",
			},
			want: Config{CollectorURL: "https://c/x", Protocol: ProtocolGRPC, Headers: map[string]string{"a": "b"}, MetricsExportInterval: time.Minute},
		},
		{name: "no exporter", settings: Settings{Endpoint: base, ExportMetrics: true}, env: map[string]string{"OTEL_METRICS_EXPORTER": "none"}},
		{name: "switched off", settings: Settings{Endpoint: base, ExportMetrics: true}, env: map[string]string{"OTEL_SDK_DISABLED": "true"}},
		{name: "another exporter", env: map[string]string{"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_OTLP_ENDPOINT": base}, warning: `no metrics are exported: OTEL_METRICS_EXPORTER is "prometheus"`},
		{
			name: "an endpoint of the file enables no other exporter", settings: Settings{Endpoint: base}, env: map[string]string{"OTEL_METRICS_EXPORTER": "prometheus"},
			warning: `OTEL_METRICS_EXPORTER is "prometheus"`,
		},
		{
			name: "the setting beats another exporter", settings: Settings{ExportMetrics: true}, env: map[string]string{"OTEL_METRICS_EXPORTER": "prometheus"},
			want: Config{CollectorURL: "http://localhost:4318/v1/metrics", Protocol: ProtocolHTTP, MetricsExportInterval: time.Minute},
		},
		{name: "no interval", settings: Settings{Endpoint: base, ExportMetrics: true}, env: map[string]string{"OTEL_METRIC_EXPORT_INTERVAL": "1s"}, warning: "OTEL_METRIC_EXPORT_INTERVAL must be a number of milliseconds"},
		{name: "short interval", settings: Settings{Endpoint: base, ExportMetrics: true}, env: map[string]string{"OTEL_METRIC_EXPORT_INTERVAL": "1"}, warning: "at least 100"},
		{
			name: "variable without an effect", settings: Settings{Endpoint: base, ExportMetrics: true}, env: map[string]string{"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"},
			want: Config{CollectorURL: base + "/v1/metrics", Protocol: ProtocolHTTP, MetricsExportInterval: time.Minute}, warning: "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE is ignored",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, warnings := test.settings.MetricsConfigWithEnv(mapEnv(test.env))
			checkConfig(t, got, warnings, test.want, test.warning)
		})
	}
}
