package reason

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/duration"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Reason is why a task does not run. The zero value means that the task runs or has ended successfully.
type Reason struct {
	Cause          string // such as "exit code 3"
	LastStderrLine string // last line with a letter in the task's standard error; empty if it was not read
	ProgressText   string // such as "app.tar.gz: 12 MB of 40 MB, 3100 kB/s"; can be empty
	NextStep       string // such as "restarts in 12s" or "not restarted: …"; can be empty
	Remedy         string // advice to the user; can be empty
	// CanOutputExplain means that the task's process has ended with an error, and its last standard error line may explain it.
	CanOutputExplain bool
	// LastProcessOutputStart lies after the previous process's last output and before the ended process's first output. It is zero
	// without a previous process.
	LastProcessOutputStart time.Time
}

// String returns the reason in one line.
func (r Reason) String() string {
	text := r.Cause
	if r.ProgressText != "" {
		text += ": " + r.ProgressText
	}
	if r.LastStderrLine != "" {
		text += fmt.Sprintf(" (stderr: %s)", r.LastStderrLine)
	}
	if r.NextStep != "" {
		text += ", " + r.NextStep
	}
	if r.Remedy != "" {
		text += ". " + r.Remedy
	}
	return text
}

// writeVariableText is the remedy's prefix for a variable that a template waits for.
const writeVariableText = "Write it: nomad-lite var put "

// WithRemedyForRunCommand returns the reason with a remedy for a job run by `nomad-lite run`, where commands that need an agent's
// address do not apply.
func (r Reason) WithRemedyForRunCommand() Reason {
	r.Remedy = strings.Replace(r.Remedy, writeVariableText, "Set it: nomad-lite run -nomad-var ", 1)
	return r
}

// IsBeingSetUp reports whether the only reason is the task's incomplete start.
func (r Reason) IsBeingSetUp() bool { return r.Cause == setupCause }

// FromTaskState returns why a task does not run. It formats a restart time as a delay from nowOrZero, or as a time of day if
// nowOrZero is zero.
func FromTaskState(state *api.TaskState, nowOrZero time.Time) Reason {
	if state == nil || state.State == model.TaskRunning || state.State == model.TaskDead && !state.Failed {
		return Reason{}
	}
	var r Reason
	events := eventsWithoutCleanup(state)
	for i, e := range slices.Backward(events) {
		if e == nil {
			continue
		}
		switch e.Type {
		case api.TaskTerminated:
			if wasRestartRequested(events[:i]) {
				continue // the cause is the event that requested the restart
			}
		case api.TaskRestarting:
			r.NextStep = cmp.Or(r.NextStep, describeRestart(e, nowOrZero))
			continue
		case api.TaskNotRestarting:
			r.NextStep = cmp.Or(r.NextStep, describeNoRestart(e))
			continue
		}
		if isHookOrDriverEvent(e) && isWaitingForRestartAt(events[:i], e.Time) {
			continue // the cause is the process's exit, and not an event from a hook called after the exit
		}
		if r.Cause, r.CanOutputExplain = describeCause(e, state.State); r.Cause != "" {
			if r.CanOutputExplain {
				r.LastProcessOutputStart = previousProcessOutputEnd(events[:i])
			}
			if model.IsEventOfOngoingOperation(e) {
				r.ProgressText = describeOngoingProgress(state.Events)
			}
			r.Remedy = findRemedyForCause(r.Cause)
			return r
		}
	}
	r.Cause = setupCause
	if state.State == model.TaskDead {
		r.Cause = "failed"
	}
	return r
}

// OfEnd returns why a task does not run after its last run or start ended this way.
func OfEnd(end *restart.RunEnd) Reason {
	r := Reason{LastProcessOutputStart: end.OutputStart}
	switch {
	case end.RestartRequested:
		r.Cause = end.RequestReason
	case end.StartFailed:
		r.Cause = describeStartFailure(end.Error)
	case end.StatusUnknown:
		r.Cause = EventMessageWithoutGRPCStatus(end.Error)
	default:
		r.Cause, r.CanOutputExplain = describeExit(end), end.ExitCode != 0 || end.Signal != 0
	}
	if !end.NextStart.IsZero() {
		r.NextStep = describeNextStart(end.NextStart, time.Time{})
	}
	r.Remedy = findRemedyForCause(r.Cause)
	return r
}

