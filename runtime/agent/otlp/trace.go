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

	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// AllocTrace is one allocation's trace. It implements timeline.Trace.
type AllocTrace struct {
	exporter   *TraceExporter
	traceID    [16]byte
	attributes []*commonpb.KeyValue // attributes for each span in the allocation; never changed
}

var _ timeline.Trace = (*AllocTrace)(nil)

// NewAllocTrace returns an allocation's trace. The trace id is the allocation id, so each agent running the allocation continues
// the trace.
func (e *TraceExporter) NewAllocTrace(alloc *api.Allocation) *AllocTrace {
	t := &AllocTrace{exporter: e, attributes: []*commonpb.KeyValue{
		newStringAttribute("nomad.alloc.id", alloc.ID),
		newStringAttribute("nomad.alloc.name", alloc.Name),
		newStringAttribute("nomad.namespace", alloc.Namespace),
		newStringAttribute("nomad.job.id", alloc.JobID),
		newStringAttribute("nomad.group", alloc.TaskGroup),
	}}
	if alloc.DeploymentID != "" {
		t.attributes = append(t.attributes, newStringAttribute("nomad.deployment.id", alloc.DeploymentID))
	}
	if id, err := uuid.Parse(alloc.ID); err == nil {
		t.traceID = id
	} else {
		h := fnv.New128a()
		h.Write([]byte(alloc.ID))
		copy(t.traceID[:], h.Sum(nil))
	}
	return t
}

// rootSpanID returns the root span's id, which is the second half of the trace id. Each agent computes the same id, so a later
// agent's spans have the same parent.
func (t *AllocTrace) rootSpanID() []byte { return t.traceID[8:] }

// ExportEndedSpan implements timeline.Trace.
func (t *AllocTrace) ExportEndedSpan(s tracespan.Span) { t.exporter.enqueueOrDrop(queuedSpan{t, s}) }

// TasksGetTraceparent implements timeline.Trace.
func (t *AllocTrace) TasksGetTraceparent() bool { return t.exporter.config.TasksGetTraceparent }

// Traceparent implements timeline.Trace.
func (t *AllocTrace) Traceparent(spanID string) string {
	return fmt.Sprintf("00-%x-%s-01", t.traceID, spanID)
}

// encodeSpan returns a time line span as a trace span.
func (t *AllocTrace) encodeSpan(s *tracespan.Span) *tracepb.Span {
	id, _ := hex.DecodeString(s.ID) // cannot fail, because package timeline makes valid ids
	encoded := &tracepb.Span{
		TraceId:           t.traceID[:],
		SpanId:            id,
		ParentSpanId:      t.rootSpanID(),
		Name:              spanName(s),
		Kind:              tracepb.Span_SPAN_KIND_INTERNAL,
		StartTimeUnixNano: unixNano(s.Start),
		EndTimeUnixNano:   max(unixNano(s.Start), unixNano(s.End)), // the clock may have been set back between them
		Flags:             1,                                       // a trace context's flag "sampled"
		Attributes:        slices.Clone(t.attributes),
	}
	switch {
	case s.Kind == tracespan.KindAlloc && s.Name == tracespan.Placement:
		encoded.SpanId, encoded.ParentSpanId = t.rootSpanID(), nil
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
			encoded.Attributes = append(encoded.Attributes, newStringAttribute(a.key, a.value))
		}
	}
	switch {
	case s.Error != "":
		encoded.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: clipToUTF8(s.Error)}
	case s.Failed:
		encoded.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: clipToUTF8(s.Result)}
	}
	return encoded
}

// nameAttributes has the attribute key of the span's name for each kind of span.
var nameAttributes = map[tracespan.Kind]string{
	tracespan.KindHook:   "nomad.hook.point",
	tracespan.KindDriver: "nomad.driver.method",
	tracespan.KindWait:   "nomad.wait.reason",
	tracespan.KindRun:    "nomad.task.run_id",
	tracespan.KindEvent:  "nomad.event.type",
}

// spanName returns a span's name. Names have no ids, because users group spans by name.
func spanName(s *tracespan.Span) string {
	switch s.Kind {
	case tracespan.KindRun:
		return "run"
	case tracespan.KindAlloc:
		return clipToUTF8(s.Name)
	}
	return clipToUTF8(string(s.Kind) + " " + s.Name)
}

func unixNano(t time.Time) uint64 { return uint64(max(t.UnixNano(), 0)) }

// maxValue is the maximum size in bytes of a span name and of an attribute.
const maxValue = 1000

// clipToUTF8 returns a text that a message can contain: valid UTF-8 of limited size. One invalid text would make the whole
// message invalid.
func clipToUTF8(text string) string {
	if len(text) > maxValue {
		end := maxValue
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func newStringAttribute(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clipToUTF8(value)}}}
}

// newResource describes the agent. Attributes from the environment replace others.
func newResource(c Config, a AgentFacts) *resourcepb.Resource {
	values := map[string]string{
		"service.name": "nomad-lite", "service.version": a.Version, "service.instance.id": a.NodeID, "host.name": a.HostName,
		"nomad.node.id": a.NodeID, "nomad.node.name": a.NodeName, "nomad.datacenter": a.Datacenter, "nomad.region": a.Region,
	}
	maps.Copy(values, c.ResourceAttributes)
	if c.ServiceName != "" {
		values["service.name"] = c.ServiceName
	}
	r := new(resourcepb.Resource)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		r.Attributes = append(r.Attributes, newStringAttribute(clipToUTF8(key), values[key]))
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
