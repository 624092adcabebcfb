package spansummary

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/duration"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// Sentence is a sentence about a span. Clients add the period.
type Sentence struct {
	Text string
	// Since is the start of an ongoing state; clients add the time since then. It is zero if the state has ended.
	Since  time.Time `json:",omitzero"`
	SpanID string    `json:",omitempty"` // the sentence's span
}

// Format returns the sentence as of now.
func (s Sentence) Format(now time.Time) string {
	if s.Since.IsZero() {
		return s.Text
	}
	return s.Text + " for " + duration.Format(now.Sub(s.Since))
}

// TaskSummary is what a task's spans mean.
type TaskSummary struct {
	Task      string
	State     string     // pending, running, complete, failed or not started
	Sentences []Sentence // the present state first
}

// Summary is what an allocation's spans mean.
type Summary struct {
	// Problem is the allocation's failure, or else what it waits for, or else the slowest step in its start. Its text is empty if
	// none of these exists.
	Problem Sentence
	Tasks   []TaskSummary // in the order of the job
}

// Summarize returns what the spans mean. The spans must be sorted by their start. It reads the job and the task states from the
// allocation. Spans without an end last until now, unless the allocation has ended.
func Summarize(spans []tracespan.Span, alloc *api.Allocation, now time.Time) Summary {
	s := summarizer{spans: spans, alloc: alloc, now: now}
	if alloc.Job != nil {
		s.group = alloc.Job.LookupTaskGroup(alloc.TaskGroup)
	}
	var summary Summary
	if s.group != nil {
		for _, t := range s.group.Tasks {
			summary.Tasks = append(summary.Tasks, s.summarizeTask(t.Name))
		}
	}
	summary.Problem = s.findProblem(summary.Tasks)
	return summary
}

type summarizer struct {
	spans []tracespan.Span
	alloc *api.Allocation
	group *api.TaskGroup // nil if the job lacks it
	now   time.Time
}

// isOpen reports whether a span is ongoing.
func (s *summarizer) isOpen(span *tracespan.Span) bool {
	return span.End.IsZero() && !s.alloc.ClientTerminalStatus() && (span.Task == "" || !s.isDead(span.Task))
}

func (s *summarizer) isDead(task string) bool {
	state := s.alloc.TaskStates[task]
	return state != nil && state.State == model.TaskDead
}

// endOf returns a span's end: now for an ongoing span, and the start if no end was recorded.
func (s *summarizer) endOf(span *tracespan.Span) time.Time {
	switch {
	case !span.End.IsZero():
		return span.End
	case s.isOpen(span):
		return s.now
	}
	return span.Start
}

func (s *summarizer) lengthOf(span *tracespan.Span) time.Duration {
	return s.endOf(span).Sub(span.Start)
}

// selectSpans returns a task's spans, or the allocation's own if the task is empty, that meet the condition.
func (s *summarizer) selectSpans(task string, condition func(*tracespan.Span) bool) []*tracespan.Span {
	var selected []*tracespan.Span
	for i := range s.spans {
		if span := &s.spans[i]; span.Task == task && condition(span) {
			selected = append(selected, span)
		}
	}
	return selected
}

func isRun(span *tracespan.Span) bool { return span.Kind == tracespan.KindRun }

// last returns the last element, or nil.
func last(spans []*tracespan.Span) *tracespan.Span {
	if len(spans) == 0 {
		return nil
	}
	return spans[len(spans)-1]
}

func (s *summarizer) summarizeTask(task string) TaskSummary {
	summary := TaskSummary{Task: task}
	var present Sentence
	summary.State, present = s.presentState(task)
	summary.Sentences = append(summary.Sentences, present)
	runs := s.selectSpans(task, isRun)
	if len(runs) > 1 {
		summary.Sentences = append(summary.Sentences, Sentence{Text: fmt.Sprintf("%d runs: %s", len(runs), s.describeRuns(runs)), SpanID: last(runs).ID})
	}
	if failed := s.lastFailure(task); failed != nil && !isRun(failed) && failed.ID != present.SpanID {
		summary.Sentences = append(summary.Sentences, Sentence{Text: "last error: " + s.describeFailure(failed), SpanID: failed.ID})
	}
	if sentence, ok := s.describeLastStart(task, runs); ok {
		summary.Sentences = append(summary.Sentences, sentence)
	}
	return summary
}

