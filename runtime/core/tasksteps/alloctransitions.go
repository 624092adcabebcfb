package tasksteps

// AllocTransitions has each task's last transitions in an allocation under one agent, the oldest first.
type AllocTransitions struct {
	AllocID           string
	TransitionsByTask map[string][]Transition
}
