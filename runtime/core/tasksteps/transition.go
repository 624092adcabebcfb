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
