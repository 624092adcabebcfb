package tasksteps

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// AllocTransitions has each task's last transitions in an allocation under one agent, the oldest first.
type AllocTransitions struct {
	AllocID           string
	TransitionsByTask map[string][]Transition
}

// CheckBundle checks a debug bundle's transitions.json, a JSON list of AllocTransitions. It returns the [Check] errors
// for all tasks. A file without transitions is an error.
func CheckBundle(transitionsJSON []byte) error {
	var allocs []AllocTransitions
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
