package tracespan

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
)

// Kind says what a span describes: a call, a wait, a run or an event.
type Kind string

const (
	KindHook   Kind = "hook"   // hook call; Name is the hook point
	KindDriver Kind = "driver" // task driver call; Name is the method
	KindWait   Kind = "wait"   // a task waits before a start; Name is the reason
	KindRun    Kind = "run"    // task process; Name is the start ID (task_id in logs)
	KindEvent  Kind = "event"  // an event, without a duration; Name is its type
	KindAlloc  Kind = "alloc"  // a period in the allocation: Placement or Lifetime
	KindGap    Kind = "gap"    // spans dropped because there were too many
)

// Names for spans with KindAlloc.
const (
	// Placement is the time from the placement of the allocation to the start of its setup.
	Placement = "placement"
	// Lifetime is the time from the placement of the allocation to its end. Result is the client status.
	Lifetime = "lifetime"
)

// Names for spans with KindWait.
const (
	WaitOtherTasks   = "other tasks"
	WaitRestartDelay = "restart delay"
	WaitServers      = "servers"       // the cluster's servers must confirm the start
	WaitUnknownTasks = "unknown tasks" // the allocation's unknown tasks must exit
)

// Span is one thing that happened in an allocation. It is stored, and sent to clients, as JSON.
type Span struct {
	ID     string // unique in the allocation: 16 hexadecimal digits
	Kind   Kind
	Name   string
	Task   string `json:",omitempty"` // "" for the allocation
	Plugin string `json:",omitempty"` // name of the hook or the driver
	// Internal marks a hook that runs in the agent, in contrast to hooks in plugins, which users attach.
	Internal bool `json:",omitempty"`
	Start    time.Time
	// End is zero if the span has not ended, or if its end was not recorded because the agent was killed.
	End    time.Time `json:",omitzero"`
	Result string    `json:",omitempty"` // the result for people: exit status, event message, response contents
	Error  string    `json:",omitempty"`
	Failed bool      `json:",omitempty"` // the run or the allocation has failed; Result has the reason
	// RunEnd is a run's end. It is nil for other spans, and for spans by a build that did not record it.
	RunEnd *restart.RunEnd `json:",omitempty"`
	// Dropped is the number of spans in a gap.
	Dropped int `json:",omitempty"`
}

// MaxTextLen is the maximum size in bytes of each text in a span. A span with maximum size has less than 10 kB in JSON.
const MaxTextLen = 1000

// TruncateTexts shortens each text to MaxTextLen. It does not change RunEnd, which others can share, but replaces it.
func (s *Span) TruncateTexts() {
	texts := []*string{&s.Name, &s.Task, &s.Plugin, &s.Result, &s.Error}
	if s.RunEnd != nil {
		end := *s.RunEnd
		s.RunEnd = &end
		texts = append(texts, &end.Error, &end.RequestReason)
	}
	for _, text := range texts {
		*text = truncateText(*text)
	}
}

// truncateText shortens a text to MaxTextLen, at a character boundary.
func truncateText(text string) string {
	if len(text) <= MaxTextLen {
		return text
	}
	end := MaxTextLen - len("…")
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.ToValidUTF8(text[:end], "") + "…"
}
