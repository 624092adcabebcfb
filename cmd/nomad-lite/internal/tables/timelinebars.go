package tables

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/duration"
	"github.com/nomad-lite/nomad-lite/runtime/explain/spansummary"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

const (
	barPageWidth        = 80 // columns of the table with the bars, unless its texts need more
	minBarWidth         = 16
	maxBarWidth         = 48
	columnGap           = 2
	barMarks            = ".-=x" // mark of a wait, a call, a run and the end of a failed run or call; a later one hides an earlier one
	barWait, barCall    = 0, 1
	barRun, barFailed   = 2, 3
	barLegend           = ". wait   - hook or driver call   = run   x3 failed, with exit code 3"
	maxLongestNameWidth = 24
	maxRunsWidth        = 22
	groupName           = "(group)" // name of the line of the allocation itself
)

// taskBar is the line of one task, or of the group.
type taskBar struct {
	name, runs, longest string
	spans               []tracespan.Span
}

// PrintBars adds the sentence about the problem, a table with one bar for each task, and the sentences about the tasks. If the allocation has ended, spans without an end have no duration; otherwise
// they last until now.
func (a *AllocTimeline) PrintBars(p *output.Page, allocEnded bool, now time.Time, verbose bool) {
	if len(a.Spans) == 0 {
		p.AddLine("No time line: the directory of the allocation was removed, or the allocation has not started")
		return
	}
	begin := a.Spans[0].Start
	total := timelineEnd(a.Spans, allocEnded, now).Sub(begin)
	p.AddLine("Time line of allocation %s, from %s, %s", output.ShortIDUnlessVerbose(a.AllocID, verbose), begin.Format(time.RFC3339), duration.Format(total))
	if a.Summary.Problem.Text != "" {
		p.AddLine("%s", p.FormatCell(a.Summary.Problem.Format(now)))
	}
	p.AddLine("")
	bars := newTaskBars(a.Spans, allocEnded, now)
	titles := []string{"Task", "Time", "Runs", "Longest Step"}
	width := barPageWidth - columnGap*3
	for column, text := range []func(taskBar) string{0: func(b taskBar) string { return b.name }, 2: func(b taskBar) string { return b.runs }, 3: func(b taskBar) string { return b.longest }} {
		if text == nil {
			continue
		}
		widest := len(titles[column])
		for _, b := range bars {
			widest = max(widest, utf8.RuneCountInString(text(b)))
		}
		width -= widest
	}
	width = min(max(width, minBarWidth), maxBarWidth)
	t := output.NewTable(titles...)
	for _, b := range bars {
		bar := formatBar(b.spans, begin, total, width, allocEnded, now)
		if b.name == groupName && strings.TrimSpace(bar) == "" {
			continue // only short hooks of the agent
		}
		t.AddRow(b.name, bar, b.runs, b.longest)
	}
	p.AddTable(t)
	p.AddLine("")
	p.AddLine("%s", barLegend)
	a.printSentences(p, now)
}

// printSentences adds for each task what it does, what its runs were, and what its start waited for.
func (a *AllocTimeline) printSentences(p *output.Page, now time.Time) {
	for _, t := range a.Summary.Tasks {
		p.AddLine("")
		p.AddLine("%s", p.FormatCell("Task "+t.Task+": "+t.State))
		for _, sentence := range t.Sentences {
			p.AddLine("  %s", p.FormatCell(sentence.Format(now)))
		}
	}
}

// timelineEnd returns the end of the last span.
func timelineEnd(spans []tracespan.Span, allocEnded bool, now time.Time) (end time.Time) {
	for i := range spans {
		if at := spanEnd(&spans[i], allocEnded, now); at.After(end) {
			end = at
		}
	}
	return end
}

// spanEnd returns the end of a span. The end of a span that has no recorded end is now, or its start if the allocation has ended.
func spanEnd(s *tracespan.Span, allocEnded bool, now time.Time) time.Time {
	switch {
	case !s.End.IsZero():
		return s.End
	case allocEnded || s.Kind == tracespan.KindEvent || s.Kind == tracespan.KindGap:
		return s.Start
	}
	return now
}