// presentState returns a task's state in one word, and a sentence about what the task does.
func (s *summarizer) presentState(task string) (string, Sentence) {
	find := func(kind tracespan.Kind) *tracespan.Span {
		return last(s.selectSpans(task, func(span *tracespan.Span) bool { return span.Kind == kind && s.isOpen(span) }))
	}
	lasting := func(span *tracespan.Span, text string) (string, Sentence) {
		return "pending", Sentence{Text: text, Since: span.Start, SpanID: span.ID}
	}
	state := s.alloc.TaskStates[task]
	isDead := s.isDead(task) || s.alloc.ClientTerminalStatus()
	run, hook, call, wait := find(tracespan.KindRun), find(tracespan.KindHook), find(tracespan.KindDriver), find(tracespan.KindWait)
	switch {
	case run != nil:
		return "running", Sentence{Text: "up", Since: run.Start, SpanID: run.ID}
	case hook != nil:
		return lasting(hook, "waits for "+describeStep(hook))
	case call != nil:
		return lasting(call, "waits for "+describeStep(call))
	case wait != nil && wait.Name == tracespan.WaitOtherTasks:
		cause, _ := reason.OfTaskBeingSetUp(s.group, s.alloc.TaskStates, task)
		return lasting(wait, cmp.Or(cause.Cause, "waits for the other tasks to end"))
	case wait != nil:
		return lasting(wait, "waits for "+describeStep(wait))
	case !isDead:
		if setup := s.openAllocHook(); setup != nil {
			return lasting(setup, "waits for "+describeStep(setup))
		}
		return "pending", Sentence{Text: "has not started"}
	}
	lastRun := last(s.selectSpans(task, isRun))
	word, withoutCause := "complete", "its run is not in the time line"
	if lastRun == nil && (state == nil || state.StartedAt.IsZero()) {
		word, withoutCause = "not started", "ended before its start"
	}
	if state != nil && state.Failed {
		word = "failed"
	}
	if failed := s.lastFailure(task); failed != nil && word != "complete" {
		return word, Sentence{Text: s.describeFailure(failed), SpanID: failed.ID}
	}
	if event := last(s.selectSpans(task, isFailureEvent)); event != nil && word != "complete" {
		return word, Sentence{Text: event.Name + ": " + event.Result, SpanID: event.ID}
	}
	if lastRun != nil {
		return word, Sentence{Text: s.runResult(lastRun), SpanID: lastRun.ID}
	}
	if failed := s.lastFailure(""); failed != nil {
		return word, Sentence{Text: "the allocation was not set up: " + s.describeFailure(failed), SpanID: failed.ID}
	}
	return word, Sentence{Text: withoutCause}
}

func (s *summarizer) openAllocHook() *tracespan.Span {
	return last(s.selectSpans("", func(span *tracespan.Span) bool { return span.Kind == tracespan.KindHook && s.isOpen(span) }))
}

// lastFailure returns a task's last failed span without a later success; nil if there is none. For an empty task it is the
// allocation's.
func (s *summarizer) lastFailure(task string) *tracespan.Span {
	var failed *tracespan.Span
	for i := range s.spans {
		span := &s.spans[i]
		switch {
		case span.Task != task:
		case isRun(span) && span.Failed && !s.isRequestedEnd(span), isStartStep(span) && span.Error != "" && !s.isRequestedEnd(span):
			failed = span
		case isRun(span) && (!span.Failed && !span.End.IsZero() || s.isOpen(span) && s.lengthOf(span) >= restart.RecoveredAfter):
			failed = nil
		}
	}
	return failed
}

// isFailureEvent reports whether a span is an event that explains a task failure.
func isFailureEvent(span *tracespan.Span) bool {
	return span.Kind == tracespan.KindEvent && (strings.Contains(span.Name, "Fail") || span.Name == api.TaskNotRestarting || span.Name == api.TaskKilling && !isPlainKill(span))
}

// isPlainKill reports whether a kill event has no reason: a task was stopped.
func isPlainKill(event *tracespan.Span) bool {
	return strings.HasPrefix(event.Result, "Sent interrupt")
}

// endEvent returns the event with which the agent or a user ended a span, such as a stop, a restart or a failed check; nil if the
// span ended by itself. Events with a reason come first.
func (s *summarizer) endEvent(ended *tracespan.Span) *tracespan.Span {
	var found *tracespan.Span
	for i := range s.spans {
		span := &s.spans[i]
		if span.Kind == tracespan.KindEvent && span.Task == ended.Task && (span.Name == api.TaskKilling || span.Name == api.TaskRestartSignal) &&
			!span.Start.Before(ended.Start) && !span.Start.After(ended.End) && (found == nil || isPlainKill(found)) {
			found = span
		}
	}
	return found
}

