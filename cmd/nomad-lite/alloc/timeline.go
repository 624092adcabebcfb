package alloc

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/output"
	"github.com/nomad-lite/nomad-lite/runtime/timeline"
)

// allocTimeline is the reply of /v1/allocation/ID/timeline.
type allocTimeline struct {
	AllocID string
	Spans   []timeline.Span
}

func showTimeline(ctx context.Context, c *api.Client, alloc *api.Allocation, o statusOptions, s *cli.Streams) error {
	var reply allocTimeline
	if _, err := c.Raw().Query("/v1/allocation/"+alloc.ID+"/timeline", &reply, apiclient.QueryOptions(ctx, alloc.Namespace)); err != nil {
		return apiclient.WrapError(fmt.Sprintf("read the time line of allocation %q, which only agents of nomad-lite have", output.TruncateID(alloc.ID)), err)
	}
	return o.format.PrintValueOrPage(s, reply, func(p *output.Page) {
		if len(reply.Spans) == 0 {
			p.Line("No time line: the directory of the allocation was removed, or the allocation has not started")
			return
		}
		begin := reply.Spans[0].Start
		p.Line("Time line of allocation %s, from %s", output.ShortID(alloc.ID, o.verbose), begin.Format(time.RFC3339Nano))
		p.Line("")
		t := output.NewTable("After", "Duration", "Task", "Kind", "Name", "Plugin", "Result")
		for _, span := range reply.Spans {
			t.Row(formatElapsed(span.Start.Sub(begin)), formatSpanDuration(alloc, &span), cmp.Or(span.Task, "(group)"), string(span.Kind),
				formatSpanName(&span, o.verbose), cmp.Or(span.Plugin, noText), cmp.Or(formatSpanResult(&span), noText))
		}
		p.Table(t)
	})
}

// noText is shown in place of an empty text.
const noText = "-"

// formatElapsed returns a duration with three significant digits after its first unit.
func formatElapsed(d time.Duration) string {
	unit := time.Microsecond
	switch {
	case d >= time.Minute:
		unit = time.Second
	case d >= time.Second:
		unit = 10 * time.Millisecond
	case d >= time.Millisecond:
		unit = 10 * time.Microsecond
	}
	return d.Round(unit).String()
}

func formatSpanDuration(alloc *api.Allocation, s *timeline.Span) string {
	switch {
	case s.Kind == timeline.KindEvent:
		return noText
	case !s.End.IsZero():
		return formatElapsed(s.End.Sub(s.Start))
	case alloc.ClientTerminalStatus():
		return "unknown" // the agent was killed
	}
	return formatElapsed(time.Since(s.Start)) + ", not ended"
}

// formatSpanName returns the name of a span. The name of a run is shown in verbose output only, because it
// is as long as the row.
func formatSpanName(s *timeline.Span, verbose bool) string {
	if s.Kind == timeline.KindRun && !verbose {
		return noText
	}
	return s.Name
}

func formatSpanResult(s *timeline.Span) string {
	switch {
	case s.Error != "":
		return "error: " + s.Error
	case s.Dropped > 0:
		return fmt.Sprintf("%d spans were dropped", s.Dropped)
	}
	return s.Result
}
