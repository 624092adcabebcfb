package taskrunner

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
)

func TestTheLastTransitionsAreKept(t *testing.T) {
	for _, n := range []int{0, 1, maxTransitions, maxTransitions + 1, 3*maxTransitions + 5} {
		var r recentTransitions
		for i := range n {
			r.add(tasksteps.Transition{Time: time.Unix(int64(i), 0), Step: tasksteps.Step(i % 5), Next: tasksteps.Step((i + 1) % 5)})
		}
		list := r.unpack()
		if len(list) != min(n, maxTransitions) {
			t.Errorf("after %d transitions, %d are kept", n, len(list))
		}
		for i, tr := range list {
			if want := int64(n - len(list) + i); tr.Time.Unix() != want {
				t.Errorf("after %d transitions, number %d is at %d", n, want, tr.Time.Unix())
			}
		}
	}
}

// One or two repeated steps displace no other transition.
func TestRepetitionsOfStepsAreJoined(t *testing.T) {
	var r recentTransitions
	second := int64(0)
	add := func(step tasksteps.Step, result tasksteps.Result, next tasksteps.Step) {
		r.add(tasksteps.Transition{Time: time.Unix(second, 0), Step: step, Result: result, Next: next})
		second++
	}
	add(tasksteps.RecoverTask, tasksteps.StartUndecided, tasksteps.QueryEarlierStart)
	for range 2 * maxTransitions {
		add(tasksteps.QueryEarlierStart, tasksteps.NoAnswer, tasksteps.QueryEarlierStart)
	}
	add(tasksteps.QueryEarlierStart, tasksteps.ProcessFound, tasksteps.TakeOverProcess)
	for range 2 * maxTransitions {
		add(tasksteps.StopTask, tasksteps.NoAnswer, tasksteps.AwaitStopRetry)
		add(tasksteps.AwaitStopRetry, tasksteps.Done, tasksteps.StopTask)
	}
	add(tasksteps.StopTask, tasksteps.Done, tasksteps.AwaitExitAfterStop)
	var got []tasksteps.Step
	for _, tr := range r.unpack() {
		got = append(got, tr.Step)
	}
	want := []tasksteps.Step{tasksteps.RecoverTask}
	want = append(want, slices.Repeat([]tasksteps.Step{tasksteps.QueryEarlierStart}, maxRepetitions+1)...)
	want = append(want, slices.Repeat([]tasksteps.Step{tasksteps.StopTask, tasksteps.AwaitStopRetry}, maxRepetitions)...)
	want = append(want, tasksteps.StopTask)
	if !slices.Equal(got, want) || r.unpack()[maxRepetitions].Time.Unix() != 2*maxTransitions {
		t.Errorf("%v", r.unpack())
	}
}