// isRequestedEnd reports whether a span ended because a task was stopped or restarted, but not because of a failure.
func (s *summarizer) isRequestedEnd(ended *tracespan.Span) bool {
	if ended.RunEnd != nil {
		return !ended.RunEnd.IsFailure()
	}
	event := s.endEvent(ended)
	switch {
	case event == nil:
		return false
	case event.Name == api.TaskRestartSignal:
		return !isRestartByCheckOfEarlierBuild(event)
	}
	state := s.alloc.TaskStates[ended.Task]
	return isPlainKill(event) || state == nil || !state.Failed
}

// isStartStep reports whether a span is a call required for a task or allocation start.
func isStartStep(span *tracespan.Span) bool {
	return span.Kind == tracespan.KindHook && (span.Name == "prestart" || span.Name == "prerun") || span.Kind == tracespan.KindDriver && span.Name == "StartTask"
}

// describeFailure returns why a span failed: "exit code 3", "artifact: not found".
func (s *summarizer) describeFailure(span *tracespan.Span) string {
	if end := span.RunEnd; end != nil && end.RestartRequested {
		return end.RequestReason
	}
	if event := s.endEvent(span); event != nil {
		return event.Result
	}
	if isRun(span) {
		return s.runResult(span)
	}
	return describeStep(span) + ": " + span.Error
}

// describeRuns returns the runs' results, equal consecutive ones together: "exit code 3 (4 times), running".
func (s *summarizer) describeRuns(runs []*tracespan.Span) string {
	results := make([]string, len(runs))
	for i, run := range runs {
		results[i] = s.runResult(run)
	}
	return JoinRepeated(results, " (%d times)")
}

// JoinRepeated joins texts with commas. Equal consecutive texts become one text, followed by their number in the given format.
func JoinRepeated(texts []string, format string) string {
	var parts []string
	for i := 0; i < len(texts); {
		count := 1
		for i+count < len(texts) && texts[i+count] == texts[i] {
			count++
		}
		part := texts[i]
		if count > 1 {
			part += fmt.Sprintf(format, count)
		}
		parts = append(parts, part)
		i += count
	}
	return strings.Join(parts, ", ")
}

// runResult returns how a run ended, or that it is still running.
func (s *summarizer) runResult(run *tracespan.Span) string {
	switch {
	case s.isOpen(run):
		return "running"
	case run.End.IsZero():
		return "exit status unknown"
	}
	return FormatExit(run)
}

// FormatExit returns how a run ended: "exit code 3", "signal 9". If the exit status is unknown, it returns the run's result.
func FormatExit(run *tracespan.Span) string {
	end := run.RunEnd
	if end == nil {
		end = runEndOfEarlierBuild(run)
	}
	if end == nil || end.StatusUnknown {
		return cmp.Or(run.Result, run.Error, "exit status unknown")
	}
	text := fmt.Sprintf("exit code %d", end.ExitCode)
	if end.Signal != 0 {
		text = fmt.Sprintf("signal %d", end.Signal)
	}
	if end.Error != "" {
		text += ", " + end.Error
	}
	return text
}

// describeLastStart returns how long a task's last start took, and what took longest.
func (s *summarizer) describeLastStart(task string, runs []*tracespan.Span) (Sentence, bool) {
	if len(runs) == 0 {
		return Sentence{}, false
	}
	run := last(runs)
	from := s.spans[0].Start
	if len(runs) > 1 {
		from = s.endOf(runs[len(runs)-2])
	}
	longest := s.longestStep(task, from, run.Start)
	if len(runs) == 1 {
		// The allocation's hooks are part of its first start.
		if ofAlloc := s.longestStep("", from, run.Start); longest == nil || ofAlloc != nil && s.lengthOf(ofAlloc) > s.lengthOf(longest) {
			longest = ofAlloc
		}
	}
	if longest == nil {
		return Sentence{}, false
	}
	if longest.Kind == tracespan.KindWait && longest.Name == tracespan.WaitOtherTasks {
		if sentence, ok := s.describeWait(task, longest); ok {
			return sentence, true
		}
	}
	return Sentence{
		Text:   fmt.Sprintf("start: %s (%s %s)", duration.Format(run.Start.Sub(from)), describeStep(longest), duration.Format(s.lengthOf(longest))),
		SpanID: longest.ID,
	}, true
}

