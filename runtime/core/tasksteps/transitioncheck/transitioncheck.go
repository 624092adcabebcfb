package transitioncheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
)

// Check returns an error if the transitions cannot be one task's successive transitions: each must be in the table, and
// must begin with the step with which the previous one ended. The list may begin at any transition.
func Check(list []tasksteps.Transition) error {
	for i, t := range list {
		switch next, ok := lookUp(t); {
		case i > 0 && list[i-1].Next != t.Step:
			return fmt.Errorf("transition %d begins with %q, but the former one leads to %q", i, t.Step, list[i-1].Next)
		case !ok:
			return fmt.Errorf("transition %d: the step %q cannot have the result %q", i, t.Step, t.Result)
		case next != t.Next:
			return fmt.Errorf("transition %d leads to %q, want %q", i, t.Next, next)
		}
	}
	return nil
}

// lookUp returns the step that must follow a transition. It returns false if its step cannot have its result.
func lookUp(t tasksteps.Transition) (next tasksteps.Step, ok bool) {
	if t.Step == tasksteps.None {
		return t.Next, t.Result == tasksteps.Done && (t.Next == tasksteps.First(false) || t.Next == tasksteps.First(true))
	}
	return tasksteps.Next(t.Step, t.Result)
}

// CheckBundle checks a debug bundle's transitions.json, a JSON list of [tasksteps.AllocTransitions]. It returns the [Check] errors
// for all tasks. A file without transitions is an error.
func CheckBundle(transitionsJSON []byte) error {
	var allocs []tasksteps.AllocTransitions
	if err := json.Unmarshal(transitionsJSON, &allocs); err != nil {
		return err
	}
	hasTransitions := false
	var errs []error
	for _, alloc := range allocs {
		for _, task := range slices.Sorted(maps.Keys(alloc.TransitionsByTask)) {
			list := alloc.TransitionsByTask[task]
			hasTransitions = hasTransitions || len(list) > 0
			if err := Check(list); err != nil {
				errs = append(errs, fmt.Errorf("allocation %q: task %q: %w", alloc.AllocID, task, err))
			}
		}
	}
	if !hasTransitions {
		return errors.New("the file has no transitions")
	}
	return errors.Join(errs...)
}
