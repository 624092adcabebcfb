package tasksteps

import (
	"fmt"
	"slices"
	"time"
)

// Transition is the end of one step and the beginning of the next one. A run's first transition has the step None and
// the result Done; its last one has the next step None.
type Transition struct {
	Time   time.Time
	Step   Step
	Result Result
	Next   Step
}

// Check returns an error if the transitions cannot be one task's successive transitions: each must be in the table, and
// must begin with the step with which the previous one ended. The list may begin at any transition.
func Check(list []Transition) error {
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
func lookUp(t Transition) (next Step, ok bool) {
	if t.Step >= stepCount {
		return None, false
	}
	if t.Step == None {
		return t.Next, t.Result == Done && (t.Next == First(false) || t.Next == First(true))
	}
	return Next(t.Step, t.Result)
}

// MarshalText returns the step's name for users.
func (s Step) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the step from a name returned by MarshalText.
func (s *Step) UnmarshalText(text []byte) error {
	for i := range stepCount {
		if i.String() == string(text) {
			*s = i
			return nil
		}
	}
	return fmt.Errorf("no step of a task has the name %q", text)
}

// MarshalText returns the result's name for users.
func (r Result) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText sets the result from a name returned by MarshalText.
func (r *Result) UnmarshalText(text []byte) error {
	i := slices.Index(resultNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("no result of a step has the name %q", text)
	}
	*r = Result(i)
	return nil
}