// longestStep returns a task's longest call or wait that started in a period, or nil.
func (s *summarizer) longestStep(task string, from, to time.Time) *tracespan.Span {
	var longest *tracespan.Span
	for _, span := range s.selectSpans(task, isCallOrWait) {
		if !span.Start.Before(from) && !span.Start.After(to) && (longest == nil || s.lengthOf(span) > s.lengthOf(longest)) {
			longest = span
		}
	}
	return longest
}

func isCallOrWait(span *tracespan.Span) bool {
	return span.Kind == tracespan.KindHook || span.Kind == tracespan.KindDriver || span.Kind == tracespan.KindWait
}

// openedAfter is the longest time between a task change and the end of the wait that it ends.
const openedAfter = 100 * time.Millisecond

// describeWait returns which task another one waited for, and what the awaited task did most of the time. ok is false if the
// spans do not show the awaited task.
func (s *summarizer) describeWait(task string, wait *tracespan.Span) (sentence Sentence, ok bool) {
	end := s.endOf(wait)
	awaited := s.awaitedTasks(task)
	var cause *tracespan.Span // the last run that started or ended before the wait ended
	var changedAt time.Time
	for i := range s.spans {
		span := &s.spans[i]
		if !isRun(span) || !slices.Contains(awaited, span.Task) {
			continue
		}
		for _, at := range []time.Time{span.Start, span.End} {
			if !at.IsZero() && !at.After(end) && end.Sub(at) <= openedAfter && at.After(changedAt) {
				cause, changedAt = span, at
			}
		}
	}
	if cause == nil {
		return Sentence{}, false
	}
	// If the awaited task itself waited for others, its own work was not the delay: its steps show this.
	var longest *tracespan.Span
	within := func(span *tracespan.Span) time.Duration {
		return minTime(s.endOf(span), end).Sub(maxTime(span.Start, wait.Start))
	}
	for _, span := range s.selectSpans(cause.Task, func(span *tracespan.Span) bool {
		return isCallOrWait(span) || isRun(span) && !span.End.IsZero() && !span.End.After(end)
	}) {
		if d := within(span); d > 0 && (longest == nil || d > within(longest)) {
			longest = span
		}
	}
	text := fmt.Sprintf("waited %s for %q", duration.Format(s.lengthOf(wait)), cause.Task)
	if longest == nil {
		return Sentence{Text: text, SpanID: cause.ID}, true
	}
	return Sentence{Text: fmt.Sprintf("%s (%s %s)", text, describeStep(longest), duration.Format(within(longest))), SpanID: longest.ID}, true
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// awaitedTasks returns the tasks that a task can wait for before its start.
func (s *summarizer) awaitedTasks(task string) []string {
	if s.group == nil {
		return nil
	}
	i := slices.IndexFunc(s.group.Tasks, func(t *api.Task) bool { return t.Name == task })
	if i < 0 {
		return nil
	}
	dependencies, _ := model.TaskDependencies(s.group.Tasks[i]) // a registered job has passed validation
	var names []string
	for _, other := range s.group.Tasks {
		isDependency := slices.ContainsFunc(dependencies, func(d lifecycle.Dependency) bool { return d.Task == other.Name })
		if isDependency || stageRank(other) < stageRank(s.group.Tasks[i]) {
			names = append(names, other.Name)
		}
	}
	return names
}

// stageRank returns a greater number for tasks with a later start by their lifecycle blocks.
func stageRank(t *api.Task) int {
	switch model.StageOfTask(t) {
	case lifecycle.PrestartEphemeral, lifecycle.PrestartSidecar:
		return 0
	case lifecycle.MainTask:
		return 1
	case lifecycle.PoststartEphemeral, lifecycle.PoststartSidecar:
		return 2
	}
	return 3
}

// findProblem returns the sentence about the most important span for a user.
func (s *summarizer) findProblem(tasks []TaskSummary) Sentence {
	var failed *tracespan.Span
	for _, t := range append(tasks, TaskSummary{}) {
		isFailing := t.Task != "" && t.State != "complete" || t.Task == "" && s.alloc.ClientStatus == api.AllocClientStatusFailed
		if span := s.lastFailure(t.Task); isFailing && span != nil && (failed == nil || span.Start.After(failed.Start)) {
			failed = span
		}
	}
	if failed != nil {
		return Sentence{Text: prefixOf(failed) + s.describeRepeatedFailure(failed), SpanID: failed.ID}
	}
	for _, t := range tasks {
		if t.State == "failed" {
			return Sentence{Text: t.Task + ": " + t.Sentences[0].Text, SpanID: t.Sentences[0].SpanID}
		}
	}
	// A task waiting for another one does not delay the start, unless the other one only runs.
	var waiting, waitingForTask Sentence
	for _, t := range tasks {
		present := t.Sentences[0]
		longest := &waiting
		if s.isWaitForTask(present.SpanID) {
			longest = &waitingForTask
		}
		if t.State == "pending" && !present.Since.IsZero() && (longest.Since.IsZero() || present.Since.Before(longest.Since)) {
			*longest = Sentence{Text: t.Task + " " + present.Text, Since: present.Since, SpanID: s.followWait(t.Task, present.SpanID)}
		}
	}
	switch {
	case waiting.Text != "":
		return waiting
	case waitingForTask.Text != "":
		return waitingForTask
	}
	return s.slowestStep(tasks)
}

// describeRepeatedFailure returns why a span failed, and how often in a row.
func (s *summarizer) describeRepeatedFailure(failed *tracespan.Span) string {
	text, count := s.describeFailure(failed), 0
	if end := failed.RunEnd; end != nil {
		return text + inARow(end.RunsInRow)
	}
	for _, span := range s.selectSpans(failed.Task, func(span *tracespan.Span) bool { return isRun(span) || isStartStep(span) && span.Error != "" }) {
		switch {
		case s.isOpen(span):
		case span.Kind != failed.Kind || span.Plugin != failed.Plugin || s.describeFailure(span) != text:
			count = 0
		default:
			count++
		}
	}
	return text + inARow(count)
}

func inARow(count int) string {
	if count <= 1 {
		return ""
	}
	return fmt.Sprintf(", %d times in a row", count)
}

// isWaitForTask reports whether a span is a task's wait for another one.
func (s *summarizer) isWaitForTask(spanID string) bool {
	return slices.ContainsFunc(s.spans, func(span tracespan.Span) bool {
		return span.ID == spanID && span.Kind == tracespan.KindWait && span.Name == tracespan.WaitOtherTasks
	})
}

// followWait returns the span that delays a task: if the task waits for another one, the awaited task's current span.
func (s *summarizer) followWait(task, spanID string) string {
	if !s.isWaitForTask(spanID) {
		return spanID
	}
	for _, other := range s.awaitedTasks(task) {
		own := s.selectSpans(other, func(span *tracespan.Span) bool {
			return s.isOpen(span) && (isRun(span) || isCallOrWait(span) && span.Name != tracespan.WaitOtherTasks)
		})
		if len(own) > 0 {
			return own[0].ID
		}
	}
	return spanID
}

// slowestStep returns a sentence about the slowest step in all task starts.
func (s *summarizer) slowestStep(tasks []TaskSummary) Sentence {
	var slowest *tracespan.Span
	for _, t := range append(tasks, TaskSummary{}) {
		for _, span := range s.selectSpans(t.Task, func(span *tracespan.Span) bool {
			return isStartStep(span) || span.Kind == tracespan.KindWait && span.Name != tracespan.WaitOtherTasks
		}) {
			if slowest == nil || s.lengthOf(span) > s.lengthOf(slowest) {
				slowest = span
			}
		}
	}
	if slowest == nil {
		return Sentence{}
	}
	return Sentence{Text: fmt.Sprintf("%sslowest step: %s (%s)", prefixOf(slowest), describeStep(slowest), duration.Format(s.lengthOf(slowest))), SpanID: slowest.ID}
}

// prefixOf returns the prefix for a text about a span: its task, or the allocation.
func prefixOf(span *tracespan.Span) string { return cmp.Or(span.Task, "allocation") + ": " }

// describeStep returns a span's noun phrase without an article, such as "prestart hook script".
func describeStep(span *tracespan.Span) string {
	switch {
	case span.Kind == tracespan.KindHook && (span.Plugin == "artifact" || span.Plugin == "template"):
		return span.Plugin
	case span.Kind == tracespan.KindHook:
		return span.Name + " hook " + span.Plugin
	case span.Kind == tracespan.KindDriver:
		return span.Plugin + " driver's " + span.Name
	case span.Kind == tracespan.KindWait && span.Name == tracespan.WaitOtherTasks:
		return "other tasks"
	case span.Kind == tracespan.KindWait && span.Name == tracespan.WaitServers:
		return "the cluster's servers"
	case span.Kind == tracespan.KindWait && span.Name == tracespan.WaitUnknownTasks:
		return "the end of unknown tasks"
	case span.Kind == tracespan.KindRun:
		return "run"
	}
	return span.Name
}
