package otlp

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Protocols of the exporter.
const (
	ProtocolHTTP = "http/protobuf"
	ProtocolGRPC = "grpc"
)

// Settings are the settings of traces in a configuration file. Each setting replaces an environment
// variable; see [Settings.WithEnv].
type Settings struct {
	Endpoint        string            // base URL of the collector
	Protocol        string            // ProtocolHTTP or ProtocolGRPC
	Headers         map[string]string // of each request; the values can be secrets
	TaskTraceparent bool              // tasks get the environment variable TRACEPARENT
}

// Config configures an Exporter.
type Config struct {
	URL             string // to which batches are sent, without secrets; for gRPC only scheme, host and port count. Empty means that nothing is exported.
	Protocol        string
	Headers         map[string]string
	TaskTraceparent bool

	// ServiceName and ResourceAttributes describe the agent in all its spans. They may be empty.
	ServiceName        string
	ResourceAttributes map[string]string
}

// Enabled reports whether spans are exported.
func (c *Config) Enabled() bool { return c.URL != "" }

// defaultEndpoints are the endpoints if OTEL_TRACES_EXPORTER enables traces, and no endpoint is set.
var defaultEndpoints = map[string]string{ProtocolHTTP: "http://localhost:4318", ProtocolGRPC: "http://localhost:4317"}

// WithEnv adds the environment variables that OpenTelemetry defines for what the settings leave out; getenv returns the value of a
// variable. The warnings are about variables that have no effect, and contain no values of headers. With
// an invalid variable nothing is exported, because a program must run with the environment of another.
func (s Settings) WithEnv(getenv func(string) string) (c Config, warnings []string) {
	c, err := s.resolve(getenv)
	switch {
	case err != nil:
		return Config{}, []string{fmt.Sprintf("no traces are exported: %v", err)}
	case !c.Enabled():
		return Config{}, nil
	}
	return c, ignoredVariableWarnings(getenv)
}

func (s Settings) resolve(getenv func(string) string) (c Config, err error) {
	if disabled, _ := strconv.ParseBool(getenv("OTEL_SDK_DISABLED")); disabled {
		return Config{}, nil
	}
	exporter := getenv("OTEL_TRACES_EXPORTER")
	if exporter == "none" {
		return Config{}, nil
	}
	c = Config{Protocol: s.Protocol, Headers: s.Headers, TaskTraceparent: s.TaskTraceparent, ServiceName: getenv("OTEL_SERVICE_NAME")}
	if c.Protocol == "" {
		name, value := firstVariable(getenv, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
		if c.Protocol = ProtocolHTTP; value != "" {
			if err := CheckProtocol(value); err != nil {
				return c, fmt.Errorf("%s: %w", name, err)
			}
			c.Protocol = value
		}
	}
	if c.URL, err = s.url(getenv, c.Protocol, exporter); err != nil || c.URL == "" {
		return c, err
	}
	if exporter != "" && exporter != "otlp" && s.Endpoint == "" {
		return c, fmt.Errorf(`OTEL_TRACES_EXPORTER is %q: use "otlp" or "none"`, exporter)
	}
	if c.Headers == nil {
		name, value := firstVariable(getenv, "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
		if c.Headers, err = parseList(value); err == nil {
			err = CheckHeaders(c.Headers)
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w", name, err)
		}
	}
	if c.ResourceAttributes, err = parseList(getenv("OTEL_RESOURCE_ATTRIBUTES")); err != nil {
		return c, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return c, nil
}

// url returns the URL of the requests, or "" if nothing enables traces.
func (s Settings) url(getenv func(string) string, protocol, exporter string) (string, error) {
	if s.Endpoint != "" {
		return tracesURL(s.Endpoint, protocol), nil
	}
	if endpoint := getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"); endpoint != "" { // is used as it is
		if err := CheckEndpoint(endpoint); err != nil {
			return "", fmt.Errorf("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: %w", err)
		}
		return endpoint, nil
	}
	endpoint := getenv("OTEL_EXPORTER_OTLP_ENDPOINT")
	if endpoint == "" && exporter == "otlp" {
		endpoint = defaultEndpoints[protocol]
	}
	if endpoint == "" {
		return "", nil
	}
	if err := CheckEndpoint(endpoint); err != nil {
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	return tracesURL(endpoint, protocol), nil
}

// tracesURL returns the URL for traces of a base URL.
func tracesURL(base, protocol string) string {
	if protocol == ProtocolGRPC {
		return base
	}
	return strings.TrimSuffix(base, "/") + "/v1/traces"
}

func firstVariable(getenv func(string) string, names ...string) (name, value string) {
	for _, name = range names {
		if value = getenv(name); value != "" {
			break
		}
	}
	return name, value
}

// ignoredVariables are variables of OpenTelemetry that have no effect, with the reason or the remedy.
var ignoredVariables = map[string]string{
	"OTEL_EXPORTER_OTLP_CERTIFICATE":               "use SSL_CERT_FILE",
	"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE":        "use SSL_CERT_FILE",
	"OTEL_EXPORTER_OTLP_CLIENT_KEY":                "use headers for authentication",
	"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE":        "use headers for authentication",
	"OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY":         "use headers for authentication",
	"OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": "use headers for authentication",
	"OTEL_EXPORTER_OTLP_INSECURE":                  "the scheme of the endpoint decides",
	"OTEL_EXPORTER_OTLP_TRACES_INSECURE":           "the scheme of the endpoint decides",
	"OTEL_EXPORTER_OTLP_COMPRESSION":               "requests are not compressed",
	"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION":        "requests are not compressed",
	"OTEL_EXPORTER_OTLP_TIMEOUT":                   "a request has ten seconds",
	"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT":            "a request has ten seconds",
	"OTEL_TRACES_SAMPLER":                          "all traces are exported",
}

func ignoredVariableWarnings(getenv func(string) string) (warnings []string) {
	for name, reason := range ignoredVariables {
		if getenv(name) != "" {
			warnings = append(warnings, fmt.Sprintf("%s is ignored: %s", name, reason))
		}
	}
	if getenv("OTEL_METRICS_EXPORTER") == "otlp" {
		warnings = append(warnings, "OTEL_METRICS_EXPORTER is ignored: metrics are not sent: they are there to be fetched, from /v1/metrics")
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
