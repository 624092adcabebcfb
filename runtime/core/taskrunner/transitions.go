package taskrunner

import (
	"slices"

	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
)

// maxTransitions is the number of the last transitions of a task that the runner keeps.
const maxTransitions = 48

// recentTransitions contains the last transitions of a task, the oldest first, at most maxTransitions. They are packed,
// because each task of a node keeps them.
type recentTransitions []tasksteps.PackedTransition

// maxRepetitions is the number of the last repetitions of one or two steps that the runner keeps.
const maxRepetitions = 6

// add adds a transition. Steps that are repeated for a long time, like a stop whose driver is unavailable, must not displace
// all others.
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

// Transitions returns the last transitions of the task in this agent, the oldest first, at most 48. The first one, which
// leads to the first step, is there before Run. Of the repetitions of one or two steps it has the last six.
func (r *Runner) Transitions() []tasksteps.Transition {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return r.transitions.unpack()
}
