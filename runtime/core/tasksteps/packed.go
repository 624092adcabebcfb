package tasksteps

import "time"

// PackedTransition is a transition in 16 bytes, half as large as a Transition.
type PackedTransition struct {
	unixNanos int64
	step      Step
	result    Result
	next      Step
}

// Pack returns the transition in 16 bytes. It drops the time's location and monotonic clock reading.
func (t Transition) Pack() PackedTransition {
	return PackedTransition{t.Time.UnixNano(), t.Step, t.Result, t.Next}
}

// Unpack returns the transition, with a local time.
func (p PackedTransition) Unpack() Transition {
	return Transition{Time: time.Unix(0, p.unixNanos), Step: p.step, Result: p.result, Next: p.next}
}