// newTaskBars returns a line for the group, if it has calls, and for each task in the order of the first spans.
func newTaskBars(spans []tracespan.Span, allocEnded bool, now time.Time) []taskBar {
	var bars []taskBar
	for _, s := range spans {
		if s.Kind == tracespan.KindAlloc || s.Kind == tracespan.KindGap {
			continue
		}
		name := cmp.Or(s.Task, groupName)
		i := slices.IndexFunc(bars, func(b taskBar) bool { return b.name == name })
		if i < 0 {
			i, bars = len(bars), append(bars, taskBar{name: name})
		}
		bars[i].spans = append(bars[i].spans, s)
	}
	for i := range bars {
		bars[i].runs, bars[i].longest = formatRuns(bars[i].spans, allocEnded), formatLongestStep(bars[i].spans, allocEnded, now)
	}
	return bars
}

// formatRuns returns the number of runs of a task, with their results, the last ones if there are many: "3: exit 3 x2, running".
func formatRuns(spans []tracespan.Span, allocEnded bool) string {
	var results []string
	for i := range spans {
		switch s := &spans[i]; {
		case s.Kind != tracespan.KindRun:
		case s.End.IsZero() && !allocEnded:
			results = append(results, "running")
		default:
			results = append(results, strings.Replace(spansummary.FormatExit(s), "exit code ", "exit ", 1))
		}
	}
	if len(results) == 0 {
		return noText
	}
	text := []rune(spansummary.JoinRepeated(results, " x%d"))
	if len(text) > maxRunsWidth {
		text = append([]rune(".."), text[len(text)-maxRunsWidth+2:]...)
	}
	return fmt.Sprintf("%d: %s", len(results), string(text))
}

// formatLongestStep returns the wait or the call of a task that took the most time, with its duration.
func formatLongestStep(spans []tracespan.Span, allocEnded bool, now time.Time) string {
	longest, text := time.Duration(-1), noText
	for i := range spans {
		s := &spans[i]
		if s.Kind != tracespan.KindWait && s.Kind != tracespan.KindHook && s.Kind != tracespan.KindDriver {
			continue
		}
		if d := spanEnd(s, allocEnded, now).Sub(s.Start); d > longest {
			longest = d
			name := s.Name
			if s.Plugin != "" {
				name = s.Plugin + " " + s.Name
			}
			if runes := []rune(name); len(runes) > maxLongestNameWidth {
				name = string(runes[:maxLongestNameWidth-2]) + ".."
			}
			text = duration.Format(d) + " " + name
		}
	}
	return text
}

// formatBar returns the bar of a task: a mark for each part of the time. A failed run has its exit code behind its mark, where that
// hides no other run.
func formatBar(spans []tracespan.Span, begin time.Time, total time.Duration, width int, allocEnded bool, now time.Time) string {
	levels := make([]int, width)
	for i := range levels {
		levels[i] = -1
	}
	cell := func(at time.Time) int {
		if total <= 0 {
			return 0
		}
		return min(max(int(int64(at.Sub(begin))*int64(width)/int64(total)), 0), width-1)
	}
	exitCodes := make(map[int]string) // by the cell of the end of a failed run
	for i := range spans {
		s := &spans[i]
		level := barCall
		switch s.Kind {
		case tracespan.KindWait:
			level = barWait
		case tracespan.KindRun:
			level = barRun
		case tracespan.KindEvent:
			continue
		}
		end := spanEnd(s, allocEnded, now)
		first, last := cell(s.Start), cell(end)
		if s.Internal && first == last && s.Error == "" {
			continue // the many short hooks of the agent hide what users look for
		}
		for c := first; c <= last; c++ {
			levels[c] = max(levels[c], level)
		}
		if (s.Failed || level == barCall && s.Error != "") && !s.End.IsZero() {
			levels[last] = barFailed
		}
		if code, found := strings.CutPrefix(spansummary.FormatExit(s), "exit code "); s.Failed && level == barRun && found {
			exitCodes[last], _, _ = strings.Cut(code, ",")
		}
	}
	bar := bytes.Repeat([]byte(" "), width)
	for i, level := range levels {
		if level >= 0 {
			bar[i] = barMarks[level]
		}
	}
	for at, code := range exitCodes {
		end := at + 1 + len(code)
		if end <= width && levels[at] == barFailed && slices.Max(levels[at+1:end]) < barRun {
			copy(bar[at+1:], code)
		}
	}
	return string(bar)
}
