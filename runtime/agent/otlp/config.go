package otlp

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Values for Settings.Protocol and Config.Protocol.
const (
	ProtocolHTTP = "http/protobuf"
	ProtocolGRPC = "grpc"
)

// Settings are the trace and metrics settings in a configuration file. Each setting replaces an environment variable; see
// [Settings.TraceConfigWithEnv] and [Settings.MetricsConfigWithEnv].
type Settings struct {
	Endpoint            string            // collector's base URL
	Protocol            string            // ProtocolHTTP or ProtocolGRPC
	Headers             map[string]string // headers for each request; the values can be secrets
	TasksGetTraceparent bool              // tasks get the environment variable TRACEPARENT
	ExportMetrics       bool              // the agent exports metrics in addition to traces
}

// Config configures a TraceExporter or a MetricsExporter.
type Config struct {
	CollectorURL          string // collector URL, without secrets; gRPC uses only its scheme, host and port. Empty means that nothing is exported.
	Protocol              string
	Headers               map[string]string
	TasksGetTraceparent   bool          // tasks get the environment variable TRACEPARENT; false for metrics
	MetricsExportInterval time.Duration // time between two metrics exports; 0 for traces

	// ServiceName and ResourceAttributes override the agent's description in each request. They may be empty.
	ServiceName        string
	ResourceAttributes map[string]string
}

// IsExportEnabled reports whether anything is exported.
func (c *Config) IsExportEnabled() bool { return c.CollectorURL != "" }

// otelSignal describes how one OpenTelemetry signal (traces or metrics) is exported.
type otelSignal struct {
	displayName           string            // signal name in log texts
	envSignalName         string            // part of the signal's environment variable names
	urlPath               string            // path below an HTTP collector's base URL
	grpcMethod            string            // full name of a gRPC collector's Export method
	ignoredReasonByEnvVar map[string]string // environment variables without effect, besides those in ignoredSuffixes -> reason
}

var traceSignal = otelSignal{
	displayName: "traces", envSignalName: "TRACES", urlPath: "/v1/traces",
	grpcMethod:            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
	ignoredReasonByEnvVar: map[string]string{"OTEL_TRACES_SAMPLER": "all traces are exported"},
}

var metricSignal = otelSignal{
	displayName: "metrics", envSignalName: "METRICS", urlPath: "/v1/metrics",
	grpcMethod: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
	ignoredReasonByEnvVar: map[string]string{
		"OTEL_METRIC_EXPORT_TIMEOUT":                               "an export has the time until the next one",
		"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE":        "the values of counters are cumulative",
		"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "histograms have explicit buckets",
	},
}

// exporterEnvName returns the environment variable that names the exporter.
func (s *otelSignal) exporterEnvName() string { return "OTEL_" + s.envSignalName + "_EXPORTER" }

// envNames returns the names of the environment variables with a suffix: the variable for this signal, then the variable for all
// signals.
func (s *otelSignal) envNames(suffix string) []string {
	return []string{"OTEL_EXPORTER_OTLP_" + s.envSignalName + "_" + suffix, "OTEL_EXPORTER_OTLP_" + suffix}
}

// defaultEndpoints are the base URLs for each protocol if an export is enabled and no endpoint is set.
var defaultEndpoints = map[string]string{ProtocolHTTP: "http://localhost:4318", ProtocolGRPC: "http://localhost:4317"}

// TraceConfigWithEnv completes the trace settings with OpenTelemetry's environment variables; getenv returns a variable's value.
// The warnings are about variables without effect, and contain no header values. An invalid variable causes a warning instead of
// an error, and nothing is exported: the environment may be meant for other programs.
func (s Settings) TraceConfigWithEnv(getenv func(string) string) (c Config, warnings []string) {
	return s.configForSignal(&traceSignal, getenv)
}

