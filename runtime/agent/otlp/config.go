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

// Protocols of the exporter.
const (
	ProtocolHTTP = "http/protobuf"
	ProtocolGRPC = "grpc"
)

// Settings are the settings of traces and metrics in a configuration file. Each setting replaces an environment
// variable; see [Settings.WithEnv] and [Settings.MetricsWithEnv].
type Settings struct {
	Endpoint        string            // base URL of the collector
	Protocol        string            // ProtocolHTTP or ProtocolGRPC
	Headers         map[string]string // of each request; the values can be secrets
	TaskTraceparent bool              // tasks get the environment variable TRACEPARENT
	Metrics         bool              // metrics are exported, too
}

// Config configures an Exporter or a MetricsExporter.
type Config struct {
	URL             string // to which batches are sent, without secrets; for gRPC only scheme, host and port count. Empty means that nothing is exported.
	Protocol        string
	Headers         map[string]string
	TaskTraceparent bool          // only of traces
	Interval        time.Duration // between two exports; only of metrics

	// ServiceName and ResourceAttributes describe the agent in everything that it exports. They may be empty.
	ServiceName        string
	ResourceAttributes map[string]string
}

// Enabled reports whether anything is exported.
func (c *Config) Enabled() bool { return c.URL != "" }

// signal is a kind of data that is exported.
type signal struct {
	name       string            // as in texts
	variable   string            // its part of the names of variables
	path       string            // of the URL, below the base URL
	grpcMethod string            // of the collector
	ignored    map[string]string // further variables that have no effect, with the reason
}

var traceSignal = signal{
	name: "traces", variable: "TRACES", path: "/v1/traces",
	grpcMethod: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
	ignored:    map[string]string{"OTEL_TRACES_SAMPLER": "all traces are exported"},
}

var metricSignal = signal{
	name: "metrics", variable: "METRICS", path: "/v1/metrics",
	grpcMethod: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
	ignored: map[string]string{
		"OTEL_METRIC_EXPORT_TIMEOUT":                               "an export has the time until the next one",
		"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE":        "the values of counters are cumulative",
		"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "histograms have explicit buckets",
	},
}

// exporterVariable is the name of the variable that names the exporter.
func (g *signal) exporterVariable() string { return "OTEL_" + g.variable + "_EXPORTER" }

// variables returns the names of the variables with a suffix, the variable of the signal first.
func (g *signal) variables(suffix string) []string {
	return []string{"OTEL_EXPORTER_OTLP_" + g.variable + "_" + suffix, "OTEL_EXPORTER_OTLP_" + suffix}
}

// defaultEndpoints are the endpoints if an export is enabled, and no endpoint is set.
var defaultEndpoints = map[string]string{ProtocolHTTP: "http://localhost:4318", ProtocolGRPC: "http://localhost:4317"}

// WithEnv completes the settings of traces with the environment variables that OpenTelemetry defines; getenv returns the
// value of a variable. The warnings are about variables that have no effect, and contain no values of headers. With an
// invalid variable nothing is exported: it is no error, because the environment can be meant for other programs.
func (s Settings) WithEnv(getenv func(string) string) (c Config, warnings []string) {
	return s.withEnv(&traceSignal, getenv)
}

// MetricsWithEnv is WithEnv for metrics. They are exported if the settings or OTEL_METRICS_EXPORTER require it, or a
// variable has an endpoint for metrics. An endpoint for all signals alone exports no metrics.
func (s Settings) MetricsWithEnv(getenv func(string) string) (c Config, warnings []string) {
	if !s.Metrics && getenv(metricSignal.exporterVariable()) == "" && getenv(metricSignal.variables("ENDPOINT")[0]) == "" {
		return Config{}, nil
	}
	s.TaskTraceparent = false
	return s.withEnv(&metricSignal, getenv)
}

func (s Settings) withEnv(g *signal, getenv func(string) string) (c Config, warnings []string) {
	c, err := s.resolve(g, getenv)
	switch {
	case err != nil:
		return Config{}, []string{fmt.Sprintf("no %s are exported: %v", g.name, err)}
	case !c.Enabled():
		return Config{}, nil
	}
	return c, ignoredVariableWarnings(g, getenv)
}