// StderrTailLines is how many standard error lines WithStderrTail needs.
const StderrTailLines = 10

// maxStderrLineBytes limits the standard error line in a reason.
const maxStderrLineBytes = 400

// WithStderrTail returns the reason with a line from tail, the end of the process's standard error, and with a remedy for a known
// message in it. The line is the last one with a letter, because some programs point to an error's place in a further line.
func (r Reason) WithStderrTail(tail string) Reason {
	lines := strings.Split(strings.TrimSpace(tail), "\n")
	line := lines[len(lines)-1]
	for _, l := range slices.Backward(lines) {
		if strings.ContainsFunc(l, unicode.IsLetter) {
			line = l
			break
		}
	}
	r.LastStderrLine = strings.TrimSpace(strings.ToValidUTF8(line[max(0, len(line)-maxStderrLineBytes):], ""))
	r.Remedy = cmp.Or(r.Remedy, findRemedyForCause(r.LastStderrLine))
	return r
}

// wasRestartRequested reports whether, by these events, a restart was requested before the running process ended.
func wasRestartRequested(events []*api.TaskEvent) bool {
	for _, e := range slices.Backward(events) {
		switch {
		case e == nil:
		case e.Type == api.TaskRestartSignal:
			return true
		case e.Type == api.TaskStarted:
			return false
		}
	}
	return false
}

// isHookOrDriverEvent reports whether hooks and drivers emit this type of event independently of the task's state.
func isHookOrDriverEvent(e *api.TaskEvent) bool {
	switch e.Type {
	case model.TaskHookFailed, model.TaskHookMessage, api.TaskDriverMessage, templateEventType, api.TaskDownloadingArtifacts:
		return true
	}
	return false
}

// isWaitingForRestartAt reports whether, after these events, a task's process has ended and its next start is due only after
// atUnixNanos. Meanwhile hooks are called for the ended process.
func isWaitingForRestartAt(events []*api.TaskEvent, atUnixNanos int64) bool {
	for _, e := range slices.Backward(events) {
		switch {
		case e == nil || isHookOrDriverEvent(e):
		case e.Type == api.TaskRestarting:
			return e.Time+e.StartDelay > atUnixNanos
		default:
			return e.Type == api.TaskTerminated
		}
	}
	return false
}

// previousProcessOutputEnd returns a time after the previous process's output, and before any output of the last process started
// in these events. It returns the zero time if the events have no previous process.
func previousProcessOutputEnd(events []*api.TaskEvent) time.Time {
	var started time.Time
	for _, e := range slices.Backward(events) {
		if e == nil {
			continue
		}
		at := time.Unix(0, e.Time)
		switch e.Type {
		case api.TaskStarted:
			started = at
		case api.TaskTerminated:
			return at
		case api.TaskRestarting:
			// The log collector can write a process's last output after its exit event, but not after the restart delay, which a request
			// can end early.
			if due := at.Add(time.Duration(e.StartDelay)); !due.After(started) {
				return due
			}
			return at
		}
	}
	return time.Time{}
}

// eventsWithoutCleanup returns a task's events. For a dead task it leaves out the events after the decision not to restart it,
// because they concern only the cleanup.
func eventsWithoutCleanup(state *api.TaskState) []*api.TaskEvent {
	if state.State != model.TaskDead {
		return state.Events
	}
	for i, e := range slices.Backward(state.Events) {
		switch {
		case e == nil:
		case e.Type == api.TaskNotRestarting:
			return state.Events[:i+1]
		case e.Type == api.TaskStarted || e.Type == api.TaskRestartSignal: // the task was started again after an earlier TaskNotRestarting
			return state.Events
		}
	}
	return state.Events
}

