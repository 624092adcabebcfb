// Package otlptest has collectors for tests of programs that export traces and metrics.
package otlptest

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Collector keeps the spans and metrics that it receives. Its methods may be called concurrently.
type Collector struct {
	URL string // endpoint for programs

	mu              sync.Mutex
	resourceSpans   []*tracepb.ResourceSpans
	resourceMetrics []*metricspb.ResourceMetrics
	requestHeaders  []map[string][]string // of each request, in lower case
}

// messages has the type of the request for each HTTP path and each gRPC method.
var messages = map[string]proto.Message{
	"/v1/traces":  (*tracepb.TracesData)(nil),
	"/v1/metrics": (*metricspb.MetricsData)(nil),
	"/opentelemetry.proto.collector.trace.v1.TraceService/Export":     (*tracepb.TracesData)(nil),
	"/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": (*metricspb.MetricsData)(nil),
}

// NewHTTP starts a collector for OTLP over HTTP, which ends with the test. The collector first calls replyInstead, which may be
// nil. If replyInstead returns true, it has replied to the request, and the collector does not store the content of the request.
func NewHTTP(t testing.TB, replyInstead func(http.ResponseWriter, *http.Request) bool) *Collector {
	c := new(Collector)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if replyInstead != nil && replyInstead(w, r) {
			return
		}
		message := messages[r.URL.Path]
		switch {
		case err != nil:
			return // the program under test has closed the connection
		case message == nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-protobuf":
			t.Errorf("request %s %s with content type %q", r.Method, r.URL, r.Header.Get("Content-Type"))
			return
		}
		message = message.ProtoReflect().New().Interface()
		if proto.Unmarshal(body, message) != nil {
			t.Errorf("request of %d bytes is not OTLP", len(body))
		}
		c.addRequest(message, r.Header)
	}))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// New starts a collector for a protocol, "grpc" or "http/protobuf", which ends with the test.
func New(t testing.TB, protocol string) *Collector {
	if protocol == "grpc" {
		return NewGRPC(t)
	}
	return NewHTTP(t, nil)
}

// NewHanging starts a collector for OTLP over HTTP that receives requests and never answers. It ends with the test.
func NewHanging(t testing.TB) *Collector {
	released := make(chan struct{})
	c := NewHTTP(t, func(http.ResponseWriter, *http.Request) bool { <-released; return true })
	t.Cleanup(func() { close(released) })
	return c
}

// SilentURL returns the URL of a port that accepts connections and sends no data until the test ends.
func SilentURL(t testing.TB) string {
	l := listenOnLoopback(t)
	t.Cleanup(func() { l.Close() })
	return "http://" + l.Addr().String()
}

// ClosedURL returns the URL of a port without a listener.
func ClosedURL(t testing.TB) string {
	l := listenOnLoopback(t)
	l.Close()
	return "http://" + l.Addr().String()
}

func listenOnLoopback(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// NewGRPC starts a collector for OTLP over gRPC, which ends with the test.
func NewGRPC(t testing.TB) *Collector {
	c := new(Collector)
	handle := func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		message := messages[method]
		if message == nil {
			t.Errorf("call of %s", method)
			return status.Error(codes.Unimplemented, method)
		}
		message = message.ProtoReflect().New().Interface()
		if err := stream.RecvMsg(message); err != nil {
			return err
		}
		headers, _ := metadata.FromIncomingContext(stream.Context())
		c.addRequest(message, headers)
		return stream.SendMsg(new(emptypb.Empty))
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(handle))
	l := listenOnLoopback(t)
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { server.Stop(); served.Wait() })
	c.URL = "http://" + l.Addr().String()
	return c
}

func (c *Collector) addRequest(message proto.Message, headers map[string][]string) {
	lower := make(map[string][]string)
	for name, values := range headers {
		lower[strings.ToLower(name)] = values
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m := message.(type) {
	case *tracepb.TracesData:
		c.resourceSpans = append(c.resourceSpans, m.GetResourceSpans()...)
	case *metricspb.MetricsData:
		c.resourceMetrics = append(c.resourceMetrics, m.GetResourceMetrics()...)
	}
	c.requestHeaders = append(c.requestHeaders, lower)
}

// Spans returns all spans in the order in which they were received.
func (c *Collector) Spans() (spans []*tracepb.Span) {
	for _, r := range c.ResourceSpans() {
		for _, s := range r.GetScopeSpans() {
			spans = append(spans, s.GetSpans()...)
		}
	}
	return spans
}

// Metrics returns all metrics in the order in which they were received.
func (c *Collector) Metrics() (all []*metricspb.Metric) {
	for _, r := range c.ResourceMetrics() {
		for _, s := range r.GetScopeMetrics() {
			all = append(all, s.GetMetrics()...)
		}
	}
	return all
}

// ResourceMetrics returns the metrics of all requests.
func (c *Collector) ResourceMetrics() []*metricspb.ResourceMetrics {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resourceMetrics[:len(c.resourceMetrics):len(c.resourceMetrics)]
}

// ResourceSpans returns the spans of all requests.
func (c *Collector) ResourceSpans() []*tracepb.ResourceSpans {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resourceSpans[:len(c.resourceSpans):len(c.resourceSpans)]
}

// RequestHeaders returns the headers of all requests, with names in lower case.
func (c *Collector) RequestHeaders() []map[string][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requestHeaders[:len(c.requestHeaders):len(c.requestHeaders)]
}

// StringAttributes returns the attributes of a span or a value.
func StringAttributes(s interface{ GetAttributes() []*commonpb.KeyValue }) map[string]string {
	attributes := make(map[string]string)
	for _, a := range s.GetAttributes() {
		attributes[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return attributes
}