func (s Settings) resolve(g *signal, getenv func(string) string) (c Config, err error) {
	if disabled, _ := strconv.ParseBool(getenv("OTEL_SDK_DISABLED")); disabled { // OpenTelemetry defines other texts as false
		return Config{}, nil
	}
	exporter := getenv(g.exporterVariable())
	if exporter == "none" {
		return Config{}, nil
	}
	c = Config{Protocol: s.Protocol, Headers: s.Headers, TaskTraceparent: s.TaskTraceparent, ServiceName: getenv("OTEL_SERVICE_NAME")}
	if c.Protocol == "" {
		name, value := firstVariable(getenv, g.variables("PROTOCOL")...)
		if c.Protocol = ProtocolHTTP; value != "" {
			if err := CheckProtocol(value); err != nil {
				return c, fmt.Errorf("%s: %w", name, err)
			}
			c.Protocol = value
		}
	}
	if c.URL, err = s.url(g, getenv, c.Protocol, exporter); err != nil || c.URL == "" {
		return c, err
	}
	if exporter != "" && exporter != "otlp" && !s.enables(g) {
		return c, fmt.Errorf(`%s is %q: use "otlp" or "none"`, g.exporterVariable(), exporter)
	}
	if c.Headers == nil {
		name, value := firstVariable(getenv, g.variables("HEADERS")...)
		if c.Headers, err = parseList(value); err == nil {
			err = CheckHeaders(c.Headers)
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w", name, err)
		}
	}
	if g == &metricSignal {
		if c.Interval, err = exportInterval(getenv); err != nil {
			return c, err
		}
	}
	if c.ResourceAttributes, err = parseList(getenv("OTEL_RESOURCE_ATTRIBUTES")); err != nil {
		return c, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return c, nil
}

// enables reports whether the configuration file enables the export of a signal.
func (s Settings) enables(g *signal) bool {
	if g == &metricSignal {
		return s.Metrics
	}
	return s.Endpoint != ""
}

// defaultExportInterval is the default of OpenTelemetry. A reading samples the machine, so there is a minimum.
const defaultExportInterval, minExportInterval = time.Minute, 100 * time.Millisecond

// exportInterval returns the time between two exports of metrics.
func exportInterval(getenv func(string) string) (time.Duration, error) {
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

// url returns the URL of the requests, or "" if nothing enables the export.
func (s Settings) url(g *signal, getenv func(string) string, protocol, exporter string) (string, error) {
	if s.Endpoint != "" {
		return g.url(s.Endpoint, protocol), nil
	}
	names := g.variables("ENDPOINT")
	if endpoint := getenv(names[0]); endpoint != "" { // is used as it is
		if err := CheckEndpoint(endpoint); err != nil {
			return "", fmt.Errorf("%s: %w", names[0], err)
		}
		return endpoint, nil
	}
	endpoint := getenv(names[1])
	if endpoint == "" && (exporter == "otlp" || s.enables(g)) {
		endpoint = defaultEndpoints[protocol]
	}
	if endpoint == "" {
		return "", nil
	}
	if err := CheckEndpoint(endpoint); err != nil {
		return "", fmt.Errorf("%s: %w", names[1], err)
	}
	return g.url(endpoint, protocol), nil
}

// url returns the URL for the signal of a base URL.
func (g *signal) url(base, protocol string) string {
	if protocol == ProtocolGRPC {
		return base
	}
	return strings.TrimSuffix(base, "/") + g.path
}

func firstVariable(getenv func(string) string, names ...string) (name, value string) {
	for _, name = range names {
		if value = getenv(name); value != "" {
			break
		}
	}
	return name, value
}

// ignoredSuffixes are suffixes of variables of OpenTelemetry that have no effect, with the reason or the remedy.
var ignoredSuffixes = map[string]string{
	"CERTIFICATE":        "use SSL_CERT_FILE",
	"CLIENT_KEY":         "use headers for authentication",
	"CLIENT_CERTIFICATE": "use headers for authentication",
	"INSECURE":           "the scheme of the endpoint decides",
	"COMPRESSION":        "requests are not compressed",
	"TIMEOUT":            "a request has ten seconds",
}

func ignoredVariableWarnings(g *signal, getenv func(string) string) (warnings []string) {
	ignored := maps.Clone(g.ignored)
	for suffix, reason := range ignoredSuffixes {
		for _, name := range g.variables(suffix) {
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

// CheckProtocol checks the name of a protocol.
func CheckProtocol(protocol string) error {
	if protocol != ProtocolHTTP && protocol != ProtocolGRPC {
		return fmt.Errorf("%q is not supported: use %q or %q", protocol, ProtocolHTTP, ProtocolGRPC)
	}
	return nil
}

// CheckEndpoint checks the URL of a collector. The error does not contain the URL, in which users may have
// written a secret.
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

// CheckHeaders checks names and values of headers. The error does not contain values.
func CheckHeaders(headers map[string]string) error {
	for name, value := range headers {
		if !httpguts.ValidHeaderFieldName(name) || strings.HasPrefix(strings.ToLower(name), "grpc-") {
			return fmt.Errorf("%q is not the name of a header that can be set", name)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) { // gRPC has this limit
			return fmt.Errorf("the value of header %q has characters that are not printable ASCII", name)
		}
	}
	return nil
}

// parseList parses "name=value,name=value", where values are percent-encoded. The error does not contain
// the text.
func parseList(text string) (map[string]string, error) {
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