// describeOngoingProgress returns the progress of a task's unfinished operations.
func describeOngoingProgress(events []*api.TaskEvent) string {
	var texts []string
	for _, e := range events {
		if e != nil && model.IsEventOfOngoingOperation(e) {
			texts = append(texts, EventMessageWithoutGRPCStatus(e.DisplayMessage))
		}
	}
	slices.Sort(texts) // sorted, because the event order changes with each progress report
	return strings.Join(texts, "; ")
}

func describeRestart(e *api.TaskEvent, nowOrZero time.Time) string {
	return describeNextStart(time.Unix(0, e.Time).Add(time.Duration(e.StartDelay)), nowOrZero)
}

func describeNextStart(at, nowOrZero time.Time) string {
	switch left := at.Sub(nowOrZero).Round(time.Second); {
	case nowOrZero.IsZero():
		return "restarts at " + at.Local().Format(time.TimeOnly)
	case left > 0:
		return "restarts in " + duration.Format(left)
	}
	return "restarts now"
}

// unrecoverableReason is Nomad's reason for no restart after an error that a restart cannot correct.
const unrecoverableReason = "Error was unrecoverable"

func describeNoRestart(e *api.TaskEvent) string {
	if e.RestartReason == "" || e.RestartReason == unrecoverableReason {
		return "not restarted"
	}
	return "not restarted: " + e.RestartReason
}

// describeCause returns an event's cause, or "" if it contains none. outputCanExplain is true if the task's output may explain
// the cause.
func describeCause(e *api.TaskEvent, taskState string) (cause string, outputCanExplain bool) {
	message := EventMessageWithoutGRPCStatus(cmp.Or(e.DisplayMessage, e.Message, e.Type))
	switch e.Type {
	case api.TaskTerminated:
		end := restart.RunEnd{ExitCode: e.ExitCode, Signal: e.Signal, OOMKilled: e.Details["oom_killed"] == "true", Error: e.Message}
		return describeExit(&end), e.ExitCode != 0 || e.Signal != 0
	case api.TaskDriverFailure:
		return describeStartFailure(message), false
	case api.TaskSetupFailure, api.TaskFailedValidation:
		return "cannot be set up: " + message, false
	case api.TaskArtifactDownloadFailed:
		return message, false
	case model.TaskHookFailed:
		return "hook " + message, false
	case model.TaskRestoreFailed:
		return message, false
	case api.TaskSiblingFailed:
		return fmt.Sprintf("task %q of its group failed", e.FailedSibling), false
	case templateEventType:
		return describeMissingTemplateData(message), false
	case api.TaskKilling:
		if e.FailsTask {
			return message, false
		}
	case api.TaskDownloadingArtifacts:
		return "downloads artifacts", false
	case api.TaskRestartSignal:
		return message, false
	case model.TaskHookMessage, api.TaskDriverMessage:
		if model.IsEventOfOngoingOperation(e) && taskState == model.TaskPending {
			return "is being prepared by a hook", false
		}
		if taskState == model.TaskPending {
			return message, false
		}
	}
	return "", false
}

func describeStartFailure(message string) string {
	return "cannot start: " + searchedDirsPattern().ReplaceAllString(EventMessageWithoutGRPCStatus(message), "neither in the task's PATH nor in its directory")
}

func describeExit(end *restart.RunEnd) string {
	switch {
	case end.OOMKilled:
		return outOfMemoryText
	case end.Signal == 0 && end.ExitCode == 0:
		return "ended with exit code 0, but a service must keep running"
	}
	text := osprocess.ExitStatus{ExitCode: end.ExitCode, Signal: end.Signal}.String()
	if end.Signal == 0 && end.Error != "" {
		text += ": " + EventMessageWithoutGRPCStatus(end.Error)
	}
	return text
}

// setupCause is the cause if no task event contains one.
const setupCause = "is being set up"

const outOfMemoryText = "out of memory: killed when it exceeded its limit"

// templateEventType is the type of the template hook's events. Package api has no constant for it.
const templateEventType = "Template"

var missingTemplateDataPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`nomad\.(var\.block|service|var\.list)\(([^@),]+)[^)]*\)`)
})

// describeMissingTemplateData names the data that a template waits for, according to a template hook event's message.
func describeMissingTemplateData(message string) string {
	list, isMissing := strings.CutPrefix(message, "Missing: ")
	if !isMissing {
		return message
	}
	kinds := map[string]string{"var.block": "variable", "service": "service", "var.list": "variables below"}
	return "template waits for " + missingTemplateDataPattern().ReplaceAllStringFunc(list, func(text string) string {
		part := missingTemplateDataPattern().FindStringSubmatch(text)
		return kinds[part[1]] + " " + part[2]
	})
}

var grpcStatusPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`rpc error: code = \S+ desc = `) })

// EventMessageWithoutGRPCStatus returns an event's message in one line, without gRPC's status code in a plugin's error.
func EventMessageWithoutGRPCStatus(message string) string {
	return strings.Join(strings.Fields(grpcStatusPattern().ReplaceAllString(message, "")), " ")
}

// OfFailingCheck returns what a failing service check has received, in one line.
func OfFailingCheck(check *api.AllocCheckStatus) string {
	return cmp.Or(EventMessageWithoutGRPCStatus(model.CheckFailureText(check)), "the check has no output")
}

// searchedDirsPattern matches the directories where raw_exec has searched for a command.
var searchedDirsPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`neither in the task's PATH \([^)]*\) nor in \S+`) })

// remediesByCause returns the remedies for known causes. The first regular expression that matches a cause applies. The
// expressions are compiled at the first call, because most nomad-lite processes do not need them.
var remediesByCause = sync.OnceValue(func() []causeRemedy {
	return []causeRemedy{
		{regexp.MustCompile(`template waits for variable ([^, ]+)`), writeVariableText + "$1 KEY=VALUE"},
		{regexp.MustCompile(`template waits for service ([^, ]+)`), "Run a job that registers service $1, healthy"},
		{regexp.MustCompile(`neither in the task's PATH`), `Install the command, or write its whole path in "command"`},
		{regexp.MustCompile(`command (\S+): stat \S+: no such file or directory`), `Install $1, or correct "command"`},
		{regexp.MustCompile(`command (\S+): permission denied`), `Make it executable: chmod +x $1`},
		{regexp.MustCompile(`^exit code 127\b`), "Install the command that it calls, or write its whole path"},
		{regexp.MustCompile(`^exit code 126\b`), "Make the command that it calls executable"},
		{regexp.MustCompile(`unknown user (\S+)`), `Create account $1, or change "user" of the task`},
		{regexp.MustCompile(regexp.QuoteMeta(outOfMemoryText)), `Raise "memory" in "resources"`},
		{regexp.MustCompile(`a service must keep running`), `Use type = "batch" for a job that ends`},
		{regexp.MustCompile(`failed to download artifact "[^"]*": .*(connection refused|no such host|timeout)`), "Check the address of its source, and the network"},
		{regexp.MustCompile(`failed to download artifact "[^"]*": .*(401|403)`), `Check the credentials in "headers" or "options"`},
		{regexp.MustCompile(`failed to download artifact "[^"]*": .*404`), "Correct its source"},
		{regexp.MustCompile(`(?i)checksums? d(id|o) not match`), "Correct the checksum, or the source"},
		{regexp.MustCompile(`address already in use`), "Stop the process that uses the port (ss -ltnp shows it), or use another port"},
		{regexp.MustCompile(`waiting for (the driver's )?plugin`), "nomad-lite plugin list shows its state"},
	}
})

type causeRemedy struct {
	causePattern   *regexp.Regexp
	remedyTemplate string
}

func findRemedyForCause(cause string) string {
	for _, r := range remediesByCause() {
		if at := r.causePattern.FindStringSubmatchIndex(cause); at != nil {
			return string(r.causePattern.ExpandString(nil, r.remedyTemplate, cause, at))
		}
	}
	return ""
}
