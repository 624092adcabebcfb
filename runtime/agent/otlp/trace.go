package otlp

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
)

// Trace is the trace of one allocation. It implements timeline.Trace.
type Trace struct {
	exporter   *Exporter
	id         [16]byte
	attributes []*commonpb.KeyValue // of each span; not changed
}

var _ timeline.Trace = (*Trace)(nil)

// Trace returns the trace of an allocation. Its id is the id of the allocation, so that each agent that
// runs the allocation continues the trace.
func (e *Exporter) Trace(alloc *api.Allocation) *Trace {
	t := &Trace{exporter: e, attributes: []*commonpb.KeyValue{
		attribute("nomad.alloc.id", alloc.ID),
		attribute("nomad.alloc.name", alloc.Name),
		attribute("nomad.namespace", alloc.Namespace),
		attribute("nomad.job.id", alloc.JobID),
		attribute("nomad.group", alloc.TaskGroup),
	}}
	if alloc.DeploymentID != "" {
		t.attributes = append(t.attributes, attribute("nomad.deployment.id", alloc.DeploymentID))
	}
	if id, err := uuid.Parse(alloc.ID); err == nil {
		t.id = id
	} else {
		h := fnv.New128a()
		h.Write([]byte(alloc.ID))
		copy(t.id[:], h.Sum(nil))
	}
	return t
}

// rootID returns the id of the root span: the second half of the trace id. Each agent computes the same id,
// so that all spans have their parent.
func (t *Trace) rootID() []byte { return t.id[8:] }

// Export implements timeline.Trace.
func (t *Trace) Export(s tracespan.Span) { t.exporter.add(queuedSpan{t, s}) }

// ForTasks implements timeline.Trace.
func (t *Trace) ForTasks() bool { return t.exporter.config.TaskTraceparent }

// Traceparent implements timeline.Trace.
func (t *Trace) Traceparent(spanID string) string {
	return fmt.Sprintf("00-%x-%s-01", t.id, spanID)
}

// encode returns a span of the time line as a span of the trace.
func (t *Trace) encode(s *tracespan.Span) *tracepb.Span {
	id, _ := hex.DecodeString(s.ID) // the recorder makes valid ids
	encoded := &tracepb.Span{
		TraceId:           t.id[:],
		SpanId:            id,
		ParentSpanId:      t.rootID(),
		Name:              spanName(s),
		Kind:              tracepb.Span_SPAN_KIND_INTERNAL,
		StartTimeUnixNano: unixNano(s.Start),
		EndTimeUnixNano:   max(unixNano(s.Start), unixNano(s.End)), // the clock can have been set back between them
		Flags:             1,                                       // sampled
		Attributes:        slices.Clone(t.attributes),
	}
	switch {
	case s.Kind == tracespan.KindAlloc && s.Name == tracespan.Placement:
		encoded.SpanId, encoded.ParentSpanId = t.rootID(), nil
	case s.Kind == tracespan.KindHook, s.Kind == tracespan.KindDriver:
		encoded.Kind = tracepb.Span_SPAN_KIND_CLIENT
	}
	for _, a := range []struct{ key, value string }{
		{"nomad.task", s.Task},
		{"nomad.kind", string(s.Kind)},
		{nameAttributes[s.Kind], s.Name},
		{"nomad.plugin", s.Plugin},
		{"nomad.result", s.Result},
	} {
		if a.key != "" && a.value != "" {
			encoded.Attributes = append(encoded.Attributes, attribute(a.key, a.value))
		}
	}
	switch {
	case s.Error != "":
		encoded.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: clip(s.Error)}
	case s.Failed:
		encoded.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: clip(s.Result)}
	}
	return encoded
}

// nameAttributes are the attributes with the names of spans.
var nameAttributes = map[tracespan.Kind]string{
	tracespan.KindHook:   "nomad.hook.point",
	tracespan.KindDriver: "nomad.driver.method",
	tracespan.KindWait:   "nomad.wait.reason",
	tracespan.KindRun:    "nomad.task.run_id",
	tracespan.KindEvent:  "nomad.event.type",
}

// spanName returns the name of a span. There are few names, because users group spans by name.
func spanName(s *tracespan.Span) string {
	switch s.Kind {
	case tracespan.KindRun:
		return "run"
	case tracespan.KindAlloc:
		return clip(s.Name)
	}
	return clip(string(s.Kind) + " " + s.Name)
}

func unixNano(t time.Time) uint64 { return uint64(max(t.UnixNano(), 0)) }

// maxValue is the maximum size in bytes of the name of a span and of an attribute.
const maxValue = 1000

// clip returns a text that a message can contain: valid UTF-8 of limited size. One invalid text would make
// the whole message invalid.
func clip(text string) string {
	if len(text) > maxValue {
		end := maxValue
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func attribute(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clip(value)}}}
}

// newResource describes the agent. Attributes of the environment replace others.
func newResource(c Config, a Agent) *resourcepb.Resource {
	values := map[string]string{
		"service.name": "nomad-lite", "service.version": a.Version, "service.instance.id": a.NodeID, "host.name": a.Host,
		"nomad.node.id": a.NodeID, "nomad.node.name": a.NodeName, "nomad.datacenter": a.Datacenter, "nomad.region": a.Region,
	}
	maps.Copy(values, c.ResourceAttributes)
	if c.ServiceName != "" {
		values["service.name"] = c.ServiceName
	}
	r := new(resourcepb.Resource)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		r.Attributes = append(r.Attributes, attribute(clip(key), values[key]))
	}
	return r
}

func newTracesData(resource *resourcepb.Resource, version string, spans []*tracepb.Span) *tracepb.TracesData {
	return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource: resource,
		ScopeSpans: []*tracepb.ScopeSpans{{
			Scope: newScope(version),
			Spans: spans,
		}},
	}}}
}

func newScope(version string) *commonpb.InstrumentationScope {
	return &commonpb.InstrumentationScope{Name: "github.com/nomad-lite/nomad-lite", Version: version}
}
