package tables

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/duration"
	"github.com/nomad-lite/nomad-lite/runtime/explain/spansummary"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// AllocTimeline is the reply of /v1/allocation/ID/timeline.
type AllocTimeline struct {
	AllocID string
	Spans   []tracespan.Span
	Summary spansummary.Summary // has no texts from an agent before version 0.2
}

// ReadTimeline requests the timeline of an allocation from an agent of nomad-lite.
func ReadTimeline(ctx context.Context, c *api.Client, allocID, namespace string) (*AllocTimeline, error) {
	var reply AllocTimeline
	if _, err := c.Raw().Query("/v1/allocation/"+allocID+"/timeline", &reply, apiclient.QueryOptions(ctx, namespace)); err != nil {
		return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read the time line of allocation %q, which only agents of nomad-lite have", output.TruncateID(allocID)), err)
	}
	return &reply, nil
}

// Print adds a table of the spans. If the allocation has ended, the duration of a span without an end is unknown;
// otherwise the span still lasts.
func (a *AllocTimeline) Print(p *output.Page, allocEnded, verbose bool) {
	if len(a.Spans) == 0 {
		p.AddLine("No time line: the directory of the allocation was removed, or the allocation has not started")
		return
	}
	begin := a.Spans[0].Start
	p.AddLine("Time line of allocation %s, from %s", output.ShortIDUnlessVerbose(a.AllocID, verbose), begin.Format(time.RFC3339Nano))
	p.AddLine("")
	t := output.NewTable("After", "Duration", "Task", "Kind", "Name", "Plugin", "Result")
	for _, span := range a.Spans {
		t.AddRow(duration.Format(span.Start.Sub(begin)), formatSpanDuration(&span, allocEnded), cmp.Or(span.Task, groupName), string(span.Kind),
			formatSpanName(&span, verbose), cmp.Or(span.Plugin, noText), cmp.Or(formatSpanResult(&span), noText))
	}
	p.AddTable(t)
}

// noText is shown in place of an empty text.
const noText = "-"

func formatSpanDuration(s *tracespan.Span, allocEnded bool) string {
	switch {
	case s.Kind == tracespan.KindEvent:
		return noText
	case !s.End.IsZero():
		return duration.Format(s.End.Sub(s.Start))
	case allocEnded:
		return "unknown" // the agent was killed before it recorded the end
	}
	return duration.Format(time.Since(s.Start)) + ", not ended"
}

// formatSpanName returns the name of a span, or "-" for the name of a run without verbose, because that name is too
// long for the table.
func formatSpanName(s *tracespan.Span, verbose bool) string {
	if s.Kind == tracespan.KindRun && !verbose {
		return noText
	}
	return s.Name
}

func formatSpanResult(s *tracespan.Span) string {
	switch {
	case s.Error != "":
		return "error: " + s.Error
	case s.Dropped > 0:
		return fmt.Sprintf("%d spans were dropped", s.Dropped)
	}
	return s.Result
}
