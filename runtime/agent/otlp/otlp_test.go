package otlp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp/otlptest"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

func TestMain(m *testing.M) {
	batchDelay, closeTimeout, minRetryDelay = 20*time.Millisecond, 200*time.Millisecond, 20*time.Millisecond
	// The parallel tests wait and use no CPU time.
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

var testAlloc = &api.Allocation{ID: "01020304-0506-4708-890a-0b0c0d0e0f10", Name: "j.g[0]", Namespace: "default", JobID: "j", TaskGroup: "g"}

var testAgent = AgentFacts{Version: "1.2.3", NodeID: "n", NodeName: "node"}

func openExporter(t testing.TB, c Config) *TraceExporter {
	t.Helper()
	e, err := NewTraceExporter(c, testAgent, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// newFile returns a time line that exports its spans.
func newFile(t testing.TB, e *TraceExporter) *timeline.File {
	return timeline.NewFile(newAllocDir(t), e.NewAllocTrace(testAlloc), hclog.NewNullLogger())
}

// newAllocDir creates an allocation's empty directory.
func newAllocDir(t testing.TB) *allocdir.Dir {
	t.Helper()
	path := t.TempDir()
	dir, err := allocdir.New(filepath.Dir(path), filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSpansOfBothProtocols(t *testing.T) {
	for _, protocol := range []string{ProtocolHTTP, ProtocolGRPC} {
		t.Run(protocol, func(t *testing.T) {
			c := otlptest.New(t, protocol)
			config, warnings := Settings{Endpoint: c.URL, Protocol: protocol, Headers: map[string]string{"X-Key": "secret"}}.TraceConfigWithEnv(noEnv)
			if warnings != nil {
				t.Fatal(warnings)
			}
			e := openExporter(t, config)
			r := newFile(t, e).Recorder("web", nil)
			begin := time.Now().Add(-time.Minute)
			r.RecordAllocSpanEndingNow(tracespan.Placement, begin, "", false)
			hook := r.StartSpan(tracespan.KindHook, "prestart", "artifact")
			hook.End("done", nil)
			r.StartSpan(tracespan.KindDriver, "StartTask", "exec").End("", errors.New("no such file"))
			r.StartRunSpan("id/1", "exec", begin).EndRun("Exit Code: 3", &restart.RunEnd{ExitCode: 3})
			r.RecordEvent("Restarting", "in 1s", begin)
			e.Close()

			root := "890a0b0c0d0e0f10"
			for i, want := range []struct {
				name, parent, errorText string
				attributes              map[string]string
			}{
				{"placement", "", "", map[string]string{"nomad.kind": "alloc"}},
				{"hook prestart", root, "", map[string]string{"nomad.kind": "hook", "nomad.hook.point": "prestart", "nomad.plugin": "artifact", "nomad.result": "done"}},
				{"driver StartTask", root, "no such file", map[string]string{"nomad.kind": "driver", "nomad.driver.method": "StartTask", "nomad.plugin": "exec"}},
				{"run", root, "Exit Code: 3", map[string]string{"nomad.kind": "run", "nomad.task.run_id": "id/1", "nomad.plugin": "exec", "nomad.result": "Exit Code: 3"}},
				{"event Restarting", root, "", map[string]string{"nomad.kind": "event", "nomad.event.type": "Restarting", "nomad.result": "in 1s"}},
			} {
				spans := c.Spans()
				if len(spans) != 5 {
					t.Fatalf("%d spans were received, want 5", len(spans))
				}
				s := spans[i]
				for key, value := range map[string]string{
					"nomad.alloc.id": testAlloc.ID, "nomad.alloc.name": "j.g[0]", "nomad.namespace": "default", "nomad.job.id": "j", "nomad.group": "g", "nomad.task": "web",
				} {
					want.attributes[key] = value
				}
				if got := otlptest.StringAttributes(s); s.GetName() != want.name || !reflect.DeepEqual(got, want.attributes) {
					t.Errorf("span %q with %v, want %q with %v", s.GetName(), got, want.name, want.attributes)
				}
				if id := hex.EncodeToString(s.GetTraceId()); id != strings.ReplaceAll(testAlloc.ID, "-", "") {
					t.Errorf("trace id %s", id)
				}
				if got := hex.EncodeToString(s.GetParentSpanId()); got != want.parent || len(s.GetSpanId()) != 8 {
					t.Errorf("span %q: parent %q, want %q; id %x", want.name, got, want.parent, s.GetSpanId())
				}
				failed := s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR
				if failed != (want.errorText != "") || s.GetStatus().GetMessage() != want.errorText {
					t.Errorf("span %q: status %v, want error %q", want.name, s.GetStatus(), want.errorText)
				}
			}
			if id := hex.EncodeToString(c.Spans()[0].GetSpanId()); id != root {
				t.Errorf("id of the root is %s, want %s", id, root)
			}
			if got := c.Spans()[0]; got.GetEndTimeUnixNano()-got.GetStartTimeUnixNano() < uint64(time.Minute) {
				t.Errorf("the root lasted from %d to %d, want a minute", got.GetStartTimeUnixNano(), got.GetEndTimeUnixNano())
			}
			if got := c.RequestHeaders()[0]["x-key"]; len(got) != 1 || got[0] != "secret" {
				t.Errorf("header is %q", got)
			}
			for _, a := range c.ResourceSpans()[0].GetResource().GetAttributes() {
				if a.GetKey() == "service.name" && a.GetValue().GetStringValue() != "nomad-lite" {
					t.Errorf("service.name is %v", a.GetValue())
				}
			}
		})
	}
}

// A run that the next agent continues is one span, in the same trace.
func TestTraceContinuesUnderNextAgent(t *testing.T) {
	c := otlptest.NewHTTP(t, nil)
	var contexts []string
	for range 2 {
		e := openExporter(t, Config{CollectorURL: c.URL + "/v1/traces", TasksGetTraceparent: true})
		r := newFile(t, e).Recorder("web", nil)
		contexts = append(contexts, r.TaskTraceparent("id/1"))
		r.StartRunSpan("id/1", "exec", time.Now()).EndRun("Exit Code: 0", &restart.RunEnd{Success: true})
		e.Close()
	}
	spans := c.Spans()
	if len(spans) != 2 || !bytes.Equal(spans[0].GetSpanId(), spans[1].GetSpanId()) || contexts[0] != contexts[1] {
		t.Errorf("the agents exported %v and gave the task %q", spans, contexts)
	}
	if want := fmt.Sprintf("00-%x-%x-01", spans[0].GetTraceId(), spans[0].GetSpanId()); contexts[0] != want {
		t.Errorf("the task got %s, want %s", contexts[0], want)
	}
}

// An invalid or too large text does not make the whole batch invalid.
func TestHostileTexts(t *testing.T) {
	c := otlptest.NewHTTP(t, nil)
	e := openExporter(t, Config{CollectorURL: c.URL + "/v1/traces", ResourceAttributes: map[string]string{"a": strings.Repeat("x", 1<<20)}})
	alloc := *testAlloc
	alloc.ID, alloc.JobID, alloc.Name = "not a uuid", strings.Repeat("é", 1<<20), "\xff\x00\n"
	e.NewAllocTrace(&alloc).ExportEndedSpan(tracespan.Span{ID: "0102030405060708", Kind: "hook", Name: strings.Repeat("\xff", 1<<20), Error: strings.Repeat("世", 1<<20), End: time.Unix(-5, 0)})
	e.Close()
	spans := c.Spans()
	if len(spans) != 1 {
		t.Fatalf("%d spans, want 1", len(spans))
	}
	for key, value := range otlptest.StringAttributes(spans[0]) {
		if len(value) > 3*maxValue {
			t.Errorf("attribute %s has %d bytes", key, len(value))
		}
	}
	if s := spans[0]; len(s.GetName()) > 3*maxValue || len(s.GetStatus().GetMessage()) > maxValue || len(s.GetTraceId()) != 16 {
		t.Errorf("name of %d bytes, message of %d, trace id %x", len(s.GetName()), len(s.GetStatus().GetMessage()), s.GetTraceId())
	}
}

// waitSpans returns when a collector has received a number of spans, or after ten seconds.
func waitSpans(c *otlptest.Collector, count int) {
	for deadline := time.Now().Add(10 * time.Second); len(c.Spans()) < count && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
}

// A batch is sent again after an answer that allows it, and is lost after others.
func TestAnswersOfCollector(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		want   int // spans in both batches
	}{
		{"503 is temporary", http.StatusServiceUnavailable, 2},
		{"429 is temporary", http.StatusTooManyRequests, 2},
		{"500 loses the batch", http.StatusInternalServerError, 1},
		{"a redirect is not followed", http.StatusTemporaryRedirect, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			elsewhere := otlptest.NewHTTP(t, nil)
			var requests atomic.Int32
			first := make(chan struct{})
			c := otlptest.NewHTTP(t, func(w http.ResponseWriter, r *http.Request) bool {
				if requests.Add(1) > 1 {
					return false
				}
				w.Header().Set("Location", elsewhere.URL+"/v1/traces")
				w.WriteHeader(test.status)
				close(first)
				return true
			})
			e := openExporter(t, Config{CollectorURL: c.URL + "/v1/traces", Headers: map[string]string{"x-key": "secret"}})
			r := newFile(t, e).Recorder("", nil)
			r.RecordEvent("first", "", time.Now())
			<-first
			r.RecordEvent("second", "", time.Now())
			waitSpans(c, test.want)
			e.Close()
			if got := len(c.Spans()); got != test.want {
				t.Errorf("%d spans, want %d", got, test.want)
			}
			if len(elsewhere.RequestHeaders()) > 0 {
				t.Error("the redirect was followed")
			}
		})
	}
}

// A collector that is unreachable, unresponsive or always rejecting costs the agent no time and limited memory, and nothing
// remains of the exporter.
func TestUnusableCollectors(t *testing.T) {
	failing := otlptest.NewHTTP(t, func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	closedURL := otlptest.ClosedURL(t)
	for _, test := range []struct {
		name, url, protocol string
		closeLimit          time.Duration
	}{
		{"connection refused", closedURL, ProtocolHTTP, time.Second},
		{"connection refused over gRPC", closedURL, ProtocolGRPC, time.Second},
		{"no answer", otlptest.NewHanging(t).URL, ProtocolHTTP, closeTimeout + time.Second},
		{"no answer over gRPC", otlptest.SilentURL(t), ProtocolGRPC, closeTimeout + time.Second},
		{"500", failing.URL, ProtocolHTTP, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			e := openExporter(t, Config{CollectorURL: test.url, Protocol: test.protocol})
			trace := e.NewAllocTrace(testAlloc)
			begin := time.Now()
			for range 10 * maxQueue {
				trace.ExportEndedSpan(tracespan.Span{ID: "0102030405060708", Kind: tracespan.KindEvent, Name: "Started"})
			}
			const limit = 20 * time.Second // less than if each span waited a millisecond for the collector
			if took := time.Since(begin); took > limit {
				t.Errorf("%d spans took %v, want less than %v", 10*maxQueue, took, limit)
			}
			time.Sleep(2 * batchDelay) // a request is made
			for range 10 * maxQueue {
				trace.ExportEndedSpan(tracespan.Span{ID: "0102030405060708", Kind: tracespan.KindEvent, Name: "Started"})
			}
			if n := e.queueLen(); n > maxQueue {
				t.Errorf("%d spans are kept, want at most %d", n, maxQueue)
			}
			begin = time.Now()
			e.Close()
			if took := time.Since(begin); took > test.closeLimit {
				t.Errorf("Close took %v, want at most %v", took, test.closeLimit)
			}
			trace.ExportEndedSpan(tracespan.Span{ID: "0102030405060708"}) // is ignored
			if n := e.queueLen(); n != 0 {
				t.Errorf("%d spans are kept after Close", n)
			}
			for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before+2; time.Sleep(10 * time.Millisecond) { // the server has separate goroutines for an open connection
				if time.Now().After(deadline) {
					stacks := make([]byte, 1<<20)
					t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
				}
			}
		})
	}
}

// A collector that returns after an outage gets the outage's spans.
func TestCollectorReturns(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	refused := make(chan struct{}, 1)
	c := otlptest.NewHTTP(t, func(w http.ResponseWriter, _ *http.Request) bool {
		if !down.Load() {
			return false
		}
		w.WriteHeader(503)
		select {
		case refused <- struct{}{}:
		default:
		}
		return true
	})
	e := openExporter(t, Config{CollectorURL: c.URL + "/v1/traces"})
	trace := e.NewAllocTrace(testAlloc)
	for range maxQueue {
		trace.ExportEndedSpan(tracespan.Span{ID: "0102030405060708"})
	}
	<-refused
	down.Store(false)
	waitSpans(c, maxQueue)
	if got := len(c.Spans()); got != maxQueue {
		t.Errorf("%d spans, want %d", got, maxQueue)
	}
}

// notifyWriter receives a value when a log has a text.
type notifyWriter struct {
	text  string
	found chan struct{}
}

func (w notifyWriter) Write(line []byte) (int, error) {
	if strings.Contains(string(line), w.text) {
		select {
		case w.found <- struct{}{}:
		default:
		}
	}
	return len(line), nil
}

// A collector that refuses connections while it restarts gets the spans from that time.
func TestRefusedConnectionsLoseNoSpans(t *testing.T) {
	collector := otlptest.NewHTTP(t, nil)
	target, err := url.Parse(collector.URL)
	if err != nil {
		t.Fatal(err)
	}
	closedURL := otlptest.ClosedURL(t)
	log := notifyWriter{"connection refused", make(chan struct{}, 1)}
	e, err := NewTraceExporter(Config{CollectorURL: closedURL + "/v1/traces"}, testAgent, hclog.New(&hclog.LoggerOptions{Output: log}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	e.NewAllocTrace(testAlloc).ExportEndedSpan(tracespan.Span{ID: "0102030405060708"})
	select {
	case <-log.found:
	case <-time.After(10 * time.Second):
		t.Fatal("the log has no refused connection")
	}
	listener, err := net.Listen("tcp", strings.TrimPrefix(closedURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	restarted := &httptest.Server{Listener: listener, Config: &http.Server{Handler: httputil.NewSingleHostReverseProxy(target)}}
	restarted.Start()
	t.Cleanup(restarted.Close)
	waitSpans(collector, 1)
	if got := len(collector.Spans()); got != 1 {
		t.Errorf("%d spans, want 1", got)
	}
}

// Neither headers nor what a collector sends is logged.
func TestLogHasNoSecrets(t *testing.T) {
	const secret = "s3cr3t"
	var log bytes.Buffer
	var mu sync.Mutex
	c := otlptest.NewHTTP(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "bad key "+r.Header.Get("x-key"), http.StatusForbidden)
		return true
	})
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &log, Mutex: &mu})
	env := mapEnv(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=" + secret})
	config, _ := Settings{}.TraceConfigWithEnv(env)
	e, err := NewTraceExporter(config, AgentFacts{}, logger)
	if err != nil {
		t.Fatal(err)
	}
	e.NewAllocTrace(testAlloc).ExportEndedSpan(tracespan.Span{ID: "0102030405060708"})
	e.Close()
	if text := log.String(); strings.Contains(text, secret) || !strings.Contains(text, "403") {
		t.Errorf("log:\n%s", text)
	}
}

func lostSpans() float64 {
	set := metrics.NewSet(&metrics.Settings{})
	set.AddInstruments("")
	for _, f := range set.Families() {
		if f.GetName() == "nomad_lite_otlp_lost_spans_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return -1
}

func TestLostSpansAreCounted(t *testing.T) {
	c := otlptest.NewHTTP(t, func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	e := openExporter(t, Config{CollectorURL: c.URL + "/v1/traces"})
	before := lostSpans()
	for range maxQueue + 5 {
		e.NewAllocTrace(testAlloc).ExportEndedSpan(tracespan.Span{ID: "0102030405060708"})
	}
	e.Close()
	if n := lostSpans() - before; n != maxQueue+5 {
		t.Errorf("%v lost spans were counted, want %d", n, maxQueue+5)
	}
}

func noEnv(string) string { return "" }

func mapEnv(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

// checkConfig compares a configuration, and checks that the warnings contain a text, and no secrets. Without the text there must
// be no warnings.
func checkConfig(t *testing.T, got Config, warnings []string, want Config, warning string) {
	t.Helper()
	if len(got.Headers) == 0 {
		got.Headers = nil
	}
	if len(got.ResourceAttributes) == 0 {
		got.ResourceAttributes = nil
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if text := strings.Join(warnings, "\n"); !strings.Contains(text, warning) || text != "" && warning == "" || strings.Contains(text, "s3cr3t") {
		t.Errorf("warnings %q, want %q", text, warning)
	}
}

func TestSettingsWithEnv(t *testing.T) {
	const httpURL, grpcURL = "http://a:4318", "http://b:4317"
	for _, test := range []struct {
		name     string
		settings Settings
		env      map[string]string
		want     Config
		warning  string
	}{
		{name: "nothing is exported by default"},
		{name: "headers alone export nothing", env: map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "a=b"}},
		{name: "endpoint of the file", settings: Settings{Endpoint: httpURL + "/"}, want: Config{CollectorURL: httpURL + "/v1/traces", Protocol: ProtocolHTTP}},
		{name: "base path", settings: Settings{Endpoint: httpURL + "/x"}, want: Config{CollectorURL: httpURL + "/x/v1/traces", Protocol: ProtocolHTTP}},
		{name: "endpoint of the environment", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": httpURL}, want: Config{CollectorURL: httpURL + "/v1/traces", Protocol: ProtocolHTTP}},
		{name: "the endpoint for traces is used as it is", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": httpURL, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/x"}, want: Config{CollectorURL: "https://c/x", Protocol: ProtocolHTTP}},
		{name: "gRPC", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": grpcURL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, want: Config{CollectorURL: grpcURL, Protocol: ProtocolGRPC}},
		{name: "default endpoint", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, want: Config{CollectorURL: "http://localhost:4318/v1/traces", Protocol: ProtocolHTTP}},
		{
			name:     "the file beats the environment",
			settings: Settings{Endpoint: httpURL, Protocol: ProtocolHTTP, Headers: map[string]string{"a": "file"}},
			env:      map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": grpcURL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_HEADERS": "a=env"},
			want:     Config{CollectorURL: httpURL + "/v1/traces", Protocol: ProtocolHTTP, Headers: map[string]string{"a": "file"}},
		},
		{
			name:     "the environment completes the file",
			settings: Settings{Endpoint: httpURL},
			env:      map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20x , b = c", "OTEL_SERVICE_NAME": "n", "OTEL_RESOURCE_ATTRIBUTES": "k=v,service.name=m"},
			want: Config{CollectorURL: httpURL + "/v1/traces", Protocol: ProtocolHTTP, Headers: map[string]string{"Authorization": "Bearer x", "b": "c"}, ServiceName: "n",
				ResourceAttributes: map[string]string{"k": "v", "service.name": "m"}},
		},
		{name: "switched off", settings: Settings{Endpoint: httpURL}, env: map[string]string{"OTEL_SDK_DISABLED": "true"}},
		{name: "no exporter", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": httpURL, "OTEL_TRACES_EXPORTER": "none"}},
		{name: "another exporter", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": httpURL, "OTEL_TRACES_EXPORTER": "zipkin"}, warning: `OTEL_TRACES_EXPORTER is "zipkin"`},
		{name: "another protocol", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": httpURL, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, warning: `OTEL_EXPORTER_OTLP_PROTOCOL: "http/json" is not supported`},
		{name: "no URL", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "s3cr3t:4317"}, warning: "OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL"},
		{name: "secret in the URL", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:s3cr3t@a"}, warning: "must have no user"},
		{name: "no list", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": httpURL, "OTEL_EXPORTER_OTLP_HEADERS": "a=b,s3cr3t"}, warning: "OTEL_EXPORTER_OTLP_HEADERS: item 2 is not name=value"},
		{name: "no header", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": httpURL, "OTEL_EXPORTER_OTLP_HEADERS": "a=s3cr3t%0a"}, warning: `OTEL_EXPORTER_OTLP_HEADERS: the value of header "a"`},
		{
			name: "variable without an effect", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": httpURL, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
			want: Config{CollectorURL: httpURL + "/v1/traces", Protocol: ProtocolHTTP}, warning: "OTEL_EXPORTER_OTLP_COMPRESSION is ignored",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, warnings := test.settings.TraceConfigWithEnv(mapEnv(test.env))
			checkConfig(t, got, warnings, test.want, test.warning)
		})
	}
}

// FuzzParse checks that no text makes the parsers panic, and that a parsed list has valid headers or an error.
func FuzzParse(f *testing.F) {
	f.Add("a=b,c=d%20e", protowire.AppendBytes([]byte{1<<3 | 2}, protowire.AppendVarint([]byte{1 << 3}, 7)))
	f.Add("a", []byte{0xff})
	f.Fuzz(func(t *testing.T, list string, response []byte) {
		if _, err := parseKeyValueList(list); err != nil && len(err.Error()) > 80 {
			t.Errorf("%q: the error repeats the text: %v", list, err)
		}
		if n := rejectedItemCount(response); n < 0 {
			t.Errorf("%x: %d rejected items", response, n)
		}
	})
}

func TestRejectedItems(t *testing.T) {
	partial := protowire.AppendBytes([]byte{2<<3 | 2}, []byte("reason"))
	partial = protowire.AppendVarint(append(partial, 1<<3), 7)
	if n := rejectedItemCount(protowire.AppendBytes([]byte{1<<3 | 2}, partial)); n != 7 {
		t.Errorf("got %d, want 7", n)
	}
	if n := rejectedItemCount(nil); n != 0 {
		t.Errorf("an empty response: got %d, want 0", n)
	}
}

// BenchmarkSpan compares an unrecorded call, a call in the time line, and an exported call.
func BenchmarkSpan(b *testing.B) {
	record := func(b *testing.B, r timeline.Recorder) {
		b.ReportAllocs()
		for b.Loop() {
			r.StartSpan(tracespan.KindHook, "prestart", "artifact").End("", nil)
		}
	}
	b.Run("none", func(b *testing.B) { record(b, timeline.Recorder{}) })
	b.Run("time line", func(b *testing.B) {
		f := timeline.NewFile(newAllocDir(b), nil, hclog.NewNullLogger())
		defer f.Close()
		record(b, f.Recorder("web", nil))
	})
	b.Run("exported", func(b *testing.B) {
		e := openExporter(b, Config{CollectorURL: otlptest.NewHTTP(b, nil).URL + "/v1/traces"})
		f := newFile(b, e)
		defer f.Close()
		record(b, f.Recorder("web", nil))
	})
}
