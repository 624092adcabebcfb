package taskrunner

import (
	"slices"

	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
)

// maxTransitions is how many of a task's last transitions the runner keeps.
const maxTransitions = 48

// recentTransitions contains a task's last transitions, the oldest first, at most maxTransitions. They are packed, because each
// task on a node keeps them.
type recentTransitions []tasksteps.PackedTransition

// maxRepetitions is how many of the last one-step or two-step repetitions the runner keeps.
const maxRepetitions = 6

// add adds a transition. Steps repeated for a long time, like a stop with an unavailable driver, must not displace all others.
func (r *recentTransitions) add(t tasksteps.Transition) {
	list := append(*r, t.Pack())
	for length := 1; length <= 2 && len(list) >= (maxRepetitions+1)*length; length++ {
		tail := list[len(list)-(maxRepetitions+1)*length:]
		if slices.EqualFunc(tail[length:], tail[:len(tail)-length], isRepetition) {
			list = slices.Delete(list, len(list)-len(tail), len(list)-len(tail)+length)
		}
	}
	if len(list) > maxTransitions {
		list = slices.Delete(list, 0, 1)
	}
	*r = list
}

func isRepetition(a, b tasksteps.PackedTransition) bool {
	before, after := a.Unpack(), b.Unpack()
	before.Time = after.Time
	return before == after
}

func (r recentTransitions) unpack() []tasksteps.Transition {
	list := make([]tasksteps.Transition, len(r))
	for i, p := range r {
		list[i] = p.Unpack()
	}
	return list
}

// Transitions returns the task's last transitions in this agent, the oldest first, at most 48. The first one, which leads to the
// first step, is there before Run. If one or two steps repeat, it has the last six repetitions.
func (r *Runner) Transitions() []tasksteps.Transition {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return r.transitions.unpack()
}