// MetricsConfigWithEnv is TraceConfigWithEnv for metrics. It enables the export if the setting Metrics or OTEL_METRICS_EXPORTER
// does, or if an environment variable has an endpoint for metrics. An endpoint for all signals does not enable the metrics
// export.
func (s Settings) MetricsConfigWithEnv(getenv func(string) string) (c Config, warnings []string) {
	if !s.ExportMetrics && getenv(metricSignal.exporterEnvName()) == "" && getenv(metricSignal.envNames("ENDPOINT")[0]) == "" {
		return Config{}, nil
	}
	s.TasksGetTraceparent = false
	return s.configForSignal(&metricSignal, getenv)
}

func (s Settings) configForSignal(g *otelSignal, getenv func(string) string) (c Config, warnings []string) {
	c, err := s.mergeWithEnv(g, getenv)
	switch {
	case err != nil:
		return Config{}, []string{fmt.Sprintf("no %s are exported: %v", g.displayName, err)}
	case !c.IsExportEnabled():
		return Config{}, nil
	}
	return c, ignoredVariableWarnings(g, getenv)
}

func (s Settings) mergeWithEnv(g *otelSignal, getenv func(string) string) (c Config, err error) {
	if disabled, _ := strconv.ParseBool(getenv("OTEL_SDK_DISABLED")); disabled { // an invalid value counts as false, as OpenTelemetry specifies
		return Config{}, nil
	}
	exporter := getenv(g.exporterEnvName())
	if exporter == "none" {
		return Config{}, nil
	}
	c = Config{Protocol: s.Protocol, Headers: s.Headers, TasksGetTraceparent: s.TasksGetTraceparent, ServiceName: getenv("OTEL_SERVICE_NAME")}
	if c.Protocol == "" {
		name, value := firstSetEnv(getenv, g.envNames("PROTOCOL")...)
		if c.Protocol = ProtocolHTTP; value != "" {
			if err := CheckProtocol(value); err != nil {
				return c, fmt.Errorf("%s: %w", name, err)
			}
			c.Protocol = value
		}
	}
	if c.CollectorURL, err = s.endpointURLWithEnv(g, getenv, c.Protocol, exporter); err != nil || c.CollectorURL == "" {
		return c, err
	}
	if exporter != "" && exporter != "otlp" && !s.enablesSignal(g) {
		return c, fmt.Errorf(`%s is %q: use "otlp" or "none"`, g.exporterEnvName(), exporter)
	}
	if c.Headers == nil {
		name, value := firstSetEnv(getenv, g.envNames("HEADERS")...)
		if c.Headers, err = parseKeyValueList(value); err == nil {
			err = CheckHeaders(c.Headers)
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w", name, err)
		}
	}
	if g == &metricSignal {
		if c.MetricsExportInterval, err = metricsIntervalFromEnv(getenv); err != nil {
			return c, err
		}
	}
	if c.ResourceAttributes, err = parseKeyValueList(getenv("OTEL_RESOURCE_ATTRIBUTES")); err != nil {
		return c, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return c, nil
}

// enablesSignal reports whether the configuration file enables a signal's export.
func (s Settings) enablesSignal(g *otelSignal) bool {
	if g == &metricSignal {
		return s.ExportMetrics
	}
	return s.Endpoint != ""
}

// defaultExportInterval is OpenTelemetry's default. minExportInterval exists because each export samples the machine.
const defaultExportInterval, minExportInterval = time.Minute, 100 * time.Millisecond

// metricsIntervalFromEnv returns the time between two metrics exports, or the default if the environment does not set it.
func metricsIntervalFromEnv(getenv func(string) string) (time.Duration, error) {
	text := getenv("OTEL_METRIC_EXPORT_INTERVAL")
	if text == "" {
		return defaultExportInterval, nil
	}
	milliseconds, err := strconv.ParseUint(text, 10, 31)
	interval := time.Duration(milliseconds) * time.Millisecond
	if err != nil || interval < minExportInterval {
		return 0, fmt.Errorf("OTEL_METRIC_EXPORT_INTERVAL must be a number of milliseconds, at least %d", minExportInterval.Milliseconds())
	}
	return interval, nil
}

// endpointURLWithEnv returns the collector URL for a signal, or "" if neither the settings nor the environment enable the export.
func (s Settings) endpointURLWithEnv(g *otelSignal, getenv func(string) string, protocol, exporter string) (string, error) {
	if s.Endpoint != "" {
		return g.collectorURL(s.Endpoint, protocol), nil
	}
	names := g.envNames("ENDPOINT")
	if endpoint := getenv(names[0]); endpoint != "" { // the URL for one signal is used without a signal path
		if err := CheckEndpoint(endpoint); err != nil {
			return "", fmt.Errorf("%s: %w", names[0], err)
		}
		return endpoint, nil
	}
	endpoint := getenv(names[1])
	if endpoint == "" && (exporter == "otlp" || s.enablesSignal(g)) {
		endpoint = defaultEndpoints[protocol]
	}
	if endpoint == "" {
		return "", nil
	}
	if err := CheckEndpoint(endpoint); err != nil {
		return "", fmt.Errorf("%s: %w", names[1], err)
	}
	return g.collectorURL(endpoint, protocol), nil
}

// collectorURL returns the URL for the signal below a collector's base URL.
func (s *otelSignal) collectorURL(baseURL, protocol string) string {
	if protocol == ProtocolGRPC {
		return baseURL
	}
	return strings.TrimSuffix(baseURL, "/") + s.urlPath
}

func firstSetEnv(getenv func(string) string, names ...string) (name, value string) {
	for _, name = range names {
		if value = getenv(name); value != "" {
			break
		}
	}
	return name, value
}

// ignoredSuffixes has the OpenTelemetry environment variables without effect: name suffix -> reason or remedy.
var ignoredSuffixes = map[string]string{
	"CERTIFICATE":        "use SSL_CERT_FILE",
	"CLIENT_KEY":         "use headers for authentication",
	"CLIENT_CERTIFICATE": "use headers for authentication",
	"INSECURE":           "the scheme of the endpoint decides",
	"COMPRESSION":        "requests are not compressed",
	"TIMEOUT":            "a request has ten seconds",
}

func ignoredVariableWarnings(g *otelSignal, getenv func(string) string) (warnings []string) {
	ignored := maps.Clone(g.ignoredReasonByEnvVar)
	for suffix, reason := range ignoredSuffixes {
		for _, name := range g.envNames(suffix) {
			ignored[name] = reason
		}
	}
	for name, reason := range ignored {
		if getenv(name) != "" {
			warnings = append(warnings, fmt.Sprintf("%s is ignored: %s", name, reason))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// CheckProtocol checks a protocol name.
func CheckProtocol(protocol string) error {
	if protocol != ProtocolHTTP && protocol != ProtocolGRPC {
		return fmt.Errorf("%q is not supported: use %q or %q", protocol, ProtocolHTTP, ProtocolGRPC)
	}
	return nil
}

// CheckEndpoint checks a collector URL. The error does not contain the URL, because users may have written a secret in it.
func CheckEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return errors.New("must be a URL such as http://localhost:4318")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("must have no user, query or fragment: use headers for secrets")
	}
	return nil
}

// CheckHeaders checks header names and values. The error does not contain values.
func CheckHeaders(headers map[string]string) error {
	for name, value := range headers {
		if !httpguts.ValidHeaderFieldName(name) || strings.HasPrefix(strings.ToLower(name), "grpc-") {
			return fmt.Errorf("%q is not the name of a header that can be set", name)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) { // gRPC accepts only printable ASCII in headers
			return fmt.Errorf("the value of header %q has characters that are not printable ASCII", name)
		}
	}
	return nil
}

// parseKeyValueList parses "name=value,name=value", where values are percent-encoded. The error does not contain
// the text.
func parseKeyValueList(text string) (map[string]string, error) {
	list := make(map[string]string)
	for i, item := range strings.Split(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, value, found := strings.Cut(item, "=")
		name = strings.TrimSpace(name)
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if !found || name == "" || err != nil {
			return nil, fmt.Errorf("item %d is not name=value with percent-encoding", i+1)
		}
		list[name] = decoded
	}
	return list, nil
}
